"""Evaluations per job: the axis the paper leaves out, and on which its rule breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from evalstop.experiments.grid import EVALSTOP, cells, plan_of, sweep_chart, sweep_table
from evalstop.experiments.results import CONTROL
from evalstop.reports.exhibits import Section
from evalstop.workloads.scenarios import PAPER

if TYPE_CHECKING:
    from evalstop.experiments.results import Results
    from evalstop.experiments.spec import Plan

__all__ = ["SUITE", "plan", "section"]

SUITE = "evals-per-job"
RULES = {CONTROL: "none", EVALSTOP: "paper", "cusum": "cusum", "default": "default"}
COUNTS = (5, 8, 10, 15, 20, 40, 100)
QUICK_COUNTS = (5, 10, 20, 40)


def plan(*, quick: bool) -> Plan:
    """Return the plan."""
    grid = [
        cell
        for count in (QUICK_COUNTS if quick else COUNTS)
        for cell in cells(
            SUITE,
            replace(PAPER, evals=replace(PAPER.evals, count=count)),
            ("srtf-est",),
            RULES,
            evals=float(count),
        )
    ]
    return plan_of(SUITE, "Evaluations per job", grid, quick=quick)


def section(results: Results) -> Section:
    """Return detection and gain over the number of evaluations."""
    rules = [rule for rule in RULES if rule != CONTROL]
    x_label = "evaluations per job"
    shown = (
        ("precision", "Precision"),
        ("recall", "Recall"),
        ("fpr_rlhf", "Healthy RLHF jobs that are stopped"),
        ("jct_mean_s", "Mean JCT"),
    )
    charts = [
        sweep_chart(
            results,
            SUITE,
            "evals",
            figure,
            title=f"{name} over evaluations per job",
            x_label=x_label,
            rules=rules,
            log_x=True,
        )
        for figure, name in shown
    ]
    return Section(
        suite=SUITE,
        title="Evaluations per job: where consecutive declines break",
        text=(
            "The scenario paper but for the number of evaluations. The more often a job is "
            "evaluated, the smaller the change between two evaluations against their noise, and "
            "the more chances for k declines in a row."
        ),
        exhibits=(*charts, sweep_table(results, SUITE, "evals", title="All figures", rules=rules)),
    )
