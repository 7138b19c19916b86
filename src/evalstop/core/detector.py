"""What it takes to judge one curve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.core.points import EvalPoint, Verdict

__all__ = ["Detector", "QuietDetector"]

S = TypeVar("S")


@runtime_checkable
class Detector(Protocol[S]):
    """Judge of one curve: parameters are the object, state is separate, plain, versioned data.

    ``step`` sees finite scores only, in order of step, one a step, of one comparison epoch:
    `evalstop.core.history.History` sees to that. It must not change the state it was given.
    """

    def start(self) -> S:
        """Return the state before the first evaluation."""
        ...

    def step(self, state: S, point: EvalPoint) -> tuple[S, Verdict]:
        """Fold one evaluation into the state; return the new state and the verdict."""
        ...


@runtime_checkable
class QuietDetector(Detector[S], Protocol[S]):
    """Detector that can tell at a glance that an evaluation raises no alarm.

    Most evaluations raise none, and nobody reads their verdicts: they are folded into the state
    all together, when one is asked for. Two promises: an evaluation that is not below the one
    before it raises no alarm; and ``quiet`` says of no evaluation that it is quiet whose verdict,
    by ``step``, is an alarm.
    """

    def quiet(self, series: Sequence[EvalPoint]) -> bool:
        """Return whether the last of a series, below the one before it, surely raises no alarm."""
        ...

    def quiet_for(self, series: Sequence[EvalPoint], scores: Sequence[float]) -> int:
        """Return how many of the scores that follow a series, in order, surely raise no alarm."""
        ...

    def fold(self, state: S, points: Sequence[EvalPoint]) -> tuple[S, Verdict]:
        """Return the new state and the verdict after one or more evaluations: as ``step`` each."""
        ...
