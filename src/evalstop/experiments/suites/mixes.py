"""Light mixes, and the negative control: what does a rule cost where nothing hacks?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from evalstop.experiments.grid import RULES, cells, plan_of, sweep_chart, sweep_table
from evalstop.experiments.results import CONTROL
from evalstop.reports.exhibits import Section
from evalstop.workloads.scenarios import HARD, PAPER

if TYPE_CHECKING:
    from evalstop.experiments.results import Results
    from evalstop.experiments.spec import Plan

__all__ = ["SUITE", "plan", "section"]

SUITE = "mixes"

MIXES = {
    "RLHF-heavy": PAPER,
    "DPO-heavy": replace(
        PAPER,
        types={"rlhf": 0.1, "dpo": 0.8, "lora": 0.1},
        hacking={"rlhf": 0.6, "dpo": 0.2},
    ),
    "LoRA-heavy": replace(PAPER, types={"rlhf": 0.1, "dpo": 0.1, "lora": 0.8}),
    "all healthy": replace(PAPER, hacking={}),
    "hard": HARD,
    "hard, all healthy": replace(HARD, hacking={}),
}


def plan(*, quick: bool) -> Plan:
    """Return the plan."""
    grid = [
        cell
        for mix, scenario in MIXES.items()
        for cell in cells(SUITE, scenario, ("srtf-est",), RULES, mix=mix)
    ]
    return plan_of(SUITE, "Light mixes and negative controls", grid, quick=quick)


def section(results: Results) -> Section:
    """Return the table and the false stops."""
    rules = [rule for rule in RULES if rule != CONTROL]
    return Section(
        suite=SUITE,
        title="Light mixes and negative controls",
        text=(
            "Where nothing hacks, every stop is wrong, and every gain in completion time is "
            "taken from jobs that were healthy. Scenario hard has plateaus, dips, cliffs and "
            "correlated noise."
        ),
        exhibits=(
            sweep_chart(
                results,
                SUITE,
                "mix",
                "fpr",
                title="Healthy jobs that are stopped",
                x_label="mix of jobs",
                rules=rules,
            ),
            sweep_table(results, SUITE, "mix", title="All figures", rules=rules),
        ),
    )
