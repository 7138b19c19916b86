"""What it takes to judge one curve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from evalstop.core.points import EvalPoint, Verdict

__all__ = ["Detector"]

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
