"""What it takes to judge one curve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from evalstop.core.points import EvalPoint, Verdict

__all__ = ["Detector", "ThriftyDetector"]

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
class ThriftyDetector(Detector[S], Protocol[S]):
    """Detector that can go on without a verdict: most say that all is well, and nobody reads them.

    ``step(state, point)`` is ``advance(state, point)`` and then ``verdict`` of its state.
    """

    def advance(self, state: S, point: EvalPoint) -> tuple[S, bool]:
        """Return the new state, and whether its verdict is anything but ok."""
        ...

    def verdict(self, state: S) -> Verdict:
        """Return what there is to say in this state."""
        ...
