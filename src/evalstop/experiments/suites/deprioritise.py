"""Put declining jobs behind all others, or stop them?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from evalstop.experiments.grid import cells, percent, plan_of
from evalstop.experiments.results import CONTROL
from evalstop.reports.exhibits import Section, Table
from evalstop.workloads.scenarios import PAPER

if TYPE_CHECKING:
    from evalstop.experiments.results import Results
    from evalstop.experiments.spec import Plan

__all__ = ["SUITE", "plan", "section"]

SUITE = "deprioritise"
LOADS = (0.9, 1.2)
WAYS = ("stop", "deprioritise")


def plan(*, quick: bool) -> Plan:
    """Return the plan."""
    grid = []
    for load in LOADS:
        scenario = replace(PAPER, arrivals=replace(PAPER.arrivals, load=load))
        grid += cells(SUITE, scenario, ("srtf-est",), {CONTROL: "none", "stop": "paper"}, load=load)
        behind = cells(SUITE, scenario, ("srtf-est",), {"deprioritise": "paper"}, load=load)
        grid += [replace(cell, mode="deprioritise") for cell in behind]
    return plan_of(SUITE, "Stop or put behind", grid, quick=quick, few=5)


def section(results: Results) -> Section:
    """Return the table."""
    figures = (
        ("jct_mean_s", "mean JCT"),
        ("jct_p95_s", "p95 JCT"),
        ("gpu_hours_used", "GPU-h used"),
        ("gpu_hours_hacking", "GPU-h, hacking jobs"),
        ("gpu_hours_wasted", "GPU-h past the peak"),
        ("delivered_score_mean", "true score delivered"),
    )
    rows = tuple(
        (
            f"{load:g}",
            way,
            *(
                percent(
                    results.change(SUITE, figure, scheduler="srtf-est", rule=way, load=load),
                    sign=True,
                )
                for figure, _ in figures
            ),
        )
        for load in LOADS
        for way in WAYS
    )
    table = Table(
        title="Change against srtf-est alone",
        caption=f"{results.seeds(SUITE)} seeds; 95 % t intervals, paired by seed.",
        header=("load", "on an alarm", *(name for _, name in figures)),
        rows=rows,
    )
    return Section(
        suite=SUITE,
        title="De-prioritise or stop",
        text=(
            "Behind all others, a declining job runs on GPUs nobody waits for, and is preempted "
            "as soon as somebody does. It still runs to its end: the GPU-hours are spent, the "
            "tail waits longer, and what the tenant is handed at the end is the declined model."
        ),
        exhibits=(table,),
    )
