"""Every rule on real, labelled training runs: false stops, finds, what is saved and regretted.

    python benchmarks/real_runs.py                          # the runs that ship with evalstop
    python benchmarks/real_runs.py --shared ../shared/traces  # the whole collection
    python benchmarks/real_runs.py --rule default --rule drop:g=6 --json

Nothing is drawn at random: the same files give the same table.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import msgspec

from evalstop import parse_rule
from evalstop.experiments.peers.registry import parse_peer
from evalstop.experiments.real_runs import (
    RealRunFigures,
    built_in_runs,
    measure,
    measure_peer,
    shared_runs,
)

RULES = (
    "default",
    "paper",
    "consecutive:k=2",
    "consecutive:k=3",
    "patience:k=3",
    "drop",
    "cusum",
    "page-hinkley",
    "stop-at:fraction=0.65",
    "loss-plateau",
    "none",
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, help="a collection with its index.csv")
    parser.add_argument("--rule", action="append", help="SPEC; repeatable")
    parser.add_argument("--peer", action="append", default=[], help="LIBRARY:RULE; repeatable")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    groups = shared_runs(options.shared) if options.shared else built_in_runs()
    rows = [
        measure(group, runs, parse_rule(spec))
        for group, runs in groups.items()
        for spec in options.rule or RULES
    ]
    rows += [
        measure_peer(group, runs, parse_peer(spec))
        for group, runs in groups.items()
        for spec in options.peer
    ]
    if options.json:
        print(msgspec.json.encode(rows).decode())
        return
    for group in groups:
        chosen = [row for row in rows if row.group == group]
        first = chosen[0]
        print(
            f"\n{group}: {first.healthy} healthy, {first.plateau} plateau, "
            f"{first.declined} declined (95 % Wilson intervals in brackets)"
        )
        print("| rule | healthy stopped | plateau stopped | declined found | before best | "
              "delay, evals | saved of declined | regret / range, mean | max |")  # fmt: skip
        print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
        for row in chosen:
            print(line(row))


def line(row: RealRunFigures) -> str:
    """Return a row of the table."""
    cells = [
        row.rule,
        share(row.stopped_healthy, row.healthy, row.intervals["healthy"]),
        share(row.stopped_plateau, row.plateau, row.intervals["plateau"]),
        share(row.found, row.declined, row.intervals["declined"]),
        str(row.early),
        figure(row.delay_evals_mean, ".1f"),
        figure(row.saved_mean, ".0%"),
        figure(row.regret_share_mean, ".3f"),
        figure(row.regret_share_max, ".2f"),
    ]
    return f"| {' | '.join(cells)} |"


def share(count: int, total: int, interval: tuple[float, float]) -> str:
    """Return a share with its interval."""
    if not total:
        return "-"
    return f"{count / total:.1%} [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"


def figure(value: float, form: str) -> str:
    """Return a figure, a dash where it is not defined."""
    return "-" if math.isnan(value) else format(value, form)


if __name__ == "__main__":
    main()
