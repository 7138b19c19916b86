"""`scan` on many curves at once: the same numbers as the stream, for replaying fleets."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evalstop.detectors.bank import Bank, bank_at
from evalstop.detectors.scatter import (
    FIRST_ESTIMATE,
    FIRST_EXCESS,
    LEVELS,
    SLOPES,
    TRIMMED,
    TRIMMED_LAG,
    TURNS,
)

__all__ = ["statistics"]

Array = NDArray[np.float64]

_CAP = 600.0


def statistics(scores: Array, variances: Array | None = None, *, first: int = 3) -> Array:
    """Return the statistic of `Scan` after each evaluation of each curve, (runs, evals).

    Args:
        scores: finite scores, higher is better, (runs, evals).
        variances: squared reported errors, all > 0, (runs, evals); None if unknown, in which case
            the error is estimated from the curve.
        first: evaluations before which the statistic is left at 0.
    """
    runs, evals = scores.shape
    result = np.zeros((runs, evals))
    if variances is None:
        noise = _estimated(scores)
        first = max(first, FIRST_ESTIMATE)
    else:
        noise = _excess(scores, np.cumsum(variances, axis=1))
    steady = variances is not None and bool((variances == variances[:, :1]).all())
    for count in range(first, evals + 1):
        bank = bank_at(count)
        window = slice(count - bank.span, count)
        power = (scores[:, window] - scores[:, count - 1 : count]) @ bank.filters.T
        np.maximum(power, 0.0, out=power)
        power *= power
        factor = noise[:, count - 1 : count]
        if variances is None:
            freedom = (count - 1) / 2.0
            with np.errstate(divide="ignore", invalid="ignore"):
                power /= factor * freedom
            np.log1p(power, out=power)
            power *= freedom
        elif steady:
            power /= variances[:, :1] * factor
        else:
            power /= (variances[:, window] @ bank.squares.T) * factor
        result[:, count - 1] = _mixed(bank, power)
    if variances is None:
        result[noise == 0.0] = 0.0
    return result


def _mixed(bank: Bank, power: Array) -> Array:
    power *= bank.gain
    power += bank.offset
    np.minimum(power, _CAP, out=power)
    np.exp(power, out=power)
    logs: Array = np.log(power.sum(axis=1))
    return logs


def _estimated(scores: Array) -> Array:
    """Return `scatter.estimated` after each evaluation, 0.0 where it says nothing."""
    counts = np.arange(1, scores.shape[1] + 1)
    falls = np.abs(np.diff(scores, axis=1))
    bends = np.abs(np.diff(scores, n=2, axis=1))
    levels = np.zeros_like(scores)
    slopes = np.zeros_like(scores)
    np.cumsum(falls[:, 1:] * falls[:, :-1], axis=1, out=levels[:, 2:])
    np.cumsum(bends[:, 2:] * bends[:, :-2], axis=1, out=slopes[:, 4:])
    levels /= np.maximum(counts - 2, 1) * LEVELS
    slopes /= np.maximum(counts - 4, 1) * SLOPES
    joined: Array = np.sqrt(levels * slopes)
    return joined


def _excess(scores: Array, reported: Array) -> Array:
    """Return `scatter.excess` after each evaluation; ``reported`` sums the variances."""
    counts = np.arange(1, scores.shape[1] + 1)
    falls = np.diff(scores, axis=1)
    sizes = np.abs(falls)
    smaller = np.minimum(sizes[:, 1:], sizes[:, :-1])
    turns = np.where(falls[:, 1:] * falls[:, :-1] < 0.0, smaller * smaller, 0.0)
    factor = np.ones_like(scores)
    late = slice(FIRST_EXCESS - 1, None)
    trimmed = (np.cumsum(turns, axis=1) - np.maximum.accumulate(turns, axis=1))[
        :, FIRST_EXCESS - 3 :
    ]
    chance = (reported / counts)[:, late] * (TURNS - TRIMMED / (counts[late] + TRIMMED_LAG))
    np.maximum(1.0, trimmed / (counts[late] - 2) / chance, out=factor[:, late])
    return factor
