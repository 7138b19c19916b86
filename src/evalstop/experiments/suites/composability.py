"""Does the gain compose over every base scheduler, and over EvalStop itself?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalstop.experiments.grid import EVALSTOP, FIGURE_HEADER, cells, figure_texts, plan_of
from evalstop.experiments.results import CONTROL
from evalstop.reports.exhibits import Section, Table
from evalstop.workloads.scenarios import PAPER

if TYPE_CHECKING:
    from evalstop.experiments.results import Results
    from evalstop.experiments.spec import Plan

__all__ = ["SUITE", "plan", "section"]

SUITE = "composability"
MORE = ("fifo-backfill", "srsf-est", "tiresias:promote=2")
RULES = {CONTROL: "none", EVALSTOP: "paper"}


def plan(*, quick: bool) -> Plan:
    """Return the plan."""
    grid = cells(SUITE, PAPER, MORE, RULES)
    return plan_of(SUITE, "Further base schedulers", grid, quick=quick)


def section(results: Results) -> Section:
    """Return the table."""
    rows = tuple(
        (base, *figure_texts(results, SUITE, {"scheduler": base, "rule": EVALSTOP}))
        for base in MORE
    )
    table = Table(
        title="Change by EvalStop over further schedulers",
        caption=f"{results.seeds(SUITE)} seeds; 95 % intervals.",
        header=("scheduler", *FIGURE_HEADER),
        rows=rows,
    )
    return Section(
        suite=SUITE,
        title="Composability: further base schedulers",
        text="Beside the six of the main table: backfilling, smallest service first, promotion.",
        exhibits=(table,),
    )
