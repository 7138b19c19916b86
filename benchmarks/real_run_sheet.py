"""A contact sheet of real runs on which rules disagree: see the curves before believing a table.

    python benchmarks/real_run_sheet.py                    # docs/real-runs/disagreements.svg
    python benchmarks/real_run_sheet.py --shared ../shared/traces --out sheet.png

Each picture is one run: scores in its metric's own direction turned so that higher is better, two
standard errors each side where they are known, the best score, and where each rule stops. Runs
come in the order of the questions they raise; those on which all rules agree are left out.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib import pyplot as plt
from msgspec import Struct

from evalstop import parse_rule
from evalstop.core.series import pool
from evalstop.experiments.real_runs import LANGUAGE, built_in_runs, shared_runs
from evalstop.traces.replay import judge
from evalstop.traces.series import Series

if TYPE_CHECKING:
    from collections.abc import Sequence

mpl.use("Agg")
mpl.rcParams["svg.hashsalt"] = "evalstop"
mpl.rcParams["svg.fonttype"] = "none"  # letters stay letters: a third of the size
ROOT = Path(__file__).parents[1]
RULES = {"default": "#c0392b", "consecutive:k=2": "#2471a3", "patience:k=3": "#7d8c1f"}
"""Rule: the colour of its stops."""

COLUMNS = 6
QUESTIONS = (
    "default stops a run that does not decline",
    "default misses a decline",
    "default finds a decline that k = 2 or patience misses",
    "all find it, at different times",
    "k = 2 or patience stops a run that does not decline",
)


class Case(Struct, frozen=True, kw_only=True):
    """A run, the question it raises, and the index at which each rule stops it."""

    series: Series
    question: str
    stops: dict[str, int | None]


def question_of(label: str, stops: dict[str, int | None]) -> str:
    """Return the first question that a run raises, empty if rules agree."""
    default, *others = (stop is not None for stop in stops.values())
    if label in {"healthy", "plateau"}:
        if default:
            return QUESTIONS[0]
        return QUESTIONS[4] if any(others) else ""
    if label != "declined":
        return ""
    if not default:
        return QUESTIONS[1]
    if not all(others):
        return QUESTIONS[2]
    return QUESTIONS[3] if len(set(stops.values())) > 1 else ""


def cases(runs: Sequence[Series]) -> list[Case]:
    """Return the runs on which rules disagree, in the order of the questions."""
    found = []
    for one in runs:
        stops = {
            spec: judge(one, parse_rule(spec).named(one.job_type), spec).stop_index
            for spec in RULES
        }
        question = question_of(one.label, stops)
        if question:
            found.append(Case(series=one, question=question, stops=stops))
    return sorted(found, key=lambda case: QUESTIONS.index(case.question))


def draw(found: Sequence[Case], path: Path) -> None:
    """Draw the sheet."""
    rows = -(-len(found) // COLUMNS)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(2.6 * COLUMNS, 1.75 * rows), squeeze=False)
    for axis in axes.flat[len(found) :]:
        axis.set_axis_off()
    for number, (axis, case) in enumerate(zip(axes.flat, found, strict=False), start=1):
        picture(axis, case, number)
    figure.tight_layout(pad=0.4)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)
    plt.close(figure)


def picture(axis: plt.Axes, case: Case, number: int) -> None:
    """Draw one run."""
    points = [p for p in pool(case.series.points) if math.isfinite(p.score)]
    scores = [point.score for point in points]
    errors = [2.0 * (point.stderr or 0.0) for point in points]
    places = range(len(points))
    axis.errorbar(places, scores, yerr=errors, fmt=".-", ms=3, lw=0.8, elinewidth=0.5, color="#444")
    best = max(places, key=lambda index: scores[index])
    axis.plot([best], [scores[best]], "*", ms=8, color="#c98a00")
    for offset, (stop, colour) in enumerate(zip(case.stops.values(), RULES.values(), strict=True)):
        if stop is not None:  # beside each other where they stop at once
            axis.axvline(stop + 0.12 * (offset - 1), color=colour, lw=1.3)
    name = case.series.trace_id
    axis.set_title(f"{number}. {name[-34:]} ({case.series.label})", fontsize=5.5, pad=2)
    axis.tick_params(labelsize=5, length=2, pad=1)


def main() -> None:
    """Draw, and list."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, help="a collection with its index.csv")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/real-runs/disagreements.svg")
    parser.add_argument("--only", action="append", help="a question's number, 1-5; repeatable")
    options = parser.parse_args()
    found = cases((shared_runs(options.shared) if options.shared else built_in_runs())[LANGUAGE])
    if options.only:
        wanted = {QUESTIONS[int(number) - 1] for number in options.only}
        found = [case for case in found if case.question in wanted]
    draw(found, options.out)
    for number, case in enumerate(found, start=1):
        stops = ", ".join(f"{rule} {stop}" for rule, stop in case.stops.items())
        known = sum(point.stderr is not None for point in case.series.points)
        print(
            f"{number}. {case.question}: {case.series.trace_id}, {case.series.metric}, "
            f"{case.series.label}, {len(case.series.points)} evals ({known} with errors): {stops}"
        )


if __name__ == "__main__":
    main()
