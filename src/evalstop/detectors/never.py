"""The rule that stops nothing: the base scheduler as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from evalstop.core.points import EvalPoint, Verdict
from evalstop.detectors.peak import START, Peak, raised

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Never"]


class Never(Struct, frozen=True, kw_only=True):
    """Never raise an alarm; keep track of the best score only. False-stop rate: 0.

    Example:
        >>> rule = Never()
        >>> state, verdict = rule.step(rule.start(), EvalPoint(step=1, score=0.5))
        >>> verdict.alarm
        False
    """

    def start(self) -> Peak:
        """Return the state before the first evaluation."""
        return START

    def step(self, state: Peak, point: EvalPoint) -> tuple[Peak, Verdict]:
        """Remember the best score."""
        return self.fold(state, (point,))

    def fold(self, state: Peak, points: Sequence[EvalPoint]) -> tuple[Peak, Verdict]:
        """Remember the best score."""
        for point in points:
            state = raised(state, point)
        return state, Verdict(best_step=state.best_step, best_score=state.best_score)

    def quiet(self, series: Sequence[EvalPoint]) -> bool:  # noqa: ARG002 -- the protocol's
        """Return True."""
        return True

    def quiet_for(
        self,
        series: Sequence[EvalPoint],  # noqa: ARG002 -- the protocol's
        scores: Sequence[float],
    ) -> int:
        """Return how many scores there are."""
        return len(scores)
