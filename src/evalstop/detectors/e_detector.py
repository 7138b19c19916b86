"""A rule with a proof: evidence that no stopping time can inflate."""

from __future__ import annotations

import math

from msgspec import Struct

from evalstop.core.errors import SpecError
from evalstop.core.points import EvalPoint, State, Verdict
from evalstop.core.settings import require_numbers
from evalstop.detectors.order_restricted import Block, pooled
from evalstop.detectors.peak import START as NO_PEAK
from evalstop.detectors.peak import Peak, raised
from evalstop.detectors.scan import reported_variance

__all__ = ["EDetector", "EDetectorState"]

_DRIFTS = (0.0, 0.3, 1.0, 3.0)
"""Steps of the forecasters' level an evaluation, in standard errors."""


class EDetectorState(Struct, frozen=True, gc=False):
    """Best so far; the rising fit; each forecaster's level, its variance and log likelihood.

    ``loss`` is the weighted sum of squares about the best curve that never falls; ``constants``
    the sum of log (2 pi se^2) / 2 that both sides share.
    """

    peak: Peak = NO_PEAK
    count: int = 0
    blocks: tuple[Block, ...] = ()
    loss: float = 0.0
    constants: float = 0.0
    forecasters: tuple[tuple[float, float, float], ...] = ()


class EDetector(Struct, frozen=True, kw_only=True):
    """Alarm when forecasts beat every curve that never falls by a factor 1 / alpha.

    Forecasters q predict each score from those before it, by a level that drifts by q standard
    errors an evaluation (a Kalman filter: N(a, p + se^2)). With L_q the likelihood of their
    forecasts,

        statistic = log mean_q L_q - max over non-decreasing f of log prod N(y_t; f_t, se_t^2).

    Whatever the non-decreasing truth, the maximum is at least its own likelihood, so the
    statistic lies below the log of a martingale of mean 1, and by Ville's inequality the chance
    that it *ever* reaches log (1 / alpha) is at most alpha: for any number of evaluations and
    without a simulation, if errors are independent, normal and as large as reported.

    Args:
        alpha: chance that a job whose quality does not fall is ever stopped, in (0, 1).

    The first score is taken as given, since nothing forecasts it. Evaluations without a reported
    error are passed over and the verdict says so. Memory: one block a level of the rising fit.

    The price of a proof for all curves and all times is power: `scan` makes the same promise by
    simulation and finds declines a few evaluations earlier. Use this one where a figure must be
    defended on paper.

    Example:
        >>> rule = EDetector()
        >>> state = rule.start()
        >>> for step, score in enumerate([0.5, 0.6, 0.61, 0.3, 0.3, 0.3]):
        ...     point = EvalPoint(step=step, score=score, stderr=0.02)
        ...     state, verdict = rule.step(state, point)
        >>> verdict.alarm
        True

    Reference:
        Shin, Ramdas, Rinaldo, "E-detectors: a nonparametric framework for sequential change
        detection", New England Journal of Statistics in Data Science, 2024. Wasserman, Ramdas,
        Balakrishnan, "Universal inference", PNAS 117, 2020 (the running maximum likelihood).
    """

    alpha: float = 0.01

    def __post_init__(self) -> None:
        require_numbers(self, "e-detector")
        if not 0 < self.alpha < 1:
            msg = f"e-detector: alpha must lie between 0 and 1, but got alpha={self.alpha}"
            raise SpecError(msg)

    def start(self) -> EDetectorState:
        """Return the state before the first evaluation."""
        return EDetectorState()

    def step(self, state: EDetectorState, point: EvalPoint) -> tuple[EDetectorState, Verdict]:
        """Let the forecasters see one more score."""
        peak = raised(state.peak, point)
        variance = reported_variance(point)
        if not variance:
            state = EDetectorState(
                peak, state.count, state.blocks, state.loss, state.constants, state.forecasters
            )
            return state, self._verdict(state, "no error is reported: give stderr or n_items")
        if not state.count:
            forecasters = tuple((point.score, variance, 0.0) for _ in _DRIFTS)
            state = EDetectorState(peak, 1, (), 0.0, 0.0, forecasters)
            return state, self._verdict(state, "")
        forecasters = tuple(
            _forecast(forecaster, score=point.score, variance=variance, drift=drift)
            for forecaster, drift in zip(state.forecasters, _DRIFTS, strict=True)
        )
        blocks, loss = pooled(state.blocks, state.loss, point.score, 1.0 / variance)
        constants = state.constants + 0.5 * math.log(2.0 * math.pi * variance)
        state = EDetectorState(peak, state.count + 1, blocks, loss, constants, forecasters)
        return state, self._verdict(state, "")

    def _verdict(self, state: EDetectorState, note: str) -> Verdict:
        statistic = 0.0
        if state.count > 1:
            logs = [log for _, _, log in state.forecasters]
            top = max(logs)
            mean = top + math.log(sum(math.exp(log - top) for log in logs) / len(logs))
            statistic = mean + 0.5 * state.loss + state.constants
        threshold = -math.log(self.alpha)
        return Verdict(
            state=State.ALARM if statistic >= threshold else State.OK,
            statistic=statistic,
            threshold=threshold,
            best_step=state.peak.best_step,
            best_score=state.peak.best_score,
            note=note,
        )


def _forecast(
    before: tuple[float, float, float], *, score: float, variance: float, drift: float
) -> tuple[float, float, float]:
    """Score a forecast and move the level: one step of the Kalman filter."""
    level, spread, log = before
    spread += drift * drift * variance
    total = spread + variance
    miss = score - level
    log -= 0.5 * (math.log(2.0 * math.pi * total) + miss * miss / total)
    gain = spread / total
    return level + gain * miss, spread * (1.0 - gain), log
