"""`scan` on many curves at once: the same numbers as the stream, for replaying fleets."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from evalstop.detectors.bands import bands_at
from evalstop.detectors.bank import MOST, REACH
from evalstop.detectors.scatter import (
    CUT,
    FIRST_CORRELATED,
    FIRST_CORRELATION,
    FIRST_ESTIMATE,
    FIRST_EXCESS,
    LARGER,
    LARGEST_CORRELATION,
    LEVELS,
    SLACK,
    SLOPES,
    chance_of_estimate,
    chance_of_turns,
)
from evalstop.detectors.slump import LAST_SLUMP, mixed_with_slump

__all__ = ["ROWS", "estimates", "excesses", "statistics"]

Array = NDArray[np.float64]

ROWS = 896
"""Curves at a time: what they need fits into a processor's cache."""

_LARGE = math.exp(570.0)
"""Average evidence below which no filter's can be as large: the least weight is e^-23."""


def statistics(
    scores: Array,
    variances: Array | None = None,
    *,
    noise: Array | None = None,
    first: int = 3,
) -> Array:
    """Return the statistic of `Scan` after each evaluation of each curve, (runs, evals).

    Of curves, that is, which never lie far below their start (`evalstop.core.collapse`): of others
    an evaluation may have to be left out.

    Args:
        scores: finite scores, higher is better, (runs, evals).
        variances: squared reported errors, all > 0, (runs, evals); None if unknown, in which case
            the error is estimated from the curve.
        noise: what `estimates` says of the scores, if it has been asked.
        first: evaluations before which the statistic is left at 0.
    """
    blocks = [
        _block(scores[start : start + ROWS], _rows(variances, start), _rows(noise, start), first)
        for start in range(0, scores.shape[0], ROWS)
    ]
    return np.concatenate(blocks) if blocks else np.zeros_like(scores)


def _rows(table: Array | None, start: int) -> Array | None:
    return None if table is None else table[start : start + ROWS]


def _block(scores: Array, variances: Array | None, noise: Array | None, first: int) -> Array:
    runs, evals = scores.shape
    counts = np.arange(1, evals + 1)
    if variances is None:
        noise = estimates(scores) if noise is None else noise
        so_far = np.concatenate([np.zeros((runs, 1)), noise[:, :-1]], axis=1)
        first = max(first, FIRST_ESTIMATE)
    else:
        so_far = np.cumsum(variances, axis=1) / counts
        noise = excesses(scores, so_far)
    rho = _correlations(scores, so_far, known=variances is not None)
    uneven = None
    if variances is None:
        # As `Bank.tamed`: squares over the degrees of freedom of the estimate.
        unit = np.where(noise > 0.0, noise, 1.0) / (1.0 - rho) * (counts - 1) / 2.0
    elif (variances == variances[:, :1]).all():
        unit = variances * noise
    else:
        unit, uneven = noise, np.ascontiguousarray(variances.T)
    powers = np.empty((evals, 4, runs))
    powers[:, 0] = unit.T
    for power in (1, 2, 3):
        np.multiply(powers[:, power - 1], rho.T, out=powers[:, power])
    # Filters add up to nothing, so any level will do that keeps the sums exact.
    curves = np.ascontiguousarray((scores - scores[:, :1]).T)
    with np.errstate(over="ignore"):  # made good where it happens
        totals = _totals(curves, powers, uneven, first=first, known=variances is not None)
    result = np.log(totals).T
    if variances is None:
        for count in range(first, min(evals, LAST_SLUMP) + 1):
            result[:, count - 1] = mixed_with_slump(result[:, count - 1], scores[:, :count])
        result[noise == 0.0] = 0.0
    return result


def _totals(
    curves: Array, powers: Array, uneven: Array | None, *, first: int, known: bool
) -> Array:
    """Return the average evidence after each evaluation, 1 before the first: (evals, runs).

    Runs lie side by side, for processors add and multiply numbers that do.

    Args:
        curves: (evals, runs).
        powers: of autocorrelation, times the variance of one evaluation: (evals, 4, runs).
        uneven: variances by which to divide besides, (evals, runs).
        first: evaluations before which nothing is asked.
        known: whether the variances are.
    """
    evals, runs = curves.shape
    totals = np.ones((evals, runs))
    gains = np.repeat(bands_at(REACH).gain, 1 if known else runs, axis=1)
    room = np.empty((2, gains.shape[0], runs))
    for count in range(first, evals + 1):
        bands = bands_at(min(count, REACH))
        evidence, errors = room[:, : bands.weights.size]
        total = totals[count - 1]
        for most in (math.inf, MOST):
            bands.answers(curves[:count], evidence)
            np.maximum(evidence, 0.0, out=evidence)
            np.multiply(evidence, evidence, out=evidence)
            bands.swell(powers[count - 1], errors, tamed=not known)
            np.divide(evidence, errors, out=evidence)
            if uneven is not None:
                bands.variances(uneven[:count], errors)
                np.divide(evidence, errors, out=evidence)
            if not known:
                np.log1p(evidence, out=evidence)
                np.multiply(evidence, gains[: bands.weights.size], out=evidence)
                np.multiply(evidence, (count - 1) / 2.0, out=evidence)
            if most < math.inf:
                np.minimum(evidence, most, out=evidence)
            np.exp(evidence, out=evidence)
            np.matmul(bands.weights, evidence, out=total)
            if total.max() < _LARGE:
                break
    return totals


def estimates(scores: Array) -> Array:
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
    return np.minimum(levels, slopes)


def excesses(scores: Array, reported: Array) -> Array:
    """Return `scatter.excess` after each evaluation; ``reported``: mean variance so far."""
    counts = np.arange(1, scores.shape[1] + 1)
    falls = np.diff(scores, axis=1)
    sizes = np.abs(falls)
    smaller = np.minimum(sizes[:, 1:], sizes[:, :-1])
    turns = np.where(falls[:, 1:] * falls[:, :-1] < 0.0, smaller * smaller, 0.0)
    factor = np.ones_like(scores)
    late = slice(FIRST_EXCESS - 1, None)
    trimmed = np.cumsum(turns, axis=1) - np.maximum.accumulate(turns, axis=1)
    turned = trimmed[:, FIRST_EXCESS - 3 :] / (counts[late] - 2)
    turned /= [chance_of_turns(count) for count in counts[late]]
    found = estimates(scores)[:, late] / [chance_of_estimate(count) for count in counts[late]]
    np.minimum(found, turned, out=found)
    found /= reported[:, late]
    np.maximum(1.0, found, out=factor[:, late])
    return factor


def _correlations(scores: Array, so_far: Array, *, known: bool) -> Array:
    """Return `scatter.correlation` after each evaluation; ``so_far``: variances known by then."""
    counts = np.arange(1, scores.shape[1] + 1)
    late = slice(FIRST_CORRELATION - 1, None)
    cut = CUT * so_far[:, 1:]
    steps = np.minimum(np.diff(scores, axis=1) ** 2, cut)
    hops = np.minimum((scores[:, 2:] - scores[:, :-2]) ** 2, cut[:, 1:])
    # As differences, that is from the second score on, and the third.
    begin = FIRST_CORRELATION - FIRST_CORRELATED
    near = np.cumsum(steps[:, FIRST_CORRELATED - 2 :], axis=1)[:, begin:]
    far = np.cumsum(hops[:, FIRST_CORRELATED - 3 :], axis=1)[:, begin:]
    found = np.divide(far, near, out=np.ones_like(far), where=near > 0.0) - 1.0
    root = np.sqrt(counts[late])
    if known:
        total = np.cumsum(steps, axis=1)[:, FIRST_CORRELATION - 2 :]
        by_steps = 1.0 - total / (2.0 * so_far[:, late] * (counts[late] - 1))
        np.copyto(found, (found + by_steps) / 2.0, where=by_steps >= -LARGER / root)
    found -= SLACK / root
    found[near == 0.0] = 0.0
    result = np.zeros_like(scores)
    np.clip(found, 0.0, LARGEST_CORRELATION, out=result[:, late])
    return result
