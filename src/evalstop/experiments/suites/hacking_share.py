"""How many RLHF jobs hack: precision must not be the base rate in disguise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from evalstop.experiments.grid import RULES, cells, plan_of, sweep_chart, sweep_table
from evalstop.experiments.results import CONTROL
from evalstop.reports.exhibits import Section
from evalstop.workloads.scenarios import PAPER

if TYPE_CHECKING:
    from evalstop.experiments.results import Results
    from evalstop.experiments.spec import Plan

__all__ = ["SHARES", "SUITE", "plan", "section"]

SUITE = "hacking-share"
SHARES = (0.2, 0.4, 0.6, 0.8)


def plan(*, quick: bool) -> Plan:
    """Return the plan."""
    grid = [
        cell
        for share in SHARES
        for cell in cells(
            SUITE, replace(PAPER, hacking={"rlhf": share}), ("srtf-est",), RULES, share=share
        )
    ]
    return plan_of(SUITE, "Share of hacking jobs", grid, quick=quick)


def section(results: Results) -> Section:
    """Return precision and gain over the share."""
    rules = [rule for rule in RULES if rule != CONTROL]
    return Section(
        suite=SUITE,
        title="Share of hacking among RLHF jobs",
        text="A constant classifier's precision is the share itself; a detector's is not.",
        exhibits=(
            sweep_chart(
                results,
                SUITE,
                "share",
                "precision",
                title="Precision over the share of hacking",
                x_label="hacking share of RLHF jobs",
                rules=rules,
                marks=(("paper: at least", 0.89),),
            ),
            sweep_chart(
                results,
                SUITE,
                "share",
                "jct_mean_s",
                title="Mean JCT over the share of hacking",
                x_label="hacking share of RLHF jobs",
                rules=rules,
            ),
            sweep_table(results, SUITE, "share", title="All figures", rules=rules),
        ),
    )
