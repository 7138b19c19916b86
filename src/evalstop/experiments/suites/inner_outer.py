"""Inner and outer defence: trainers that mitigate, under EvalStop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from evalstop.experiments.grid import EVALSTOP, cells, plan_of, sweep_table
from evalstop.experiments.results import CONTROL
from evalstop.reports.exhibits import Section, Table
from evalstop.workloads.scenario import Mitigation
from evalstop.workloads.scenarios import PAPER

if TYPE_CHECKING:
    from evalstop.experiments.results import Results
    from evalstop.experiments.spec import Plan

__all__ = ["SUITE", "plan", "section"]

SUITE = "inner-outer"
RULES = {CONTROL: "none", EVALSTOP: "paper", "default": "default"}

INNER = {
    "none": PAPER,
    "KL penalty, half of the jobs": replace(PAPER, mitigation=Mitigation(share=0.5)),
    "KL penalty, all": replace(PAPER, mitigation=Mitigation(share=1.0)),
    "weak KL penalty, all": replace(PAPER, mitigation=Mitigation(share=1.0, kl_factor=0.6)),
    "reward ensemble (half as many hack)": replace(PAPER, hacking={"rlhf": 0.3}),
}


def plan(*, quick: bool) -> Plan:
    """Return the plan."""
    grid = [
        cell
        for inner, scenario in INNER.items()
        for cell in cells(SUITE, scenario, ("srtf-est",), RULES, inner=inner)
    ]
    return plan_of(SUITE, "Inner and outer defence", grid, quick=quick)


def section(results: Results) -> Section:
    """Return what is wasted and delivered under each pair of defences."""
    rows = []
    for inner in INNER:
        for rule in RULES:
            labels = {"inner": inner, "scheduler": "srtf-est", "rule": rule}
            counts = results.counts(SUITE, **labels)
            rows.append(
                (
                    inner,
                    rule,
                    f"{counts.base_rate:.0%}",
                    *(
                        f"{results.mean(SUITE, figure, **labels).value:.3g}"
                        for figure in (
                            "gpu_hours_wasted",
                            "gpu_hours_used",
                            "delivered_score_mean",
                            "regret_mean",
                        )
                    ),
                )
            )
    table = Table(
        title="Waste and delivered quality under an inner defence, an outer one, and both",
        caption=f"{results.seeds(SUITE)} seeds, means; base srtf-est.",
        header=(
            "inner defence",
            "outer defence",
            "jobs that hack",
            "GPU-h past the peak",
            "GPU-h used",
            "true score delivered",
            "regret",
        ),
        rows=tuple(rows),
    )
    return Section(
        suite=SUITE,
        title="Inner and outer defence",
        text=(
            "A KL penalty acts like stopping early (Gao et al. 2023): the run spends a share of "
            "its KL, and no longer hacks if that ends before its peak. An ensemble makes hacking "
            "rarer. Either leaves work for the platform, and neither needs it less where it "
            "fails."
        ),
        exhibits=(
            table,
            sweep_table(
                results,
                SUITE,
                "inner",
                title="All figures",
                rules=[rule for rule in RULES if rule != CONTROL],
            ),
        ),
    )
