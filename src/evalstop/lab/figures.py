"""Figures of the recorded runs: curves by arm, gold and proxy over distance, rules compared."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from evalstop.lab.labels import smoothed
from evalstop.lab.law import fit_law, gold_of_distance, has_proxy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from evalstop.lab.proof import RuleProof
    from evalstop.lab.series import LabRun

__all__ = ["draw_curves", "draw_law", "draw_rules"]

_COLOURS = {"healthy": "#2a7f62", "over-optimised": "#b3423a", "open": "#6b6b6b"}
_COLUMNS = 4


def _save(figure: Figure, file: Path) -> None:
    figure.tight_layout()
    # No date and no random ids in the file: the same runs give the same bytes.
    with rc_context({"svg.hashsalt": "evalstop"}):
        figure.savefig(file, metadata={"Date": None})


def _by_arm(runs: Sequence[LabRun]) -> dict[str, list[LabRun]]:
    grouped: dict[str, list[LabRun]] = {}
    for run in sorted(runs, key=lambda run: (run.construction, run.arm, run.seed)):
        grouped.setdefault(run.arm, []).append(run)
    return grouped


def draw_curves(runs: Sequence[LabRun], file: Path) -> None:
    """Draw each arm's true score over steps, one line a seed, coloured by construction."""
    arms = _by_arm(runs)
    rows = -(-len(arms) // _COLUMNS)
    figure = Figure(figsize=(3.2 * _COLUMNS, 2.3 * rows))
    axes: Any = figure.subplots(rows, _COLUMNS, sharex=True, squeeze=False)
    for axis, name in zip_longest(axes.flat, arms):
        if name is None:
            axis.set_axis_off()
            continue
        for run in arms[name]:
            axis.plot(
                run.steps, smoothed(run.true_scores()), color=_COLOURS[run.construction], lw=0.9
            )
        first = arms[name][0]
        axis.set_title(f"{name} ({first.construction})", fontsize=8)
        axis.set_ylabel("log-likelihood" if first.job_type == "sft" else "gold", fontsize=7)
        axis.tick_params(labelsize=7)
    figure.supxlabel("optimiser steps", fontsize=9)
    _save(figure, file)


def draw_law(runs: Sequence[LabRun], file: Path) -> None:
    """Draw gold and proxy over d = sqrt(KL) for the arms that optimise a proxy, with the fit."""
    arms = {name: members for name, members in _by_arm(runs).items() if has_proxy(members[0])}
    rows = -(-len(arms) // _COLUMNS)
    figure = Figure(figsize=(3.2 * _COLUMNS, 2.4 * rows))
    axes: Any = figure.subplots(rows, _COLUMNS, squeeze=False)
    for axis, name in zip_longest(axes.flat, arms):
        if name is None:
            axis.set_axis_off()
            continue
        members = arms[name]
        fit = fit_law(members)
        beside = axis.twinx()
        for run in members:
            distance = np.sqrt(np.maximum(run.kl, 0.0))
            axis.plot(distance, run.gold - fit.start, ".", ms=2, color="#b3423a", alpha=0.6)
            beside.plot(distance, run.proxy - run.proxy[0], ".", ms=2, color="#4a6fa5", alpha=0.3)
        grid = np.linspace(0.0, np.sqrt(fit.largest_kl), 200)
        axis.plot(grid, gold_of_distance(grid, fit.alpha, fit.beta), color="black", lw=1)
        axis.set_title(f"{name}: R² = {fit.r_squared:.2f}", fontsize=8)
        axis.tick_params(labelsize=7)
        beside.tick_params(labelsize=7, colors="#4a6fa5")
    figure.supxlabel("d = √KL to the start; red: gold gained, blue: proxy gained", fontsize=9)
    _save(figure, file)


def draw_rules(proofs: Sequence[RuleProof], file: Path) -> None:
    """Draw each rule's false stops and finds with their Wilson intervals."""
    figure = Figure(figsize=(7.0, 0.5 + 0.42 * len(proofs)))
    axis: Any = figure.subplots()
    places = np.arange(len(proofs))[::-1]
    shares = (
        ("healthy runs stopped", "#b3423a", [proof.false_stops_measured for proof in proofs], 0.13),
        ("declined runs found", "#2a7f62", [proof.found for proof in proofs], -0.13),
    )
    for label, colour, counted, shift in shares:
        values = [share.value or 0.0 for share in counted]
        low = [value - share.low for value, share in zip(values, counted, strict=True)]
        high = [share.high - value for value, share in zip(values, counted, strict=True)]
        axis.errorbar(
            values,
            places + shift,
            xerr=[np.maximum(low, 0.0), np.maximum(high, 0.0)],
            fmt="o",
            ms=4,
            capsize=2,
            color=colour,
            label=label,
        )
    axis.set_yticks(places, [proof.rule for proof in proofs], fontsize=8)
    axis.set_xlim(-0.02, 1.02)
    axis.set_xlabel("share (95 % Wilson)", fontsize=8)
    axis.legend(fontsize=8, loc="center right")
    axis.grid(axis="x", alpha=0.3)
    _save(figure, file)
