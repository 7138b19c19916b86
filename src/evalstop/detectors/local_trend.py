"""A level and a slope that drift: how sure is it that the level has come down?"""

from __future__ import annotations

import math

from msgspec import Struct

from evalstop.core.errors import SpecError
from evalstop.core.points import EvalPoint, State, Verdict
from evalstop.core.settings import require_numbers
from evalstop.detectors.peak import START as NO_PEAK
from evalstop.detectors.peak import Peak, raised
from evalstop.detectors.scan import reported_variance
from evalstop.detectors.scatter import START as NO_SCATTER
from evalstop.detectors.scatter import Scatter, estimated, spread

__all__ = ["LocalTrend", "LocalTrendState"]

_VAGUE = 100.0
"""Prior variance of the slope, in squared standard errors."""


class LocalTrendState(Struct, frozen=True, gc=False):
    """Best so far, noise, the filter, and the highest filtered level with its variance.

    ``p_*`` is the covariance of level and slope, in squares of the metric's units.
    """

    peak: Peak = NO_PEAK
    scatter: Scatter = NO_SCATTER
    started: bool = False
    level: float = 0.0
    slope: float = 0.0
    p_level: float = 0.0
    p_cross: float = 0.0
    p_slope: float = 0.0
    top: float = -math.inf
    p_top: float = 0.0


class LocalTrend(Struct, frozen=True, kw_only=True):
    """Alarm when the filtered level lies far below the highest it has been, and is not rising.

    Local linear trend, in units of the standard error of an evaluation:

        score = level + e,  level' = level + slope + u,  slope' = slope + w,

    var e = se^2, var u = (level_drift se)^2, var w = (slope_drift se)^2, followed by a Kalman
    filter. statistic = (highest level - level) / sqrt(their variances), 0 while the slope is
    positive.

    Args:
        threshold: alarm level, in standard deviations, > 0.
        level_drift: wandering of the level an evaluation, in standard errors, >= 0.
        slope_drift: change of the slope an evaluation, in standard errors, >= 0.

    It smooths well and draws good charts; the drifts are guesses that it cannot check, so that
    **false alarms** follow the guess (about 1 % in 40 evaluations of flat noise at the defaults)
    and a cliff is smeared over several evaluations. Use `scan` to stop jobs.

    Example:
        >>> rule = LocalTrend()
        >>> state = rule.start()
        >>> for step, score in enumerate([0.5, 0.6, 0.61, 0.5, 0.4, 0.3]):
        ...     point = EvalPoint(step=step, score=score, stderr=0.02)
        ...     state, verdict = rule.step(state, point)
        >>> verdict.alarm
        True

    Reference:
        Harvey, "Forecasting, Structural Time Series Models and the Kalman Filter", 1989.
    """

    threshold: float = 4.0
    level_drift: float = 0.3
    slope_drift: float = 0.3

    def __post_init__(self) -> None:
        require_numbers(self, "local-trend")
        if self.threshold <= 0 or self.level_drift < 0 or self.slope_drift < 0:
            msg = (
                "local-trend: expected threshold > 0 and drifts >= 0, but got "
                f"threshold={self.threshold}, level_drift={self.level_drift}, "
                f"slope_drift={self.slope_drift}"
            )
            raise SpecError(msg)

    def start(self) -> LocalTrendState:
        """Return the state before the first evaluation."""
        return LocalTrendState()

    def step(self, state: LocalTrendState, point: EvalPoint) -> tuple[LocalTrendState, Verdict]:
        """Filter one score."""
        peak = raised(state.peak, point)
        scatter = spread(state.scatter, point.score, 0.0)
        variance = reported_variance(point) or estimated(scatter)
        if variance is None:
            note = "the standard error is not known yet: report stderr or n_items"
            waiting = LocalTrendState(peak, scatter, *_filter_of(state))
            return waiting, self._verdict(waiting, 0.0, note)
        moved = self._filtered(state, point.score, variance)
        level, p_level, slope = moved[1], moved[3], moved[2]
        statistic = 0.0
        if state.started and slope < 0.0 and state.top > level:
            statistic = (state.top - level) / math.sqrt(state.p_top + p_level)
        top, p_top = state.top, state.p_top
        if level > top:
            top, p_top = level, p_level
        state = LocalTrendState(peak, scatter, *moved, top, p_top)
        return state, self._verdict(state, statistic, "")

    def _filtered(
        self, state: LocalTrendState, score: float, variance: float
    ) -> tuple[bool, float, float, float, float, float]:
        """Predict and correct; covariances are in the metric's units squared."""
        if not state.started:
            return True, score, 0.0, variance, 0.0, _VAGUE * variance
        level = state.level + state.slope
        p_level = state.p_level + 2.0 * state.p_cross + state.p_slope
        p_level += self.level_drift**2 * variance
        p_cross = state.p_cross + state.p_slope
        p_slope = state.p_slope + self.slope_drift**2 * variance
        total = p_level + variance
        to_level, to_slope = p_level / total, p_cross / total
        miss = score - level
        return (
            True,
            level + to_level * miss,
            state.slope + to_slope * miss,
            p_level * (1.0 - to_level),
            p_cross * (1.0 - to_level),
            p_slope - to_slope * p_cross,
        )

    def _verdict(self, state: LocalTrendState, statistic: float, note: str) -> Verdict:
        return Verdict(
            state=State.ALARM if statistic >= self.threshold else State.OK,
            statistic=statistic,
            threshold=self.threshold,
            best_step=state.peak.best_step,
            best_score=state.peak.best_score,
            note=note,
        )


def _filter_of(
    state: LocalTrendState,
) -> tuple[bool, float, float, float, float, float, float, float]:
    return (
        state.started,
        state.level,
        state.slope,
        state.p_level,
        state.p_cross,
        state.p_slope,
        state.top,
        state.p_top,
    )
