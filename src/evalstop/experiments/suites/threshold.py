"""The threshold k, separately for RLHF and for DPO."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from evalstop.experiments.grid import cells, plan_of, sweep_chart, sweep_table
from evalstop.experiments.results import CONTROL
from evalstop.reports.exhibits import Section
from evalstop.workloads.scenarios import PAPER

if TYPE_CHECKING:
    from evalstop.experiments.results import Results
    from evalstop.experiments.spec import Plan

__all__ = ["KS", "SUITE", "plan", "section"]

SUITE = "threshold"
KS = (1.0, 2.0, 3.0, 4.0, 5.0)
HACKING = {
    "rlhf": PAPER,
    "dpo": replace(PAPER, types={"dpo": 0.8, "rlhf": 0.1, "lora": 0.1}, hacking={"dpo": 0.6}),
}


def plan(*, quick: bool) -> Plan:
    """Return the plan."""
    grid = [
        cell
        for kind, scenario in HACKING.items()
        for k in KS
        for cell in cells(
            SUITE,
            scenario,
            ("srtf-est",),
            {CONTROL: "none", kind: f"{kind}=consecutive:k={k:.0f};*=none"},
            **{f"k of {kind}": k},
        )
    ]
    return plan_of(SUITE, "Threshold k", grid, quick=quick, few=8)


def section(results: Results) -> Section:
    """Return F1, precision and recall over k."""
    charts = [
        sweep_chart(
            results,
            SUITE,
            f"k of {kind}",
            figure,
            title=f"{name} over k, {kind.upper()}-heavy",
            x_label="declines in a row that stop a job",
            rules=[kind],
        )
        for kind in HACKING
        for figure, name in (("f1", "F1"), ("precision", "Precision"), ("recall", "Recall"))
    ]
    tables = [
        sweep_table(results, SUITE, f"k of {kind}", title=f"All figures, {kind}", rules=[kind])
        for kind in HACKING
    ]
    return Section(
        suite=SUITE,
        title="Threshold: how many declines in a row",
        text=(
            "DPO runs follow the same curves here, so that the difference between the paper's "
            "k = 2 and k = 3 has to come from elsewhere."
        ),
        exhibits=(*charts, *tables),
    )
