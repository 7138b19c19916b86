"""`scan` on a fleet: most curves are judged as they are, others without gaps and broken evals."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evalstop.core.collapse import FAR, FEWEST_OF_A_RANGE
from evalstop.detectors.bank import REACH
from evalstop.detectors.lattice import START as NO_LATTICE
from evalstop.detectors.lattice import items_of, may_be_share, refined
from evalstop.detectors.left_out import Curves, Falls, packed, without_left_out
from evalstop.detectors.scan import Scan, vagueness
from evalstop.detectors.scan_batch import ROWS, by_eval, statistics
from evalstop.detectors.scatter import FIRST_ESTIMATE
from evalstop.detectors.scatter_batch import estimates

__all__ = ["judge_scanned"]

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Places = NDArray[np.int64]

_LEFT_OUT = 12
"""Evaluations of a run that are left out before it is stepped through: each takes a round."""


def judge_scanned(
    rule: Scan,
    table: Array,
    errors: Array,
    present: Flags,
    *,
    statistic: Array,
    threshold: Array,
) -> Places:
    """Fill in what `Scan` says after each evaluation; return how many of a run must be stepped.

    These are all of runs some of whose evaluations have an error and some have none, and of runs
    that collapse and recover time and again; and those up to which scores without errors betray
    their number of items.

    Args:
        rule: the rule.
        table: scores, (runs, evals).
        errors: their standard errors, 0.0 where unknown, (runs, evals).
        present: which scores there are, (runs, evals).
        statistic: to be filled in; zeros, (runs, evals).
        threshold: likewise.

    Returns:
        (runs,): evaluations, from the first, whose verdicts are not filled in.
    """
    runs, evals = table.shape
    until = np.zeros(runs, dtype=np.int64)
    apart: dict[bool, list[Places]] = {True: [], False: []}
    for start in range(0, runs if evals else 0, ROWS):
        block = slice(start, start + ROWS)
        there, known = present[block], errors[block] > 0.0
        told = (known | ~there).all(axis=1)
        untold = ~told & ~(known & there).any(axis=1)
        until[block][~told & ~untold] = evals
        for group, is_known in ((told, True), (untold, False)):
            rows = start + np.flatnonzero(group)
            if not rows.size:
                continue
            variances = errors[rows] ** 2 if is_known else None
            found, rest = _whole(table[rows], variances, present[rows], rule.ranges)
            statistic[rows] = found
            threshold[rows] = rule.thresholds(evals, known=is_known)
            if not is_known:
                shares = may_be_share(table[rows, :1])[:, 0] | ~present[rows, 0]
                until[rows[shares & rest]] = evals
                for row in rows[shares & ~rest].tolist():
                    until[row] = _told_by_items(table[row, present[row]].tolist())
                rest &= ~shares
            apart[is_known].append(rows[rest])
    for is_known, groups in apart.items():
        limits = np.array(rule.thresholds(evals, known=is_known))
        every = np.concatenate([np.zeros(0, dtype=np.int64), *groups])
        for start in range(0, every.size, ROWS):
            rows = every[start : start + ROWS]
            variances = errors[rows] ** 2 if is_known else None
            curves, falls, settled = without_left_out(
                packed(table[rows], variances, present[rows]), rule.ranges, rounds=_LEFT_OUT
            )
            found, limit = _told(curves, falls, statistic[rows], limits)
            statistic[rows] = np.where(present[rows], found, 0.0)
            threshold[rows] = np.where(present[rows], limit, 0.0)
            until[rows[~settled]] = evals
    return until


def _told_by_items(scores: list[float]) -> int:
    """Return up to which evaluation the scores of a run betray their number of items."""
    lattice, last = NO_LATTICE, 0
    for count, score in enumerate(scores, 1):
        lattice = refined(lattice, score)
        if not lattice.denominator:
            break
        if items_of(lattice, scores[max(count - REACH, 0) : count]):
            last = count
    return last


def _whole(
    scores: Array, variances: Array | None, present: Flags, ranges: float
) -> tuple[Array, Flags]:
    """Return the statistic, and of which runs it may be void: those with gaps or a collapse."""
    apart: Flags = np.zeros(scores.shape[0], dtype=np.bool_)
    if not present.all():
        # What stands after a run's end is read by no verdict before it: any number will do.
        begun = present[:, :1]
        scores = np.where(present, scores, np.where(begun, scores[:, :1], 0.0))
        if variances is not None:
            variances = np.where(present, variances, np.where(begun, variances[:, :1], 1.0))
        apart |= ~begun[:, 0] | (present[:, 1:] & ~present[:, :-1]).any(axis=1)
    curves, noise = np.ascontiguousarray(scores.T), None
    if variances is None:
        noise = estimates(curves)
        apart |= _may_fall_out_of_reach(curves, noise, ranges)
    else:
        variances = np.ascontiguousarray(variances.T)
        apart |= _may_fall_far(curves, variances)
    found = by_eval(curves, variances, noise=noise)
    return np.where(present, found.T, 0.0), apart


def _may_fall_far(curves: Array, variances: Array) -> Flags:
    """Return which runs may lie far below their start once, by their errors; never too few.

    Their depth, from the first score to the lowest, clears most of them. Arrays are (evals, runs).
    """
    depth = curves[0] - curves.min(axis=0)
    limit = FAR * FAR * (variances[0] + variances.min(axis=0))
    found: Flags = (depth > 0.0) & (depth * depth >= limit)
    runs = np.flatnonzero(found)
    fall = np.maximum(curves[0, runs] - curves[1:, runs], 0.0)
    far = fall**2 >= FAR * FAR * (variances[0, runs] + variances[1:, runs])
    found[runs] = far.any(axis=0)
    return found


def _may_fall_out_of_reach(curves: Array, noise: Array, ranges: float) -> Flags:
    """Return likewise which may where no error is known."""
    depth = curves[0] - curves.min(axis=0)
    least = noise[FIRST_ESTIMATE - 1 : -1].min(axis=0, initial=np.inf)
    start = curves[:FEWEST_OF_A_RANGE]
    reach = ranges * (start.max(axis=0) - start.min(axis=0))
    found: Flags = (depth * depth >= 2.0 * FAR * FAR * least) | (depth >= reach)
    found &= depth > 0.0
    runs = np.flatnonzero(found)
    found[runs] = _falls_out_of_reach(curves[:, runs], noise[:, runs], ranges)
    return found


def _falls_out_of_reach(curves: Array, noise: Array, ranges: float) -> Flags:
    reach = np.maximum.accumulate(curves) - np.minimum.accumulate(curves)
    fall = np.maximum(curves[0] - curves, 0.0)
    limit = ranges * reach[FEWEST_OF_A_RANGE - 1 : -1]
    beyond = (fall[FEWEST_OF_A_RANGE:] >= limit) & (limit > 0.0)
    vague = [[vagueness(count)] for count in range(FIRST_ESTIMATE, len(curves))]
    error = 2.0 * noise[FIRST_ESTIMATE - 1 : -1] * np.reshape(vague, (-1, 1))
    far = (fall[FIRST_ESTIMATE:] ** 2 >= FAR * FAR * error) & (error > 0.0)
    found: Flags = beyond.any(axis=0) | far.any(axis=0)
    return found


def _told(curves: Curves, falls: Falls, statistic: Array, limits: Array) -> tuple[Array, Array]:
    """Return statistic and threshold after each evaluation of whole runs.

    Args:
        curves: what is left of the runs.
        falls: of that.
        statistic: as it would be if nothing were missing or left out.
        limits: thresholds by number of evaluations.
    """
    evals = np.arange(statistic.shape[1])
    within = evals < curves.lengths[:, None]
    changed = np.flatnonzero(((curves.places != evals) & within).any(axis=1))
    fewer = curves.of(changed)
    statistic[changed] = statistics(fewer.scores, fewer.variances)
    np.maximum(statistic, limits, out=statistic, where=falls.sure)
    kept = np.zeros_like(within)
    runs, places = np.nonzero(within)
    kept[runs, curves.places[runs, places]] = True
    # An evaluation that waits, or was left out, gets the verdict of the one before.
    source = np.maximum(np.cumsum(kept, axis=1) - 1, 0)
    source -= kept & np.take_along_axis(falls.waiting, source, axis=1)
    return np.take_along_axis(statistic, source, axis=1), limits[source]
