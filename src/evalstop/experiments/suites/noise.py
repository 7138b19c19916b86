"""Noise of evaluations: every rival under each sigma."""

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

__all__ = ["SIGMAS", "SUITE", "plan", "section"]

SUITE = "noise"
SIGMAS = (0.01, 0.02, 0.035, 0.05, 0.08, 0.12)
RIVALS = {
    **RULES,
    "patience k=2": "rlhf=patience:k=2;*=none",
    "drop": "drop",
    "cusum": "cusum",
}
PAPER_PRECISION = (("paper at 0.05: at least", 0.91), ("paper at 0.12", 0.81))


def plan(*, quick: bool) -> Plan:
    """Return the plan."""
    grid = [
        cell
        for sigma in SIGMAS
        for cell in cells(
            SUITE,
            replace(PAPER, noise=replace(PAPER.noise, sigma=sigma)),
            ("srtf-est",),
            RIVALS,
            sigma=sigma,
        )
    ]
    return plan_of(SUITE, "Noise of evaluations", grid, quick=quick)


def section(results: Results) -> Section:
    """Return precision, recall and gain over sigma."""
    rules = [rule for rule in RIVALS if rule != CONTROL]
    x_label = "sigma of an evaluation, in shares of the gain at the peak"
    return Section(
        suite=SUITE,
        title="Noise: every rule under every sigma",
        text="The scenario paper but for sigma. Ten evaluations a job.",
        exhibits=(
            sweep_chart(
                results,
                SUITE,
                "sigma",
                "precision",
                title="Precision falls with noise, unless the rule knows the noise",
                x_label=x_label,
                rules=rules,
                marks=PAPER_PRECISION,
            ),
            sweep_chart(
                results,
                SUITE,
                "sigma",
                "recall",
                title="Recall: what holding the false-stop rate costs at ten evaluations",
                x_label=x_label,
                rules=rules,
            ),
            sweep_chart(
                results,
                SUITE,
                "sigma",
                "fpr_rlhf",
                title="Healthy RLHF jobs that are stopped",
                x_label=x_label,
                rules=rules,
            ),
            sweep_table(results, SUITE, "sigma", title="All figures", rules=rules),
        ),
    )
