"""The rule that stops nothing: the base scheduler as it is."""

from __future__ import annotations

from msgspec import Struct

from evalstop.core.points import EvalPoint, Verdict
from evalstop.detectors.peak import START, Peak, raised

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
        state = raised(state, point)
        return state, self.verdict(state)

    def advance(self, state: Peak, point: EvalPoint) -> tuple[Peak, bool]:
        """Remember the best score; there is nothing else to say."""
        return raised(state, point), False

    def verdict(self, state: Peak) -> Verdict:
        """Return the best score."""
        return Verdict(best_step=state.best_step, best_score=state.best_score)
