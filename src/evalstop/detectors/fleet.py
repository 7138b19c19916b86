"""Many curves at once: the verdicts a stream of evaluations would have had."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evalstop.core.errors import InputError
from evalstop.core.points import LARGEST, EvalPoint
from evalstop.detectors.bayes import Bayes
from evalstop.detectors.prior import LONGEST
from evalstop.detectors.scan import Scan
from evalstop.detectors.scan_batch import ROWS
from evalstop.detectors.scan_fleet import judge_scanned

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from evalstop.core.detector import Detector

__all__ = ["Fleet", "judge"]

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

_BELIEVED_ROWS = 256
"""Curves at a time: what they need fits into a processor's cache."""


class Fleet(Struct, frozen=True, kw_only=True, eq=False):
    """Verdicts on many curves after each evaluation; arrays are (runs, evals).

    Attributes:
        statistic: evidence for a decline; 0 where there was no evaluation.
        threshold: what it is compared with.
        alarm: whether the rule asks for the run to be stopped.
        best: index of the highest score so far (ties: the earliest), -1 before the first.
    """

    statistic: Array
    threshold: Array
    alarm: Flags
    best: NDArray[np.int64]

    @property
    def stop(self) -> NDArray[np.int64]:
        """Index of each run's first alarm, -1 if it had none: (runs,)."""
        return np.where(self.alarm.any(axis=1), self.alarm.argmax(axis=1), -1)


def judge(detector: Detector[Any], scores: ArrayLike, stderr: ArrayLike | None = None) -> Fleet:
    """Judge many curves, each from its start.

    `Scan` runs on whole arrays, at some two million evaluations a second on one core, and so
    does `Bayes` where all errors are equal. Other rules, runs some of whose evaluations have an
    error and some have none, and scores without one that betray their number of items are stepped
    one evaluation at a time. The verdicts are the same.

    Args:
        detector: the rule.
        scores: higher is better, (runs, evals); NaN where a run has no evaluation (shorter runs
            are padded at the end) or none that is finite.
        stderr: standard error of each score, or anything that broadcasts to their shape; NaN or 0
            where unknown. None if no error is known.

    Raises:
        InputError: if ``scores`` is not two-dimensional, or ``stderr`` does not fit.
    """
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2:  # noqa: PLR2004 -- runs by evaluations
        msg = f"scores must be a table of runs by evaluations, but got shape {table.shape}"
        raise InputError(msg)
    errors = _errors(stderr, table)
    present = np.abs(table) <= LARGEST
    if not present.all():
        table = np.where(present, table, np.nan)
    fleet = Fleet(
        statistic=np.zeros(table.shape),
        threshold=np.zeros(table.shape),
        alarm=np.zeros(table.shape, dtype=bool),
        best=_best(table, present),
    )
    until = np.full(table.shape[0], table.shape[1])
    if isinstance(detector, Scan):
        until = judge_scanned(
            detector, table, errors, present, statistic=fleet.statistic, threshold=fleet.threshold
        )
        np.greater_equal(fleet.statistic, fleet.threshold, out=fleet.alarm, where=present)
    elif isinstance(detector, Bayes) and _is_even(present, errors):
        _judge_believed(detector, fleet, table, float(errors[0, 0]))
        until[:] = 0
    for run in np.flatnonzero(until).tolist():
        first = slice(None, until[run])
        _judge_stepwise(detector, fleet, run, table[run, first], errors[run, first])
    return fleet


def _errors(stderr: ArrayLike | None, table: Array) -> Array:
    """Return standard errors in the shape of the scores, 0 where unknown."""
    if stderr is None:
        return np.broadcast_to(0.0, table.shape)
    errors = np.asarray(stderr, dtype=np.float64)
    if bool((errors < 0.0).any()):
        msg = f"stderr must not be negative, but got {errors.min()}: NaN or 0 where it is unknown"
        raise InputError(msg)
    try:
        return np.broadcast_to(np.where(errors <= LARGEST, errors, 0.0), table.shape)
    except ValueError as error:
        msg = f"stderr of shape {np.shape(stderr)} does not fit scores of shape {table.shape}"
        raise InputError(msg) from error


def _best(table: Array, present: Flags) -> NDArray[np.int64]:
    best = np.empty(table.shape, dtype=np.int64)
    for start in range(0, table.shape[0], ROWS):
        rows = slice(start, start + ROWS)
        scores = np.ascontiguousarray(np.where(present[rows], table[rows], -np.inf).T)
        places = np.full(scores.shape, -1)
        highest = np.full(scores.shape[1], -np.inf)
        for index, score in enumerate(scores):
            if index:
                places[index] = places[index - 1]
            places[index, score > highest] = index
            np.maximum(highest, score, out=highest)
        best[rows] = places.T
    return best


def _is_even(present: Flags, errors: Array) -> bool:
    """Return whether no evaluation is missing and all have one known error."""
    known = bool(errors.size and errors[0, 0] > 0.0 and (errors == errors[0, 0]).all())
    return known and bool(present.all()) and errors.shape[1] <= LONGEST


def _judge_believed(rule: Bayes, fleet: Fleet, table: Array, error: float) -> None:
    """Judge curves without gaps whose evaluations all have the same error."""
    fleet.threshold[:] = rule.level
    for start in range(0, table.shape[0], _BELIEVED_ROWS):
        rows = slice(start, start + _BELIEVED_ROWS)
        for count in range(1, table.shape[1] + 1):
            variances = np.full(count, error * error + rule.misfit_variance)
            fleet.statistic[rows, count - 1] = rule.log_odds(table[rows, :count], variances)
    fleet.alarm[:] = fleet.statistic >= rule.level


def _judge_stepwise(
    detector: Detector[Any], fleet: Fleet, run: int, scores: Array, errors: Array
) -> None:
    state = detector.start()
    for step, (score, error) in enumerate(zip(scores.tolist(), errors.tolist(), strict=True)):
        if not math.isfinite(score):
            continue
        point = EvalPoint(step=step, score=score, stderr=error or None)
        state, verdict = detector.step(state, point)
        fleet.statistic[run, step] = verdict.statistic
        fleet.threshold[run, step] = verdict.threshold
        fleet.alarm[run, step] = verdict.alarm
