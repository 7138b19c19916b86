"""`evalstop.detectors.scatter` on many curves at once: after each evaluation, (evals, runs).

Runs lie side by side: their numbers are added and compared a whole evaluation at a time.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from evalstop.detectors.scatter import (
    CUT,
    FIRST_CORRELATED,
    FIRST_CORRELATION,
    FIRST_EXCESS,
    LARGER,
    LARGEST_CORRELATION,
    LEVELS,
    SLACK,
    SLOPES,
    chance_of_estimate,
    chance_of_turns,
)

__all__ = ["correlations", "estimates", "excesses", "running_sums"]

Array = NDArray[np.float64]

_FIRST_SLOPE = 5
"""Scores in which there are two second differences, two apart."""


def running_sums(terms: Array) -> Array:
    """Return the sums so far, overwriting ``terms``: a row at a time, for `cumsum` takes longer."""
    for before, after in pairwise(terms):
        np.add(before, after, out=after)
    return terms


def estimates(curves: Array) -> Array:
    """Return `scatter.estimated` after each evaluation, 0.0 where it says nothing."""
    found = np.zeros_like(curves)
    if len(curves) < _FIRST_SLOPE:
        return found
    counts = np.arange(_FIRST_SLOPE, len(curves) + 1)[:, None]
    steps = curves[1:] - curves[:-1]
    bends = np.abs(steps[1:] - steps[:-1])
    np.abs(steps, out=steps)
    levels = running_sums(steps[1:] * steps[:-1])[_FIRST_SLOPE - 3 :]
    slopes = running_sums(bends[2:] * bends[:-2])
    levels /= (counts - 2) * LEVELS
    slopes /= (counts - 4) * SLOPES
    np.minimum(levels, slopes, out=found[_FIRST_SLOPE - 1 :])
    return found


def excesses(curves: Array, reported: Array) -> Array:
    """Return `scatter.excess` after each evaluation; ``reported``: mean variance so far."""
    factor = np.ones_like(curves)
    late = slice(FIRST_EXCESS - 1, None)
    counts = np.arange(FIRST_EXCESS, len(curves) + 1)
    if not counts.size:
        return factor
    steps = curves[1:] - curves[:-1]
    turning = steps[1:] * steps[:-1] < 0.0
    np.abs(steps, out=steps)
    turns = np.minimum(steps[1:], steps[:-1])
    turns *= turns
    turns *= turning
    total, sharpest = np.zeros((2, curves.shape[1]))
    for turn in turns:
        total += turn
        np.maximum(sharpest, turn, out=sharpest)
        np.subtract(total, sharpest, out=turn)
    turned = turns[FIRST_EXCESS - 3 :]
    turned /= [[(count - 2) * chance_of_turns(count)] for count in counts.tolist()]
    found = estimates(curves)[late]
    found /= [[chance_of_estimate(count)] for count in counts.tolist()]
    np.minimum(found, turned, out=found)
    found /= reported[late]
    np.maximum(1.0, found, out=factor[late])
    return factor


def correlations(curves: Array, so_far: Array, *, known: bool) -> Array:
    """Return `scatter.correlation` after each evaluation.

    Args:
        curves: (evals, runs).
        so_far: variance of one evaluation as known by then, (evals, runs).
        known: whether it was reported.
    """
    result = np.zeros_like(curves)
    late = slice(FIRST_CORRELATION - 1, None)
    counts = np.arange(FIRST_CORRELATION, len(curves) + 1)[:, None]
    if not counts.size:
        return result
    cut = CUT * so_far[1:]
    steps = curves[1:] - curves[:-1]
    steps *= steps
    np.minimum(steps, cut, out=steps)
    hops = curves[FIRST_CORRELATED - 1 :] - curves[FIRST_CORRELATED - 3 : -2]
    hops *= hops
    np.minimum(hops, cut[FIRST_CORRELATED - 2 :], out=hops)
    # As differences, that is from the second score on, and the third.
    early = steps[: FIRST_CORRELATED - 2].sum(axis=0)
    near = running_sums(steps[FIRST_CORRELATED - 2 :])[FIRST_CORRELATION - FIRST_CORRELATED :]
    found = running_sums(hops)[FIRST_CORRELATION - FIRST_CORRELATED :]
    still = near == 0.0
    found /= np.where(still, 1.0, near)
    found -= 1.0
    root = np.sqrt(counts)
    if known:
        by_steps = near + early
        by_steps /= -2.0 * (counts - 1) * so_far[late]
        by_steps += 1.0
        np.copyto(found, (found + by_steps) / 2.0, where=by_steps >= -LARGER / root)
    found -= SLACK / root
    found[still] = 0.0
    np.clip(found, 0.0, LARGEST_CORRELATION, out=result[late])
    return result
