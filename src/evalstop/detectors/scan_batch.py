"""`scan` on many curves at once: the same numbers as the stream, for replaying fleets."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from evalstop.detectors.bands import bands_at
from evalstop.detectors.bank import MOST, REACH
from evalstop.detectors.scatter import FIRST_ESTIMATE
from evalstop.detectors.scatter_batch import correlations, estimates, excesses, running_sums
from evalstop.detectors.slump import LAST_SLUMP, mixed_with_slump

__all__ = ["ROWS", "by_eval", "statistics"]

Array = NDArray[np.float64]

ROWS = 704
"""Curves at a time: what they need fits into a processor's cache."""

_LARGE = math.exp(570.0)
"""Average evidence below which no filter's can be as large: the least weight is e^-23."""


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
    found = np.zeros_like(scores)
    for start in range(0, scores.shape[0], ROWS):
        rows = slice(start, start + ROWS)
        errors = None if variances is None else np.ascontiguousarray(variances[rows].T)
        found[rows] = by_eval(np.ascontiguousarray(scores[rows].T), errors, first=first).T
    return found


def by_eval(
    curves: Array, variances: Array | None, *, noise: Array | None = None, first: int = 3
) -> Array:
    """Return `statistics` of a block of curves, best of `ROWS` of them; arrays are (evals, runs).

    Args:
        curves: the scores.
        variances: as `statistics` takes them.
        noise: the estimates where there are no variances, if they have been asked for.
        first: as `statistics` takes it.
    """
    counts = np.arange(1, len(curves) + 1)[:, None]
    uneven = None
    if variances is None:
        noise = estimates(curves) if noise is None else noise
        so_far = np.zeros_like(curves)
        so_far[1:] = noise[:-1]
        rho = correlations(curves, so_far, known=False)
        # As `Bank.tamed`: squares over the degrees of freedom of the estimate.
        unit = np.where(noise > 0.0, noise, 1.0) / (1.0 - rho)
        unit *= (counts - 1) / 2.0
        first = max(first, FIRST_ESTIMATE)
    else:
        steady = bool((variances == variances[:1]).all())
        so_far = variances if steady else running_sums(variances.copy()) / counts
        rho = correlations(curves, so_far, known=True)
        unit = excesses(curves, so_far)
        if steady:
            unit *= variances
        else:
            uneven = variances
    powers = np.empty((len(curves), 4, curves.shape[1]))
    powers[:, 0] = unit
    for power in (1, 2, 3):
        np.multiply(powers[:, power - 1], rho, out=powers[:, power])
    # Filters add up to nothing, so any level will do that keeps the sums exact.
    level = curves - curves[:1]
    totals = _totals(level, powers, uneven, first=first, known=variances is not None)
    found: Array = np.log(totals, out=totals)
    if noise is not None:
        for count in range(first, min(len(curves), LAST_SLUMP) + 1):
            found[count - 1] = mixed_with_slump(found[count - 1], curves[:count].T)
        found[noise == 0.0] = 0.0
    return found


def _totals(
    curves: Array, powers: Array, uneven: Array | None, *, first: int, known: bool
) -> Array:
    """Return the average evidence after each evaluation, 1 before the first: (evals, runs).

    Runs lie side by side, for processors add and multiply numbers that do.

    Args:
        curves: (evals, runs).
        powers: of autocorrelation, times the variance of one evaluation: (evals, 4, runs).
        uneven: variances by which to multiply those, (evals, runs).
        first: evaluations before which nothing is asked.
        known: whether the variances are.
    """
    evals, runs = curves.shape
    totals = np.ones((evals, runs))
    most = bands_at(REACH)
    # Powers of two are faster than those of e, where a multiplication is needed in any case.
    bits = 1.0 if known else 1.0 / math.log(2.0)
    gains = np.repeat(bits * most.gain, 1 if known else runs, axis=1)
    room = np.empty((2 if uneven is None else 3, most.weights.size, runs))

    def add_up(count: int, ceiling: float = math.inf) -> None:
        bands = bands_at(min(count, REACH))
        filters = bands.weights.size
        evidence, errors = room[:2, :filters]
        bands.answers(curves[:count], evidence)
        np.maximum(evidence, 0.0, out=evidence)
        np.multiply(evidence, evidence, out=evidence)
        bands.swell(powers[count - 1], errors, tamed=not known)
        if uneven is not None:
            bands.variances(uneven[:count], room[2, :filters])
            np.multiply(errors, room[2, :filters], out=errors)
        np.divide(evidence, errors, out=evidence)
        if not known:
            np.log1p(evidence, out=evidence)
            np.multiply(evidence, gains[:filters], out=evidence)
            np.multiply(evidence, (count - 1) / 2.0, out=evidence)
        if ceiling < math.inf:
            np.minimum(evidence, ceiling, out=evidence)
        (np.exp if known else np.exp2)(evidence, out=evidence)
        np.matmul(bands.weights, evidence, out=totals[count - 1])

    with np.errstate(over="ignore"):  # made good below
        for count in range(first, evals + 1):
            add_up(count)
    for index in np.flatnonzero((totals >= _LARGE).any(axis=1)).tolist():
        add_up(index + 1, bits * MOST)
    return totals
