"""`scan` on many curves at once: the same numbers as the stream, for replaying fleets."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evalstop.detectors.bank import bank_at
from evalstop.detectors.scatter import (
    CUT,
    FIRST_CORRELATED,
    FIRST_CORRELATION,
    FIRST_ESTIMATE,
    FIRST_EXCESS,
    LARGEST_CORRELATION,
    LEVELS,
    SLACK,
    SLOPES,
    chance_of_estimate,
    chance_of_turns,
)

__all__ = ["estimates", "statistics"]

Array = NDArray[np.float64]

_ROWS = 1024
"""Curves at a time: what they need fits into a processor's cache."""


def statistics(scores: Array, variances: Array | None = None, *, first: int = 3) -> Array:
    """Return the statistic of `Scan` after each evaluation of each curve, (runs, evals).

    Of curves, that is, which never lie far below their start (`evalstop.core.collapse`): of others
    an evaluation may have to be left out.

    Args:
        scores: finite scores, higher is better, (runs, evals).
        variances: squared reported errors, all > 0, (runs, evals); None if unknown, in which case
            the error is estimated from the curve.
        first: evaluations before which the statistic is left at 0.
    """
    blocks = [
        _block(scores[start : start + _ROWS], _rows(variances, start), first)
        for start in range(0, scores.shape[0], _ROWS)
    ]
    return np.concatenate(blocks) if blocks else np.zeros_like(scores)


def _rows(variances: Array | None, start: int) -> Array | None:
    return None if variances is None else variances[start : start + _ROWS]


def _block(scores: Array, variances: Array | None, first: int) -> Array:
    runs, evals = scores.shape
    result = np.zeros((runs, evals))
    if variances is None:
        noise = estimates(scores)
        so_far = np.concatenate([np.zeros((runs, 1)), noise[:, :-1]], axis=1)
        first = max(first, FIRST_ESTIMATE)
    else:
        so_far = np.cumsum(variances, axis=1) / np.arange(1, evals + 1)
        noise = _excess(scores, so_far)
    correlations = _correlations(scores, so_far)
    steady = variances is not None and bool((variances == variances[:, :1]).all())
    # Filters add up to nothing, so any level will do that keeps the sums exact.
    centred = scores - scores[:, :1]
    for count in range(first, evals + 1):
        bank = bank_at(count)
        window = slice(count - bank.span, count)
        factor, rho = noise[:, count - 1], correlations[:, count - 1]
        if variances is None:
            variance = np.where(factor > 0.0, factor, np.inf) / (1.0 - rho)
        elif steady:
            variance = variances[:, 0] * factor
        else:
            variance = factor
        answers = centred[:, window] @ bank.filters.T
        answers *= (1.0 / np.sqrt(variance))[:, None]
        if variances is not None and not steady:
            answers /= np.sqrt(variances[:, window] @ bank.squares.T)
        correlated = rho > 0.0
        if correlated.any():
            answers[correlated] /= np.sqrt(bank.swell(rho[correlated]))
        if variances is None:
            bank.tamed(answers, (count - 1) / 2.0)
        result[:, count - 1] = bank.mixed(answers)
    if variances is None:
        result[noise == 0.0] = 0.0
    return result


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


def _excess(scores: Array, reported: Array) -> Array:
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


def _correlations(scores: Array, so_far: Array) -> Array:
    """Return `scatter.correlation` after each evaluation; ``so_far``: variances known by then."""
    counts = np.arange(1, scores.shape[1] + 1)
    falls = np.diff(scores, axis=1)[:, FIRST_CORRELATED - 2 :]
    hops = (scores[:, 2:] - scores[:, :-2])[:, FIRST_CORRELATED - 3 :]
    late = slice(FIRST_CORRELATED - 1, None)
    cut = CUT * so_far[:, late]
    near = np.cumsum(np.minimum(falls * falls, cut), axis=1)
    far = np.cumsum(np.minimum(hops * hops, cut), axis=1)
    found = np.zeros_like(scores)
    ratio = np.divide(far, near, out=np.zeros_like(far), where=near > 0.0)
    found[:, late] = ratio - 1.0 - SLACK / np.sqrt(counts[late])
    np.clip(found, 0.0, LARGEST_CORRELATION, out=found)
    found[:, : FIRST_CORRELATION - 1] = 0.0
    return found
