"""Evaluations that a driver knows before it tells them, and what is foreseen of them.

A simulated job's curve is no secret to the simulator. It asks the policy, through the kernel, how
many of the evaluations to come are sure to be answered with nothing, and tells these all at once
(`evalstop.core.policy.FarSighted`). Nobody else knows the future.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from operator import lt
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from evalstop.core.points import NOT_FINITE, EvalPoint, Verdict

if TYPE_CHECKING:
    from evalstop.core.detector import Detector

__all__ = ["Ahead", "Foreseen", "run_ahead"]

S = TypeVar("S")


class Ahead(Struct, frozen=True, kw_only=True, gc=False):
    """One job's evaluations in the order in which they are made, a column each.

    They are of its first attempt and of no named epoch. An `EvalPoint` is made when one is asked
    for: nobody ever looks at most of them.

    Attributes:
        steps: training step of each.
        scores: score of each, no finite number for none.
        stderrs: standard error of each; None where none is known.
        proxies: training reward of each; None where none is known.
    """

    steps: Sequence[int]
    scores: Sequence[float]
    stderrs: Sequence[float] | None = None
    proxies: Sequence[float] | None = None

    def __len__(self) -> int:
        """Return the number of evaluations."""
        return len(self.scores)

    def point(self, index: int) -> EvalPoint:
        """Return one evaluation."""
        score = self.scores[index]
        return EvalPoint(
            step=self.steps[index],
            score=score if score - score == 0.0 else NOT_FINITE,
            stderr=None if self.stderrs is None else self.stderrs[index],
            proxy=None if self.proxies is None else self.proxies[index],
        )

    def points(self, start: int, stop: int) -> list[EvalPoint]:
        """Return the evaluations from ``start`` up to and without ``stop``; they are in line."""
        if self.proxies is not None:
            return [self.point(index) for index in range(start, stop)]
        steps, scores = self.steps[start:stop], self.scores[start:stop]
        if self.stderrs is None:
            return [
                EvalPoint(step=step, score=score) for step, score in zip(steps, scores, strict=True)
            ]
        return [
            EvalPoint(step=step, score=score, stderr=stderr)
            for step, score, stderr in zip(steps, scores, self.stderrs[start:stop], strict=True)
        ]

    def in_line(self, start: int, stop: int) -> int:
        """Return up to where, from ``start`` on, steps grow and all scores are finite."""
        steps, scores = self.steps, self.scores
        if stop - start < len(scores):
            steps, scores = steps[start:stop], scores[start:stop]
        # All at once first, in C; a sum that is not finite may have overflowed.
        if math.isfinite(sum(scores)) and all(map(lt, steps, islice(steps, 1, None))):
            return stop
        last = -math.inf
        for index, (step, score) in enumerate(zip(steps, scores, strict=True)):
            if not (step > last and math.isfinite(score)):
                return start + index
            last = step
        return stop


class Foreseen:
    """The evaluations ahead that a curve's rule will say nothing to, and how many were told.

    Attributes:
        ahead: where they are.
        told: index of the first that was not told yet.
        noted: index of the first that the curve does not hold yet: it takes in those that were
            told when somebody looks at it.
        stop: index of the first that is not foreseen.
        first: index of the first that was foreseen.
        line: from ``first`` on, the points with the rule's state and verdict after each; None
            where the rule could tell without.
    """

    __slots__ = ("ahead", "first", "line", "noted", "stop", "told")

    def __init__(
        self,
        ahead: Ahead,
        start: int,
        stop: int,
        line: list[tuple[EvalPoint, Any, Verdict]] | None,
    ) -> None:
        self.ahead = ahead
        self.first = self.told = self.noted = start
        self.stop = stop
        self.line = line


def run_ahead(
    detector: Detector[S], state: S, points: Sequence[EvalPoint]
) -> list[tuple[EvalPoint, S, Verdict]]:
    """Return the points before the first alarm, with the rule's state and verdict after each.

    They end too where the rule raises an error: it will raise it again when the point is told.
    """
    line: list[tuple[EvalPoint, S, Verdict]] = []
    with suppress(Exception):
        for point in points:
            state, verdict = detector.step(state, point)
            if verdict.alarm:
                break
            line.append((point, state, verdict))
    return line
