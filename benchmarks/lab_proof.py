"""Make docs/real-runs.md's tables and figures anew from the recorded runs.

    python benchmarks/lab_proof.py                     # the runs that ship with evalstop
    python benchmarks/lab_proof.py --public FILE       # public runs from a larger table
    python benchmarks/lab_proof.py --check             # fail if the page is not what this gives

The text between ``<!-- NAME -->`` and ``<!-- end -->`` is replaced; nothing else is touched.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

from evalstop.config.rules import parse_rule
from evalstop.lab.figures import draw_curves, draw_law, draw_rules
from evalstop.lab.law import fit_arms
from evalstop.lab.proof import Share, judge_rules, prove
from evalstop.lab.series import recorded_runs
from evalstop.lab.tables import arms_table, labels_table, law_table, per_arm_table, rules_table
from evalstop.traces.replay import judge
from evalstop.traces.selection import select
from evalstop.traces.sources import read_source

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "real-runs.md"
FIGURES = ROOT / "docs" / "real-runs"
RULES = (
    "default",
    "consecutive:k=2",
    "consecutive:k=3",
    "patience:k=3",
    "drop:g=5",
    "cusum:threshold=5",
    "stop-at:fraction=0.65",
    "loss-plateau",
)
LABELS = ("healthy", "plateau", "declined")


def share(flags: list[bool]) -> str:
    """Return a count out of a count with its Wilson interval, in words."""
    counted = Share.counted(flags)
    if not counted.of:
        return "none"
    return (
        f"{counted.count}/{counted.of} = {100 * counted.count / counted.of:.0f} % "
        f"[{100 * counted.low:.0f}, {100 * counted.high:.0f}]"
    )


def public_table(source: str) -> str:
    """Return what each rule does to public runs with a label."""
    series = [one for one in select(read_source(source, None).curves).series if one.label in LABELS]
    counts = Counter(one.label for one in series)
    kinds = ", ".join(f"{counts[label]} {label}" for label in LABELS)
    lines = [
        f"{len(series)} labelled series: {kinds}.\n",
        "| rule | healthy stopped | plateaus stopped | declined found |",
        "|---|---|---|---|",
    ]
    for spec in RULES:
        rules = parse_rule(spec)
        fired: dict[str, list[bool]] = {label: [] for label in LABELS}
        for one in series:
            fired[one.label].append(judge(one, rules.named(one.job_type), spec).fired)
        cells = " | ".join(share(fired[label]) for label in LABELS)
        lines.append(f"| `{spec}` | {cells} |")
    return "\n".join(lines) + "\n"


def sections(public: str) -> dict[str, str]:
    """Return the generated parts of the page by name, and draw the figures."""
    runs = recorded_runs()
    FIGURES.mkdir(exist_ok=True)
    draw_curves(runs, FIGURES / "curves.svg")
    draw_law(runs, FIGURES / "law.svg")
    one_panel = judge_rules(runs, RULES, panels=1)
    all_panels = judge_rules(runs, RULES)
    proofs = [prove(spec, judged) for spec, judged in all_panels.items()]
    draw_rules(proofs, FIGURES / "rules.svg")
    evals = sum(len(run.steps) for run in runs)
    seconds = sum(run.seconds for run in runs)
    counted = (
        f"{len(runs)} runs of {len({run.arm for run in runs})} arms, {evals} evaluations, "
        f"{len({run.seed for run in runs})} seeds; {seconds / 3600:.1f} hours of wall time on one "
        "shared core.\n"
    )
    return {
        "counted": counted,
        "labels": labels_table(runs),
        "arms": arms_table(runs),
        "rules, one panel": rules_table(
            [prove(spec, judged) for spec, judged in one_panel.items()]
        ),
        "rules, eight panels": rules_table(proofs),
        "default by arm": per_arm_table(all_panels["default"]),
        "law": law_table(fit_arms(runs)),
        "public": public_table(public),
    }


def main() -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--public", default="example:")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    old = PAGE.read_text()
    new = old
    for name, text in sections(options.public).items():
        pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not pattern.search(new):
            print(f"{PAGE} has no place for {name!r}")
            return 1
        new = pattern.sub(lambda found, text=text: found[1] + "\n" + text + "\n" + found[2], new)
    if options.check:
        print("unchanged" if new == old else f"{PAGE} is out of date: python {sys.argv[0]}")
        return int(new != old)
    PAGE.write_text(new)
    print(f"wrote {PAGE} and {FIGURES}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
