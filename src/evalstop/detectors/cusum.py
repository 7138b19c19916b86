"""CUSUM on the drop below the running peak."""

from __future__ import annotations

from msgspec import Struct

from evalstop.core.errors import SpecError
from evalstop.core.points import LARGEST, EvalPoint, State, Verdict
from evalstop.core.settings import require_numbers
from evalstop.detectors.noise import WINDOW, sigma_of
from evalstop.detectors.peak import START, Peak, raised

__all__ = ["Cusum", "CusumState"]

# Bound once: looking up a member of an Enum costs 0.25 us on CPython 3.11.
_ALARM = State.ALARM
_OK = State.OK


class CusumState(Struct, frozen=True, gc=False):
    """Best so far, the cumulative sum, and what the noise is read from."""

    peak: Peak
    total: float
    previous: float | None
    differences: tuple[float, ...]


class Cusum(Struct, frozen=True, kw_only=True):
    """Accumulate how far scores lie below the best, in standard errors, beyond a slack.

    Recursion: z = (best - score) / se; s = max(0, s + z - drift); alarm when s >= threshold.
    A new best sets s back only through z = 0, so a slow decline adds up and one outlier of less
    than threshold + drift errors cannot fire it.

    Args:
        threshold: alarm level, in standard errors, > 0.
        drift: slack per evaluation, in standard errors, >= 0. The best of n noisy scores lies
            above the truth, so below about 2 the rule fires on plateaus in the end.

    ``se`` is the larger of the reported and the robust error; while neither is known the rule
    waits and says so.

    **False alarms** grow with the number of evaluations (an average run length, not a lifetime
    rate): at the defaults a few percent on a plateau of 20. Use `scan` for a rate that is held.

    Example:
        >>> rule = Cusum()
        >>> state = rule.start()
        >>> for step, score in enumerate([0.60, 0.50, 0.50, 0.50]):
        ...     point = EvalPoint(step=step, score=score, stderr=0.02)
        ...     state, verdict = rule.step(state, point)
        >>> verdict.alarm
        True

    Reference:
        Page, "Continuous Inspection Schemes", Biometrika 41, 1954.
    """

    threshold: float = 5.0
    drift: float = 2.0

    def __post_init__(self) -> None:
        require_numbers(self, "cusum")
        if self.threshold <= 0 or self.drift < 0:
            msg = (
                "cusum: expected threshold > 0 and drift >= 0, but got "
                f"threshold={self.threshold}, drift={self.drift}"
            )
            raise SpecError(msg)

    def start(self) -> CusumState:
        """Return the state before the first evaluation."""
        return CusumState(START, 0.0, None, ())

    def step(self, state: CusumState, point: EvalPoint) -> tuple[CusumState, Verdict]:
        """Add one evaluation to the sum."""
        differences = state.differences
        if state.previous is not None:
            differences = (*differences[1 - WINDOW :], abs(point.score - state.previous))
        peak = raised(state.peak, point)
        sigma = sigma_of(point.stderr, differences)
        total = state.total
        if sigma:
            total = max(0.0, total + (peak.best_score - point.score) / sigma - self.drift)
            total = min(total, LARGEST)  # an error of almost nothing makes it infinite
        return CusumState(peak, total, point.score, differences), Verdict(
            state=_ALARM if total >= self.threshold else _OK,
            statistic=total,
            threshold=self.threshold,
            best_step=peak.best_step,
            best_score=peak.best_score,
            note="" if sigma else "the standard error is not known yet: report stderr or n_items",
        )
