"""The main table: RLHF-heavy, six base schedulers, three stop rules and ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalstop.experiments.grid import (
    BASES,
    EVALSTOP,
    FIGURE_HEADER,
    RULES,
    cells,
    figure_texts,
    percent,
    plan_of,
    sweep_chart,
)
from evalstop.experiments.results import CONTROL
from evalstop.metrics.stats import holm_adjusted
from evalstop.reports.exhibits import Chart, Line, Section, Table
from evalstop.workloads.scenarios import PAPER

if TYPE_CHECKING:
    from evalstop.experiments.results import Results
    from evalstop.experiments.spec import Plan

__all__ = ["SUITE", "plan", "section"]

SUITE = "main"
FRACTIONS = (0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.8, 0.9)


def plan(*, quick: bool) -> Plan:
    """Return the plan."""
    grid = cells(SUITE, PAPER, BASES, RULES)
    for fraction in FRACTIONS:
        rules = {CONTROL: "none", "StopAt": f"rlhf=stop-at:fraction={fraction};*=none"}
        grid += cells(SUITE, PAPER, ("srtf-est",), rules, fraction=fraction)
    return plan_of(SUITE, "RLHF-heavy, six schedulers", grid, quick=quick, few=8)


def section(results: Results) -> Section:
    """Return the table, the tests and the figures."""
    return Section(
        suite=SUITE,
        title="RLHF-heavy: six base schedulers, with and without early stopping",
        text=(
            "The scenario paper: 200 jobs on 64 GPUs, 80 % RLHF, 60 % of it hacking. Every rule "
            "meets the same jobs. StopAt and LossPlateau stop RLHF jobs. Under Pollux jobs can "
            "be resized; everywhere else they are rigid."
        ),
        exhibits=(
            _table(results),
            _tests(results),
            _bars(results),
            sweep_chart(
                results,
                SUITE,
                "fraction",
                "precision",
                title="StopAt is a constant classifier: its precision is the base rate",
                x_label="share of the estimated service at which every RLHF job is stopped",
                rules=["StopAt"],
                marks=(("share of hacking among RLHF", 0.6),),
            ),
            sweep_chart(
                results,
                SUITE,
                "fraction",
                "jct_mean_s",
                title="What StopAt gains grows as it stops earlier, right or wrong",
                x_label="share of the estimated service at which every RLHF job is stopped",
                rules=["StopAt"],
            ),
        ),
    )


def _table(results: Results) -> Table:
    rows = [
        (base, rule, *figure_texts(results, SUITE, {"scheduler": base, "rule": rule}))
        for base in BASES
        for rule in RULES
        if rule != CONTROL
    ]
    return Table(
        title="Change against the same scheduler without a rule",
        caption=f"{results.seeds(SUITE)} seeds; 95 % intervals.",
        header=("scheduler", "rule", *FIGURE_HEADER),
        rows=tuple(rows),
    )


def _tests(results: Results) -> Table:
    settings = [(base, rule) for base in BASES for rule in RULES if rule != CONTROL]
    figures = ("jct_mean_s", "jct_completed_mean_s", "gpu_hours_hacking", "gpu_hours_wasted")
    columns = []
    for figure in figures:
        tests = [
            results.paired(SUITE, figure, scheduler=base, rule=rule) for base, rule in settings
        ]
        adjusted = holm_adjusted([test.p_value for test in tests])
        columns.append(
            [
                f"{p:.2g} (d {test.effect_size:+.1f})"
                for p, test in zip(adjusted, tests, strict=True)
            ]
        )
    return Table(
        title="Paired t tests by seed: p after Holm's correction within a column, and Cohen's d",
        caption=f"{len(settings)} tests a column, {results.seeds(SUITE)} pairs each.",
        header=("scheduler", "rule", *FIGURE_HEADER[:4]),
        rows=tuple((*setting, *row) for setting, *row in zip(settings, *columns, strict=True)),
    )


def _bars(results: Results) -> Chart:
    lines = []
    for rule in RULES:
        if rule == CONTROL:
            continue
        found = [results.change(SUITE, "jct_mean_s", scheduler=base, rule=rule) for base in BASES]
        lines.append(
            Line(
                label=rule,
                x=BASES,
                y=tuple(one.value for one in found),
                low=tuple(one.low for one in found),
                high=tuple(one.high for one in found),
            )
        )
    evalstop = results.change(SUITE, "jct_mean_s", scheduler="srtf-est", rule=EVALSTOP)
    return Chart(
        name="main-jct",
        title="Mean job completion time under six schedulers",
        caption=f"EvalStop over srtf-est: {percent(evalstop, sign=True)}; the paper has -9.4 %.",
        x_label="base scheduler",
        y_label="mean JCT, change",
        lines=tuple(lines),
        kind="bars",
        marks=(("paper, srtf-est", -0.094),),
    )
