"""What the suites share: rules under test, cells of a grid, charts and tables of a sweep."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec.structs import replace

from evalstop.experiments.results import CONTROL, Estimate, Label, Results
from evalstop.experiments.spec import Cell, Plan
from evalstop.reports.exhibits import Chart, Line, Table
from evalstop.workloads.scenario import Elasticity, Scenario
from evalstop.workloads.scenarios import PAPER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "BASES",
    "RULES",
    "cells",
    "percent",
    "plan_of",
    "scenario_for",
    "sweep_chart",
    "sweep_table",
]

EVALSTOP = "EvalStop"

RULES: dict[str, str] = {
    CONTROL: "none",
    EVALSTOP: "paper",
    "StopAt-0.65": "rlhf=stop-at:fraction=0.65;*=none",
    "LossPlateau": "rlhf=loss-plateau:patience=2;*=none",
    "default": "default",
}
"""Label and SPEC: the control, the paper's rule, its two rivals, and ours.

StopAt stops RLHF jobs, as the paper has it. LossPlateau does too, with the patience of k = 2.
"""

BASES = ("fifo", "sjf-est", "srtf-est", "loss-aware", "tiresias", "pollux")
"""Six base schedulers: those the paper compares, and the two it names as state of the art."""

FULL_SEEDS = 30
QUICK_SEEDS = 3


def plan_of(
    suite: str,
    title: str,
    grid: Sequence[Cell],
    *,
    quick: bool,
    full: int = FULL_SEEDS,
    few: int = QUICK_SEEDS,
) -> Plan:
    """Return a plan with its seeds, which begin at 0."""
    return Plan(
        suite=suite, title=title, cells=tuple(grid), seeds=tuple(range(few if quick else full))
    )


def cells(
    suite: str,
    scenario: Scenario,
    schedulers: Sequence[str],
    rules: Mapping[str, str],
    **labels: Label,
) -> list[Cell]:
    """Return a cell for each scheduler and rule."""
    return [
        Cell(
            suite=suite,
            labels={"scheduler": scheduler, "rule": label, **labels},
            scenario=scenario_for(scheduler, scenario),
            scheduler=scheduler,
            rule=spec,
        )
        for scheduler in schedulers
        for label, spec in rules.items()
    ]


def scenario_for(scheduler: str, scenario: Scenario = PAPER) -> Scenario:
    """Return the scenario, with jobs that can be resized where the scheduler resizes them."""
    return (
        replace(scenario, elasticity=Elasticity(share=1.0)) if scheduler == "pollux" else scenario
    )


def sweep_chart(
    results: Results,
    suite: str,
    axis: str,
    figure: str,
    *,
    title: str,
    x_label: str,
    rules: Sequence[str],
    scheduler: str = "srtf-est",
    caption: str = "",
    marks: tuple[tuple[str, float], ...] = (),
    log_x: bool = False,
) -> Chart:
    """Return one line for each rule over the values of an axis of a suite's labels.

    ``figure`` is a rate (precision, recall, ...) or the name of a system figure, of which the
    relative change against the control is drawn.
    """
    points = _values(results, suite, axis)
    lines = []
    for rule in rules:
        found = [
            estimate(results, suite, figure, scheduler=scheduler, rule=rule, **{axis: point})
            for point in points
        ]
        lines.append(_line(rule, points, found))
    change = figure not in _RATES
    return Chart(
        name=f"{suite}-{axis}-{figure}".replace("_", "-").replace(" ", "-"),
        title=title,
        caption=caption or _caption(results, suite, scheduler),
        x_label=x_label,
        y_label=f"{_WORDS.get(figure, figure)}{', change' if change else ''}",
        lines=tuple(lines),
        marks=marks,
        log_x=log_x,
        kind="bars" if any(isinstance(point, str) for point in points) else "lines",
    )


def sweep_table(
    results: Results,
    suite: str,
    axis: str,
    *,
    title: str,
    rules: Sequence[str],
    schedulers: Sequence[str] = ("srtf-est",),
    caption: str = "",
) -> Table:
    """Return system and detection figures for each value of an axis."""
    rows = []
    for point in _values(results, suite, axis):
        for scheduler in schedulers:
            for rule in rules:
                labels: dict[str, Label] = {"scheduler": scheduler, "rule": rule, axis: point}
                rows.append((str(point), scheduler, rule, *figure_texts(results, suite, labels)))
    return Table(
        title=title,
        caption=caption or _caption(results, suite),
        header=(axis, "scheduler", "rule", *FIGURE_HEADER),
        rows=tuple(rows),
    )


FIGURE_HEADER = (
    "mean JCT",
    "JCT, completed",
    "GPU-h, hacking jobs",
    "GPU-h past the peak",
    "precision",
    "recall",
    "FPR",
    "FPR, RLHF",
)


def figure_texts(results: Results, suite: str, labels: dict[str, Label]) -> tuple[str, ...]:
    """Return a row's figures: changes against the control, and rates, with their intervals."""
    changes = ("jct_mean_s", "jct_completed_mean_s", "gpu_hours_hacking", "gpu_hours_wasted")
    rates = ("precision", "recall", "fpr", "fpr_rlhf")
    return (
        *(percent(results.change(suite, name, **labels), sign=True) for name in changes),
        *(percent(results.rate(suite, name, **labels)) for name in rates),
    )


_RATES = ("precision", "recall", "fpr", "fpr_rlhf", "f1", "base_rate")

_WORDS = {
    "jct_mean_s": "mean JCT",
    "jct_completed_mean_s": "mean JCT of completed jobs",
    "gpu_hours_hacking": "GPU-hours of hacking jobs",
    "gpu_hours_wasted": "GPU-hours past the true peak",
    "f1": "F1",
    "fpr": "false-positive rate",
    "fpr_rlhf": "false-positive rate, healthy RLHF",
}


def estimate(results: Results, suite: str, figure: str, **labels: Label) -> Estimate:
    """Return a rate, or the change of a system figure against the control."""
    if figure in _RATES:
        return results.rate(suite, figure, **labels)
    return results.change(suite, figure, **labels)


def percent(found: Estimate, *, sign: bool = False) -> str:
    """Return a share as a percentage with its interval; a dash where it is not defined."""
    if not math.isfinite(found.value):
        return "-"
    form = "{:+.1f}" if sign else "{:.1f}"
    text = form.format(100 * found.value) + " %"
    if math.isfinite(found.low):
        text += f" ({form.format(100 * found.low)} to {form.format(100 * found.high)})"
    return text


def _values(results: Results, suite: str, axis: str) -> list[Label]:
    """Return the values of a label, in the order of the plan."""
    found = [cell.labels[axis] for cell in results.plans[suite].cells if axis in cell.labels]
    return list(dict.fromkeys(found))


def _line(label: str, points: Sequence[Label], found: Sequence[Estimate]) -> Line:
    return Line(
        label=label,
        x=tuple(points),
        y=tuple(one.value for one in found),
        low=tuple(one.low for one in found),
        high=tuple(one.high for one in found),
    )


def _caption(results: Results, suite: str, scheduler: str = "") -> str:
    base = f"Base {scheduler}; " if scheduler else ""
    return (
        f"{base}{results.seeds(suite)} seeds (0 to {results.seeds(suite) - 1}), 95 % intervals: "
        "rates pooled (Wilson), changes paired by seed (t)."
    )
