"""Real arrivals: the same policies on the jobs of a real cluster, with curves attached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from evalstop.experiments.grid import FIGURE_HEADER, RULES, cells, figure_texts, plan_of
from evalstop.experiments.results import CONTROL
from evalstop.reports.exhibits import Section, Table
from evalstop.workloads.scenarios import PAPER

if TYPE_CHECKING:
    from evalstop.experiments.results import Results
    from evalstop.experiments.spec import Plan

__all__ = ["GPUS", "JOBS", "SUITE", "plan", "section"]

SUITE = "real-arrivals"
GPUS = 256
JOBS = 4_000
QUICK_JOBS = 1_000
BASES = ("fifo", "srtf-est", "tiresias")


def plan(*, quick: bool) -> Plan:
    """Return the plan: the first jobs of the trace, on fewer GPUs than it came from."""
    scenario = replace(PAPER, name="paper on a trace", gpus=GPUS, gangs={1: 1.0})
    grid = [
        replace(cell, trace_jobs=QUICK_JOBS if quick else JOBS)
        for cell in cells(SUITE, scenario, BASES, RULES)
    ]
    return plan_of(SUITE, "Real arrivals", grid, quick=quick, full=5, few=2)


def section(results: Results) -> Section:
    """Return the table."""
    rows = tuple(
        (base, rule, *figure_texts(results, SUITE, {"scheduler": base, "rule": rule}))
        for base in BASES
        for rule in RULES
        if rule != CONTROL
    )
    jobs = results.plans[SUITE].cells[0].trace_jobs
    return Section(
        suite=SUITE,
        title="Real arrivals",
        text=(
            f"The first {jobs:,} jobs of the trace on {GPUS} GPUs: their times, sizes and "
            "durations are real, types and curves are those of scenario paper, new for each "
            "seed. Durations span five orders of magnitude, so that relative changes of a mean "
            "are those of its longest jobs."
        ),
        exhibits=(
            Table(
                title="Change against the same scheduler without a rule",
                caption=f"{results.seeds(SUITE)} seeds of curves; 95 % intervals.",
                header=("scheduler", "rule", *FIGURE_HEADER),
                rows=rows,
            ),
        ),
    )
