"""What the cluster is like: load, size, estimates, late and lost evaluations, slow release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from evalstop.experiments.grid import EVALSTOP, cells, plan_of, sweep_chart, sweep_table
from evalstop.experiments.results import CONTROL
from evalstop.reports.exhibits import Section
from evalstop.workloads.scenario import Costs, Deliveries, NodeType, Scenario
from evalstop.workloads.scenarios import PAPER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evalstop.experiments.results import Results
    from evalstop.experiments.spec import Cell, Plan

__all__ = ["SUITE", "plan", "section"]

SUITE = "cluster"
RULES = {CONTROL: "none", EVALSTOP: "paper"}

INTERVAL_S = PAPER.durations.median_s / PAPER.evals.counts[1]
"""Seconds between two evaluations of the median job."""


def _of_size(gpus: int) -> Scenario:
    """Return the same load on more GPUs: jobs in proportion, at least the paper's 200."""
    return replace(PAPER, gpus=gpus, jobs=max(200, 200 * gpus // 64))


def _half_at(speed: float) -> Scenario:
    """Return half of the GPUs at another speed, jobs in proportion to what the cluster gives."""
    half = PAPER.gpus // 2
    return replace(
        PAPER,
        pools=(
            NodeType(name="new", gpus=half, speed=1.0),
            NodeType(name="old", gpus=half, speed=speed),
        ),
    )


AXES: Mapping[str, tuple[tuple[str, ...], dict[float, Scenario]]] = {
    "load": (
        ("fifo", "srtf-est"),
        {
            load: replace(PAPER, arrivals=replace(PAPER.arrivals, load=load))
            for load in (0.5, 0.7, 0.9, 1.15, 1.3)
        },
    ),
    "cluster size": (
        ("srtf-est",),
        {float(size): _of_size(size) for size in (16, 32, 64, 256, 1024)},
    ),
    "estimate error": (
        ("sjf-est", "srtf-est"),
        {
            sigma: replace(PAPER, durations=replace(PAPER.durations, estimate_sigma=sigma))
            for sigma in (0.0, 0.2, 0.5, 1.0)
        },
    ),
    "eval duration": (
        ("srtf-est",),
        {
            share: replace(PAPER, deliveries=Deliveries(eval_s=share * INTERVAL_S))
            for share in (0.0, 0.25, 0.5, 1.0, 2.0)
        },
    ),
    "lost evals": (
        ("srtf-est",),
        {
            share: replace(PAPER, deliveries=Deliveries(lost=share))
            for share in (0.0, 0.1, 0.2, 0.4)
        },
    ),
    "release delay": (
        ("srtf-est",),
        {
            seconds: replace(PAPER, costs=Costs(release_s=seconds))
            for seconds in (0.0, 60.0, 300.0, 900.0)
        },
    ),
    "speed of half": (("srtf-est",), {speed: _half_at(speed) for speed in (1.0, 0.5, 0.25)}),
}
"""Axis: base schedulers, and a scenario for each value."""

WORDS = {
    "load": "work handed in over what the cluster can do",
    "cluster size": "GPUs, at the same load",
    "estimate error": "sigma of the logarithm of estimate / duration",
    "eval duration": "duration of an evaluation over the time between two",
    "lost evals": "share of evaluations that never arrive",
    "speed of half": "speed of half of the GPUs, the others at 1",
    "release delay": "seconds from the end of a job until its GPUs are free",
}

LARGEST_QUICKLY = 256.0


def plan(*, quick: bool) -> Plan:
    """Return the plan; the quick one leaves out the largest cluster."""
    grid: list[Cell] = []
    for axis, (bases, settings) in AXES.items():
        for value, scenario in settings.items():
            if quick and axis == "cluster size" and value > LARGEST_QUICKLY:
                continue
            grid += cells(SUITE, scenario, bases, RULES, **{axis: value})
    return plan_of(SUITE, "The cluster", grid, quick=quick)


def section(results: Results) -> Section:
    """Return the gain over each axis, and recall where reports are late or lost."""
    charts = []
    for axis, (bases, _) in AXES.items():
        figures = [("jct_mean_s", "Mean JCT")]
        if axis in {"eval duration", "lost evals"}:
            figures.append(("recall", "Recall"))
        charts += [
            sweep_chart(
                results,
                SUITE,
                axis,
                figure,
                title=f"{name}: {axis}",
                x_label=WORDS[axis],
                rules=[EVALSTOP],
                scheduler=bases[-1],
                log_x=axis == "cluster size",
            )
            for figure, name in figures
        ]
    tables = [
        sweep_table(
            results, SUITE, axis, title=f"All figures: {axis}", rules=[EVALSTOP], schedulers=bases
        )
        for axis, (bases, _) in AXES.items()
    ]
    return Section(
        suite=SUITE,
        title="The cluster: load, size, estimates, evaluations that come late or never, release",
        text=(
            "The scenario paper but for one thing at a time. Where half of the GPUs are slower, "
            "each half has a base scheduler of its own and a job goes where it should end first "
            "(`evalstop.schedulers.partitioned`); it does not move between them."
        ),
        exhibits=(*charts, *tables),
    )
