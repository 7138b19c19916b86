"""How long has the present trend lasted, and is it below the best one? Bayesian, online."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from evalstop.core.errors import SpecError
from evalstop.core.points import EvalPoint, State, Verdict
from evalstop.core.settings import require_numbers
from evalstop.detectors.peak import START as NO_PEAK
from evalstop.detectors.peak import Peak, raised
from evalstop.detectors.scan import reported_variance
from evalstop.detectors.scatter import START as NO_SCATTER
from evalstop.detectors.scatter import Scatter, estimated, spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Bocpd", "BocpdState"]

_LEVEL_SCALE, _SLOPE_SCALE = 10.0, 1.0
"""Prior standard deviations of a new trend about the newest score, in errors of an evaluation."""

_SMALLEST = 1e-12


class BocpdState(Struct, frozen=True, gc=False):
    """Best so far, noise, and one entry a run length in each column, newest run first.

    Columns: probability; the trend's value at the newest evaluation and its slope; variance of
    the value, covariance, variance of the slope. ``top`` is the highest expected value so far,
    ``p_top`` its variance.
    """

    peak: Peak = NO_PEAK
    scatter: Scatter = NO_SCATTER
    columns: tuple[tuple[float, ...], ...] = ()
    top: float = -math.inf
    p_top: float = 0.0


class Bocpd(Struct, frozen=True, kw_only=True):
    """Alarm when the present trend is, almost surely, below the best value it has had.

    The curve is made of straight pieces; a new one starts at each evaluation with chance
    ``hazard``. For every run length r the piece is a Bayesian line with known noise, and

        P(r + 1) ~ P(r) (1 - hazard) N(score; forecast of r),  P(0) ~ hazard N(score; prior).

    statistic = log odds that the present value lies below the highest expected value so far.

    Args:
        hazard: chance of a new piece an evaluation, in (0, 1).
        threshold: alarm level of the log odds.
        runs: run lengths that are kept, >= 2; longer ones are merged into the last.

    The prior of a new piece is wide, so a fall needs two or three evaluations to be believed. The
    odds are those of a model: **false alarms** are not held by them (about 1 % in 40 evaluations
    of flat noise at the defaults). Use it to explain a curve, `scan` to stop jobs.

    Example:
        >>> rule = Bocpd()
        >>> state = rule.start()
        >>> for step, score in enumerate([0.5, 0.6, 0.61, 0.4, 0.4, 0.4]):
        ...     point = EvalPoint(step=step, score=score, stderr=0.02)
        ...     state, verdict = rule.step(state, point)
        >>> verdict.alarm
        True

    Reference:
        Adams, MacKay, "Bayesian online changepoint detection", arXiv 0710.3742, 2007.
    """

    hazard: float = 0.05
    threshold: float = 9.0
    runs: int = 40

    def __post_init__(self) -> None:
        require_numbers(self, "bocpd")
        if not 0 < self.hazard < 1 or self.runs < 2:  # noqa: PLR2004 -- a new piece and an old one
            msg = (
                "bocpd: expected hazard between 0 and 1 and runs >= 2, but got "
                f"hazard={self.hazard}, runs={self.runs}"
            )
            raise SpecError(msg)

    def start(self) -> BocpdState:
        """Return the state before the first evaluation."""
        return BocpdState()

    def step(self, state: BocpdState, point: EvalPoint) -> tuple[BocpdState, Verdict]:
        """Let every run length see one more score."""
        peak = raised(state.peak, point)
        scatter = spread(state.scatter, point.score, 0.0)
        variance = reported_variance(point) or estimated(scatter)
        statistic, note = 0.0, ""
        if variance is None:
            note = "the standard error is not known yet: report stderr or n_items"
            state = BocpdState(peak=peak, scatter=scatter)
        else:
            state, statistic = self._updated(state, peak, scatter, point.score, variance)
        return state, Verdict(
            state=State.ALARM if statistic >= self.threshold else State.OK,
            statistic=statistic,
            threshold=self.threshold,
            best_step=peak.best_step,
            best_score=peak.best_score,
            note=note,
        )

    def _updated(
        self, before: BocpdState, peak: Peak, scatter: Scatter, score: float, variance: float
    ) -> tuple[BocpdState, float]:
        wide, steep = _LEVEL_SCALE**2 * variance, _SLOPE_SCALE**2 * variance
        if not before.columns:
            columns = ((1.0,), (score,), (0.0,), (variance,), (0.0,), (steep,))
            return BocpdState(peak, scatter, columns, score, variance), 0.0
        shares, *table = np.array(before.columns)
        # The new piece expects what the old ones do, and knows little about it.
        centre = float(shares @ table[0])
        level = np.concatenate([[centre], table[0] + table[1]])
        slope = np.concatenate([[0.0], table[1]])
        p_level = np.concatenate([[wide], table[2] + 2.0 * table[3] + table[4]])
        p_cross = np.concatenate([[0.0], table[3] + table[4]])
        p_slope = np.concatenate([[steep], table[4]])
        total, miss = p_level + variance, score - level
        joint = np.concatenate([[self.hazard], (1.0 - self.hazard) * shares])
        logs = np.log(np.maximum(joint, _SMALLEST)) - 0.5 * (np.log(total) + miss * miss / total)
        shares = np.exp(logs - logs.max())
        to_level, to_slope = p_level / total, p_cross / total
        updated = [
            shares,
            level + to_level * miss,
            slope + to_slope * miss,
            p_level * (1.0 - to_level),
            p_cross * (1.0 - to_level),
            p_slope - to_slope * p_cross,
        ]
        if shares.size > self.runs:
            shares[-2] += shares[-1]
            updated = [column[:-1] for column in updated]
        updated[0] = updated[0] / updated[0].sum()
        return self._compared(before, peak, scatter, updated)

    @staticmethod
    def _compared(
        before: BocpdState, peak: Peak, scatter: Scatter, columns: list[NDArray[np.float64]]
    ) -> tuple[BocpdState, float]:
        shares, level, _, p_level, _, _ = columns
        mean = float(shares @ level)
        spread_of = float(shares @ (p_level + (level - mean) ** 2))
        statistic = 0.0
        if before.top > mean:
            gaps = (before.top - level) / np.sqrt(2.0 * (before.p_top + p_level))
            above = float(sum(s * math.erfc(g) for s, g in zip(shares, gaps, strict=True))) / 2.0
            statistic = math.log1p(-above) - math.log(max(above, 1e-300))
        top, p_top = before.top, before.p_top
        if mean > top:
            top, p_top = mean, spread_of
        kept = tuple(tuple(column.tolist()) for column in columns)
        return BocpdState(peak, scatter, kept, top, p_top), statistic
