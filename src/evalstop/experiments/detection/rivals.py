"""Rules that need more than one curve of scores: other runs, or item scores."""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from evalstop.core.points import EvalPoint
from evalstop.experiments.peers.field import experiments, first_of, items

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evalstop.experiments.peers.field import Array, Field, Stops

__all__ = ["RAY_MEDIAN", "ByItems", "RayMedian", "median_stops"]

RAY_MEDIAN = "ray-median"
"""Ray Tune's median stopping rule, as its code decides (Golovin et al., Vizier, KDD 2017)."""


class RayMedian(Struct, frozen=True, kw_only=True):
    """The rule, for environments without Ray; a test there compares each decision with Ray's.

    Args:
        grace: evaluations before which no trial is stopped, and which no mean counts.
        fewest: other trials that must have come as far.
    """

    grace: int = 4
    fewest: int = 3

    def stops(self, field: Field) -> Stops:
        """Return the index at which each run is stopped, -1 if never: (runs,)."""
        found = np.full(field.declines.size, -1, dtype=np.int64)
        for runs in experiments(field):
            found[runs] = median_stops(field.scores[runs], grace=self.grace, fewest=self.fewest)
        return found


class ByItems(Struct, frozen=True, kw_only=True):
    """A detector that is given the item scores of each evaluation, as Optuna's Wilcoxon is."""

    detector: Any

    def stops(self, field: Field) -> Stops:
        """Return the index at which each run is stopped, -1 if never: (runs,)."""
        return np.array([first_of(self._answers(field, run)) for run in range(len(field.scores))])

    def _answers(self, field: Field, run: int) -> Iterator[bool]:
        state = self.detector.start()
        for step, row in enumerate(items(field, run).tolist()):
            point = EvalPoint(
                step=step,
                score=float(field.scores[run, step]),
                stderr=field.sigma,
                items=tuple(row),
            )
            state, verdict = self.detector.step(state, point)
            yield verdict.alarm


def median_stops(scores: Array, *, grace: int, fewest: int) -> Stops:
    """Return the index at which each trial of one experiment is stopped, -1 if never: (trials,).

    All trials run in step and report in the order of their rows. A trial is stopped at evaluation
    t >= grace (from 1) if its best so far lies strictly below the median, over the others that
    have reported t by then, of their mean score over evaluations grace to t. It ranks trials
    against each other, so some of a population of equals are always at risk.

    Args:
        scores: (trials, evals), finite.
        grace: see above.
        fewest: other trials that must have reported t.
    """
    first = grace - 1
    best = np.maximum.accumulate(scores, axis=1)
    counts = np.arange(1, scores.shape[1] - first + 1)
    means = np.cumsum(scores[:, first:], axis=1) / counts
    found = np.full(scores.shape[0], -1, dtype=np.int64)
    for step in range(first, scores.shape[1]):
        reported: list[float] = []
        for trial in np.flatnonzero(found < 0):
            if len(reported) >= fewest and best[trial, step] < _median(reported):
                found[trial] = step
            insort(reported, float(means[trial, step - first]))
    return found


def _median(ordered: list[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else 0.5 * (ordered[middle - 1] + ordered[middle])
