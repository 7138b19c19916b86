"""Evaluations far below the start on many curves: which wait, and which are left out.

What `Scan.absorb` does to one evaluation after another (R19), done to the next evaluation of many
curves at once. Where one has to be left out, its curve is judged anew without it: that is what
the stream does when it goes back to its state before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evalstop.core.collapse import FAR, FEWEST_OF_A_RANGE
from evalstop.detectors.scan import vagueness
from evalstop.detectors.scatter import FIRST_ESTIMATE
from evalstop.detectors.scatter_batch import estimates, excesses, running_sums

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Curves", "Falls", "falls", "packed", "without_left_out"]

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Places = NDArray[np.int64]

_TWO = 2
"""Evaluations that make sure of a collapse."""


class Curves(Struct, frozen=True, kw_only=True, eq=False):
    """Curves without gaps; arrays are (runs, evals).

    Attributes:
        scores: those kept, the first score after the end of a run.
        variances: squared errors, the first after the end; None if unknown.
        places: where each came from among all evaluations of its run.
        lengths: how many each run has, (runs,).
    """

    scores: Array
    variances: Array | None
    places: Places
    lengths: Places

    def of(self, rows: Places) -> Curves:
        """Return some of the curves."""
        return Curves(
            scores=self.scores[rows],
            variances=None if self.variances is None else self.variances[rows],
            places=self.places[rows],
            lengths=self.lengths[rows],
        )


class Falls(Struct, frozen=True, kw_only=True, eq=False):
    """What lies far below the start; arrays are (runs, evals).

    Attributes:
        waiting: evaluations that the next one must confirm.
        sure: where the newest two lie so low that no error matters.
        broken: the first evaluation that is to be left out, -1 if none: (runs,). What is said of
            those after it is void.
    """

    waiting: Flags
    sure: Flags
    broken: Places


def packed(scores: Array, variances: Array | None, present: Flags) -> Curves:
    """Return curves without their gaps."""
    places = np.argsort(~present, axis=1, kind="stable")
    return _ended(
        Curves(
            scores=np.take_along_axis(np.where(present, scores, 0.0), places, axis=1),
            variances=None
            if variances is None
            else np.take_along_axis(np.where(present, variances, 1.0), places, axis=1),
            places=places,
            lengths=present.sum(axis=1),
        )
    )


def without_left_out(curves: Curves, ranges: float, rounds: int) -> tuple[Curves, Falls, Flags]:
    """Return curves without the evaluations that are left out, what of the rest is far, and more.

    Args:
        curves: overwritten.
        ranges: as `falls` takes it.
        rounds: evaluations of a run that are left out at most.

    Returns:
        Besides, which runs are settled: more would have to be left out of the others.
    """
    found = falls(curves, ranges)
    for _ in range(rounds):
        rows = np.flatnonzero(found.broken >= 0)
        if not rows.size:
            break
        fewer = _less(curves.of(rows), found.broken[rows])
        again = falls(fewer, ranges)
        curves.scores[rows] = fewer.scores
        if curves.variances is not None and fewer.variances is not None:
            curves.variances[rows] = fewer.variances
        curves.places[rows], curves.lengths[rows] = fewer.places, fewer.lengths
        found.waiting[rows], found.sure[rows] = again.waiting, again.sure
        found.broken[rows] = again.broken
    return curves, found, found.broken < 0


def falls(curves: Curves, ranges: float) -> Falls:
    """Return what of the curves lies far below their start (`evalstop.core.collapse`).

    Args:
        curves: that begin at their first evaluation.
        ranges: falls, in ranges of the scores before, that are far where no error is known.
    """
    runs, evals = curves.scores.shape
    scores = np.ascontiguousarray(curves.scores.T)
    is_far = _rule_of(
        scores, None if curves.variances is None else np.ascontiguousarray(curves.variances.T)
    )
    first = scores[0]
    lowest, highest = first.copy(), first.copy()
    far = np.zeros(runs, dtype=np.int64)
    broken = np.full(runs, -1)
    waiting, sure = np.zeros((2, evals, runs), dtype=bool)
    below = first - scores
    for index in range(1, evals):
        score, fall, before = scores[index], below[index], below[index - 1]
        present = index < curves.lengths
        reach = ranges * (highest - lowest)
        now = (score < lowest) & present
        now &= is_far(index, fall, reach)
        recovered = waiting[index - 1] & ~now & (2.0 * fall < before) & present & (broken < 0)
        broken[recovered] = index - 1
        far = np.where(now, far + 1, 0)
        np.minimum(lowest, score, out=lowest, where=~now)
        np.maximum(highest, score, out=highest, where=~now)
        waiting[index] = (far == 1) & (2.0 * before < fall)
        if index - 1 >= FEWEST_OF_A_RANGE:
            sure[index] = (far >= _TWO) & (reach > 0.0) & (np.minimum(fall, before) >= reach)
    return Falls(waiting=waiting.T.copy(), sure=sure.T.copy(), broken=broken)


def _rule_of(scores: Array, variances: Array | None) -> Callable[[int, Array, Array], Flags]:
    """Return which falls are far: of evaluation, fall and ``ranges`` ranges of those before it.

    Args:
        scores: (evals, runs).
        variances: their squared errors, None if unknown.
    """
    if variances is not None:
        counts = np.arange(1, len(variances) + 1)[:, None]
        doubts = excesses(scores, running_sums(variances.copy()) / counts)

        def by_error(index: int, fall: Array, reach: Array) -> Flags:
            del reach
            limit = FAR * FAR * (variances[0] + variances[index]) * doubts[index - 1]
            far: Flags = (fall > 0.0) & (fall * fall >= limit)
            return far

        return by_error
    noise = estimates(scores)

    def by_scatter(index: int, fall: Array, reach: Array) -> Flags:
        far: Flags = np.zeros(fall.shape, dtype=bool)
        if index >= FEWEST_OF_A_RANGE:
            far |= (reach > 0.0) & (reach <= fall)
        if index >= FIRST_ESTIMATE:
            error = 2.0 * noise[index - 1] * vagueness(index)
            far |= (fall > 0.0) & (error > 0.0) & (fall * fall >= FAR * FAR * error)
        return far

    return by_scatter


def _less(curves: Curves, broken: Places) -> Curves:
    """Return curves without one evaluation each."""
    evals = np.arange(curves.scores.shape[1])
    later = np.minimum(evals + (evals >= broken[:, None]), evals[-1])
    return _ended(
        Curves(
            scores=np.take_along_axis(curves.scores, later, axis=1),
            variances=None
            if curves.variances is None
            else np.take_along_axis(curves.variances, later, axis=1),
            places=np.take_along_axis(curves.places, later, axis=1),
            lengths=curves.lengths - 1,
        )
    )


def _ended(curves: Curves) -> Curves:
    """Return curves with numbers after their ends that tell nothing."""
    beyond = np.arange(curves.scores.shape[1]) >= curves.lengths[:, None]
    return Curves(
        scores=np.where(beyond, curves.scores[:, :1], curves.scores),
        variances=None
        if curves.variances is None
        else np.where(beyond, curves.variances[:, :1], curves.variances),
        places=curves.places,
        lengths=curves.lengths,
    )
