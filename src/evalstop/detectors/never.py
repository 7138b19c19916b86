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
        peak = raised(state, point)
        return peak, Verdict(best_step=peak.best_step, best_score=peak.best_score)
