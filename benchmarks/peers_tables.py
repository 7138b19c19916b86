"""The tables of docs/peers.md, from cells."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from evalstop.experiments.detection.worlds import CONTROLS, DECLINING
from evalstop.metrics.stats import wilson_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from evalstop.experiments.detection.bench import Cell

PROMISED = ("flat", "saturating", "slow-rise", "late-bloomer")
SHARED_SIGMAS = (0.01, 0.05, 0.12)
"""Noises at which libraries are run too: tables of all rules pool these and no others."""

BY_ITEMS = ("paired", "optuna:wilcoxon", "optuna:wilcoxon:p=0.001")
HEAD = (
    "| rule | found | healthy stopped | precision | before the peak "
    "| delay | reclaimed | regret |\n"
    "|---|--:|--:|--:|--:|--:|--:|--:|"
)


class Pooled(Struct, frozen=True, kw_only=True):
    """Counts over cells, and means weighted by declining runs."""

    bad: int = 0
    good: int = 0
    found: int = 0
    false: int = 0
    early: int = 0
    delay: float = math.nan
    reclaimed: float = math.nan
    regret: float = math.nan


def pooled(cells: Iterable[Cell]) -> Pooled:
    """Add cells up; rates times their own counts are whole numbers again."""
    totals = dict.fromkeys(("bad", "good", "found", "false", "early"), 0)
    sums = {"delay": (0.0, 0), "reclaimed": (0.0, 0), "regret": (0.0, 0)}
    for cell in cells:
        bad = round(cell.base_rate * cell.n)
        good = cell.n - bad
        late = 0
        totals["good"] += good
        totals["false"] += round(cell.fpr * good) if good else 0
        if bad:
            found, early = round(cell.recall * bad), round(cell.early_rate * bad)
            late = found - early
            totals["bad"] += bad
            totals["found"] += found
            totals["early"] += early
        for name, value, weight in (
            ("delay", cell.delay_evals_mean, late),
            ("reclaimed", cell.reclaimed_fraction, bad),
            ("regret", cell.regret_mean, bad),
        ):
            if weight and math.isfinite(value):
                total, of = sums[name]
                sums[name] = total + weight * value, of + weight
    means = {name: total / of if of else math.nan for name, (total, of) in sums.items()}
    return Pooled(**totals, **means)


def share(hits: int, of: int) -> str:
    """Return a share in percent with its Wilson interval."""
    if not of:
        return "-"
    low, high = wilson_interval(hits, of)
    return f"{100 * hits / of:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def number(value: float, form: str) -> str:
    """Return a number, a dash where there is none."""
    return "-" if math.isnan(value) else format(value, form)


def whole_row(rule: str, cells: Sequence[Cell]) -> str:
    """Return every figure of one rule over some cells."""
    sums = pooled(cells)
    parts = (
        f"`{rule}`",
        share(sums.found, sums.bad),
        share(sums.false, sums.good),
        share(sums.found, sums.found + sums.false),
        share(sums.early, sums.bad),
        number(sums.delay, ".1f"),
        number(100 * sums.reclaimed, ".0f"),
        number(sums.regret, ".3f"),
    )
    return f"| {' | '.join(parts)} |"


def rules_of(cells: Iterable[Cell], without: Sequence[str] = ()) -> list[str]:
    """Return rules in the order in which they came."""
    return [rule for rule in dict.fromkeys(cell.rule for cell in cells) if rule not in without]


def crossed(
    cells: Sequence[Cell],
    column: Callable[[Cell], Any],
    value: Callable[[Pooled], str],
    without: Sequence[str] = (),
) -> str:
    """Return a table of rules by something, each entry pooled over all else."""
    heads = list(dict.fromkeys(column(cell) for cell in cells))
    lines = [f"| rule | {' | '.join(map(str, heads))} |", f"|---|{'--:|' * len(heads)}"]
    for rule in rules_of(cells, without):
        own = [cell for cell in cells if cell.rule == rule]
        entries = [value(pooled([c for c in own if column(c) == head])) for head in heads]
        lines.append(f"| `{rule}` | {' | '.join(entries)} |")
    return "\n".join(lines)


def found(sums: Pooled) -> str:
    """Return declines found and healthy runs stopped, in whole percent."""
    entries = [
        f"{100 * hits / of:.0f}" if of else "-"
        for hits, of in ((sums.found, sums.bad), (sums.false, sums.good))
    ]
    return " / ".join(entries)


def stopped(sums: Pooled) -> str:
    """Return healthy runs stopped."""
    return share(sums.false, sums.good)


def tables(cells: Sequence[Cell], real: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the generated parts of the page by name."""
    all_noises = [c for c in cells if c.rho == 0.0 and c.stderr_reported == "true"]
    plain = [c for c in all_noises if c.sigma in SHARED_SIGMAS]
    declines = [c for c in plain if c.world in DECLINING]
    mixed = [c for c in declines if c.base_rate == 0.6]
    healthy = [c for c in plain if c.world in PROMISED]
    same_cells = [c for c in mixed if c.sigma == 0.05]
    by_noise = [c for c in all_noises if c.world in DECLINING and c.base_rate == 0.6]
    return {
        "counted": counted(cells),
        "whole": "\n".join(
            [
                HEAD,
                *(
                    whole_row(r, [c for c in mixed if c.rule == r])
                    for r in rules_of(mixed, BY_ITEMS)
                ),
            ]
        ),
        "items": "\n".join(
            [HEAD]
            + [whole_row(r, [c for c in same_cells if c.rule == r]) for r in ("default", *BY_ITEMS)]
        ),
        "cadence": crossed(mixed, lambda c: f"{c.n_evals} evals", found, BY_ITEMS),
        "noise": crossed(by_noise, lambda c: f"sigma {c.sigma:g}", found, BY_ITEMS),
        "shape": crossed(mixed, lambda c: c.world, found, BY_ITEMS),
        "fraction": crossed(
            declines,
            lambda c: f"{c.base_rate:.0%} decline",
            lambda sums: share(sums.found, sums.found + sums.false),
            BY_ITEMS,
        ),
        "healthy": crossed(healthy, lambda c: f"{c.n_evals} evals", stopped, BY_ITEMS),
        "controls": crossed(
            [c for c in plain if c.world in CONTROLS and c.n_evals == 20],
            lambda c: c.world,
            lambda sums: f"{100 * sums.false / sums.good:.1f}" if sums.good else "-",
            BY_ITEMS,
        ),
        "autocorrelation": autocorrelation(cells),
        "errors": errors(cells),
        "worst": worst(cells),
    } | ({"real": real_table(real)} if real else {})


def counted(cells: Sequence[Cell]) -> str:
    """Return what was run."""
    libraries = sorted({cell.library for cell in cells if cell.library})
    places = {(c.world, c.n_evals, c.sigma, c.rho, c.stderr_reported) for c in cells}
    own = max(cell.n for cell in cells if not cell.library)
    theirs = max(cell.n for cell in cells if cell.library)
    return (
        f"{len(places):,} cells, {len(cells):,} rows, up to {own} curves of each kind in a cell "
        f"for evalstop's rules and {theirs} for libraries. Libraries: {', '.join(libraries)}.\n"
    )


def autocorrelation(cells: Sequence[Cell]) -> str:
    """Return what autocorrelated noise does."""
    known = [c for c in cells if c.stderr_reported == "true" and c.base_rate in (0.0, 0.6)]
    chosen = [c for c in known if c.world in (*PROMISED, *DECLINING) and c.sigma == 0.05]
    return crossed(chosen, lambda c: f"rho {c.rho:g}", found, BY_ITEMS)


def errors(cells: Sequence[Cell]) -> str:
    """Return rules that use the reported error, by what is reported of it."""
    rules = {c.rule for c in cells if c.stderr_reported == "unknown"}
    own = [c for c in cells if c.rule in rules and c.rho == 0.0 and c.base_rate in (0.0, 0.6)]
    falling = [c for c in own if c.world in DECLINING]
    healthy = [c for c in own if c.world in PROMISED]
    names = {"true": "known", "understated": "reported at 2/3", "unknown": "unknown"}

    def name(cell: Cell) -> str:
        return names[cell.stderr_reported]

    return (
        "Declines found:\n\n"
        + crossed(falling, name, lambda sums: share(sums.found, sums.bad))
        + "\n\nHealthy curves stopped:\n\n"
        + crossed(healthy, name, stopped)
    )


def worst(cells: Sequence[Cell]) -> str:
    """Return the cells in which the default stops most healthy runs, by kind of report."""
    lines = [
        "| error | rho | world | evals | sigma | healthy stopped |",
        "|---|---|---|--:|--:|--:|",
    ]
    own = [c for c in cells if c.rule == "default" and c.world in PROMISED and c.n]
    for report in ("true", "understated", "unknown"):
        for rho in (0.0, 0.3, 0.6):
            here = [c for c in own if c.stderr_reported == report and c.rho == rho]
            if here:
                top = max(here, key=lambda c: c.fpr)
                lines.append(
                    f"| {report} | {rho:g} | {top.world} | {top.n_evals} | {top.sigma:g} "
                    f"| {share(round(top.fpr * top.n), top.n)} |"
                )
    return "\n".join(lines)


def real_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return rules and libraries on real runs."""
    first = rows[0]
    lines = [
        f"{first['healthy']} healthy, {first['plateau']} plateau, {first['declined']} declined.\n",
        "| rule | healthy stopped | plateau stopped | declined found | saved | regret |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| `{row['rule']}` | {share(row['stopped_healthy'], row['healthy'])} "
        f"| {share(row['stopped_plateau'], row['plateau'])} "
        f"| {share(row['found'], row['declined'])} | {100 * row['saved_mean']:.0f} % "
        f"| {row['regret_share_mean']:.3f} |"
        for row in rows
    ]
    return "\n".join(lines)
