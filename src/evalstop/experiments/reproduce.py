"""All suites, from plans to a folder of results: ``evalstop reproduce``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from evalstop import __version__
from evalstop.experiments.claims import Claim, claims
from evalstop.experiments.record import write_parquet
from evalstop.experiments.results import Results
from evalstop.experiments.runner import run_plans
from evalstop.experiments.suites import (
    cluster,
    composability,
    deprioritise,
    evals_per_job,
    fairness,
    hacking_share,
    inner_outer,
    main_table,
    mixes,
    noise,
    real_arrivals,
    threshold,
)
from evalstop.reports.experiments_page import ReportHead, write_report

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from evalstop.experiments.runner import Spread
    from evalstop.experiments.spec import Plan
    from evalstop.workloads.generate import Arrived

__all__ = ["Reproduction", "plans", "reproduce"]

_SUITES = (
    main_table,
    composability,
    noise,
    hacking_share,
    threshold,
    evals_per_job,
    cluster,
    fairness,
    mixes,
    deprioritise,
    inner_outer,
    real_arrivals,
)
"""In the order of the report."""


class Reproduction(Struct, frozen=True, kw_only=True):
    """What ``results.json`` holds."""

    claims: list[Claim]
    quick: bool
    version: str
    commit: str | None
    command: str
    runs: int
    events: int
    suites: dict[str, int]
    left_out: list[str]


def plans(*, quick: bool, with_trace: bool) -> list[Plan]:
    """Return the plan of every suite; real arrivals only where there is a trace."""
    return [
        suite.plan(quick=quick) for suite in _SUITES if with_trace or suite is not real_arrivals
    ]


def reproduce(
    folder: Path,
    *,
    quick: bool,
    arrived: Arrived | None = None,
    spread: Spread | None = None,
    progress: Callable[[int, int], None] | None = None,
    commit: str | None = None,
) -> Reproduction:
    """Run everything that is not done yet, and write results, runs, figures and reports.

    Args:
        folder: must exist; gets results.json, runs.parquet, figures/, report.html, report.md.
        quick: few seeds.
        arrived: jobs of a real trace; without it that suite is left out, and the report says so.
        spread: where to run; all cores of this machine by default.
        progress: told how many runs are done, of how many.
        commit: commit of the code, for the record.
    """
    chosen = plans(quick=quick, with_trace=arrived is not None)
    rows = run_plans(chosen, folder=folder, arrived=arrived, spread=spread, progress=progress)
    results = Results(chosen, rows)
    command = f"evalstop reproduce{' --quick' if quick else ''}"
    command += " --trace FILE" if arrived is not None else ""
    found = Reproduction(
        claims=claims(results),
        quick=quick,
        version=__version__,
        commit=commit,
        command=command,
        runs=len(rows),
        events=sum(row["events"] for row in rows),
        suites={plan.suite: len(plan.seeds) for plan in chosen},
        left_out=[] if arrived is not None else ["real-arrivals: no trace was given (--trace)"],
    )
    write_parquet(folder / "runs.parquet", chosen, rows, commit=commit)
    (folder / "results.json").write_bytes(_json(found))
    write_report(
        folder,
        ReportHead(
            claims=msgspec.to_builtins(found.claims),
            quick=quick,
            version=__version__,
            commit=commit or "unknown",
            command=command,
            runs=found.runs,
            events=found.events,
            left_out=tuple(found.left_out),
        ),
        [suite.section(results) for suite in _SUITES if suite.SUITE in results],
    )
    return found


def _json(found: Reproduction) -> bytes:
    plain: Any = msgspec.to_builtins(found)
    return (json.dumps(plain, indent=2, allow_nan=False) + "\n").encode()
