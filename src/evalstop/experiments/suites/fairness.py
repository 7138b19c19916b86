"""Fairness between tenants, honest and not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from evalstop.experiments.grid import EVALSTOP, cells, percent, plan_of
from evalstop.experiments.results import CONTROL
from evalstop.reports.exhibits import Section, Table
from evalstop.workloads.scenario import Adversaries, Tenants
from evalstop.workloads.scenarios import PAPER

if TYPE_CHECKING:
    from evalstop.experiments.results import Results
    from evalstop.experiments.spec import Plan

__all__ = ["SUITE", "WORLDS", "plan", "section"]

SUITE = "fairness"
RULES = {CONTROL: "none", EVALSTOP: "paper", "default": "default"}
BASES = ("fifo", "srtf-est", "tiresias")

WORLDS = {
    "honest": PAPER,
    "one large tenant": replace(PAPER, tenants=Tenants(exponent=2.5)),
    "two hide declines": replace(PAPER, adversaries=Adversaries(tenants=2, hide_declines=True)),
    "two understate estimates": replace(
        PAPER, adversaries=Adversaries(tenants=2, estimate_factor=0.25)
    ),
}


def plan(*, quick: bool) -> Plan:
    """Return the plan."""
    grid = [
        cell
        for world, scenario in WORLDS.items()
        for cell in cells(SUITE, scenario, BASES, RULES, world=world)
    ]
    return plan_of(SUITE, "Fairness", grid, quick=quick, few=5)


def section(results: Results) -> Section:
    """Return the table."""
    rows = []
    for world in WORLDS:
        for base in BASES:
            for rule in RULES:
                labels = {"world": world, "scheduler": base, "rule": rule}
                jain = results.paired(SUITE, "jain_tenants", **labels)
                gpus = results.mean(SUITE, "jain_gpu_shares", **labels)
                worst = results.mean(SUITE, "slowdown_worst_tenant", **labels)
                rows.append(
                    (
                        world,
                        base,
                        rule,
                        f"{results.mean(SUITE, 'jain_tenants', **labels).value:.3f}",
                        "-"
                        if rule == CONTROL
                        else "{:+.3f} ({:+.3f} to {:+.3f})".format(jain.mean, *jain.interval),
                        f"{gpus.value:.3f}",
                        f"{worst.value:.2f}",
                        "-"
                        if rule == CONTROL
                        else percent(
                            results.change(SUITE, "slowdown_worst_tenant", **labels), sign=True
                        ),
                    )
                )
    table = Table(
        title="Jain index of the tenants' mean slowdowns, and the worst-served tenant",
        caption=f"{results.seeds(SUITE)} seeds; differences paired by seed, 95 % t intervals.",
        header=(
            "world",
            "scheduler",
            "rule",
            "Jain, slowdown",
            "change by the rule",
            "Jain, GPU share",
            "worst slowdown",
            "change by the rule",
        ),
        rows=tuple(rows),
    )
    return Section(
        suite=SUITE,
        title="Fairness between tenants",
        text=(
            "Slowdown is completion time over the time the job would take alone to its own end. "
            "A tenant who hides declines reports the best score so far in place of the newest: "
            "its hacking jobs are not found, and cost the others what they would have cost "
            "anyway."
        ),
        exhibits=(table,),
    )
