"""The odds that a run has passed its peak, for an operator who can say what runs are like."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evalstop.core.errors import SpecError
from evalstop.core.points import EvalPoint, State, Verdict
from evalstop.core.settings import require_numbers
from evalstop.detectors.peak import START as NO_PEAK
from evalstop.detectors.peak import Peak, raised
from evalstop.detectors.prior import LONGEST, SHAPES, Beliefs, Prior, beliefs
from evalstop.detectors.scan import TOO_FEW, reported_variance
from evalstop.detectors.scatter import START as NO_SCATTER
from evalstop.detectors.scatter import Scatter, estimated, spread

__all__ = ["Bayes", "BayesState"]

Array = NDArray[np.float64]

_NEVER = 1e-300

_SUSPECT_FACTOR = 10.0

_HIGHEST_ALPHA = 0.3

_BEYOND = f"beyond {LONGEST} evaluations the prior says nothing"


class BayesState(Struct, frozen=True, gc=False):
    """All that a verdict needs; at most `LONGEST` scores and reported variances, oldest first.

    ``variances`` holds 0.0 where no error was reported.
    """

    peak: Peak = NO_PEAK
    scatter: Scatter = NO_SCATTER
    scores: tuple[float, ...] = ()
    variances: tuple[float, ...] = ()


class Bayes(Struct, frozen=True, kw_only=True):
    """Alarm when, under a **stated prior**, the run has most likely passed its peak.

    Curves of the prior (`evalstop.detectors.prior`) are weighed by the scores; base and gain,
    normal, are integrated out in closed form, and

        statistic = log of the odds that the peak is past against all else.

    Args:
        alpha: chance that a healthy run *of the prior* is ever stopped, in (0, 0.3]. Odds of
            declining / (1 - declining) / alpha are asked for: by Ville's inequality the chance
            is then at most alpha, at any horizon, and in practice often a few times smaller.
        odds: odds to ask for instead, > 0; 0: as alpha says. Odds of 19 mean that of the runs
            that are stopped 95 % are declining ones, if the prior is right. ``evalstop calibrate``
            finds the odds that use alpha up.
        horizon: evaluations of a run; 0 if unknown (8 to 128, log-uniform); at most 128.
        base, base_sd: where runs start, in the metric's units, and how much that varies.
        gain, gain_sd: what they gain up to their peak.
        peak_low, peak_high: where declining runs peak, in shares of the run.
        healthy_low, healthy_high: where healthy runs reach their top and stay; above 1 they still
            rise at their end.
        drop_low, drop_high: what declining runs lose by the end, in shares of the gain.
        power_low, power_high: KL grows as t^power; the larger, the later the rise.
        shape: linear, cliff, gao or any: how declines go.
        declining: share of runs that decline, in (0, 1).
        misfit: how far true curves are from these, an evaluation, in shares of the gain.
        stderr: error of an evaluation that comes without one; 0: estimated from the curve, from 6
            evaluations on.

    **The guarantee rests on the prior.** Where healthy runs flatten earlier than it says, or start
    or gain otherwise, the false-stop rate is anything. Use `scan` where you do not know.

    Example:
        >>> rule = Bayes(base=0.3, base_sd=0.1, gain=0.4, gain_sd=0.1)
        >>> state = rule.start()
        >>> for step, score in enumerate([0.5, 0.6, 0.65, 0.64, 0.45, 0.44]):
        ...     point = EvalPoint(step=step, score=score, stderr=0.02)
        ...     state, verdict = rule.step(state, point)
        >>> verdict.alarm
        True

    Reference:
        Ville, "Etude critique de la notion de collectif", 1939; Shiryaev, "Optimal stopping
        rules", Springer, 1978.
    """

    alpha: float = 0.01
    odds: float = 0.0
    horizon: int = 0
    base: float = 0.3
    base_sd: float = 0.3
    gain: float = 0.4
    gain_sd: float = 0.2
    peak_low: float = 0.2
    peak_high: float = 0.8
    healthy_low: float = 0.2
    healthy_high: float = 0.8
    drop_low: float = 0.3
    drop_high: float = 0.7
    power_low: float = 1.0
    power_high: float = 2.0
    shape: str = "any"
    declining: float = 0.5
    misfit: float = 0.02
    stderr: float = 0.0

    def __post_init__(self) -> None:
        require_numbers(self, "bayes")
        wrong = _first_wrong(self)
        if wrong:
            msg = f"bayes: expected {wrong}"
            raise SpecError(msg)

    @property
    def prior(self) -> Prior:
        """The curves that are believed in."""
        return Prior(
            peak=(self.peak_low, self.peak_high),
            healthy=(self.healthy_low, self.healthy_high),
            drop=(self.drop_low, self.drop_high),
            power=(self.power_low, self.power_high),
            horizon=self.horizon,
            shape=self.shape,
        )

    @property
    def misfit_variance(self) -> float:
        """Variance of true curves about the believed ones, an evaluation."""
        return (self.misfit * self.gain) ** 2

    @property
    def level(self) -> float:
        """Log odds at which an alarm is raised."""
        if self.odds:
            return math.log(self.odds)
        return math.log(self.declining / (1.0 - self.declining) / self.alpha)

    def start(self) -> BayesState:
        """Return the state before the first evaluation."""
        return BayesState()

    def step(self, state: BayesState, point: EvalPoint) -> tuple[BayesState, Verdict]:
        """Weigh the curves by one more evaluation."""
        scatter = spread(state.scatter, point.score, 0.0)
        scores, variances = state.scores, state.variances
        if len(scores) < LONGEST:
            scores = (*scores, point.score)
            variances = (*variances, reported_variance(point) or self.stderr**2)
        state = BayesState(raised(state.peak, point), scatter, scores, variances)
        statistic, note = self._evidence(state)
        level = self.level
        verdict_state = State.OK
        if statistic >= level:
            verdict_state = State.ALARM
        elif statistic >= level - math.log(_SUSPECT_FACTOR):
            verdict_state = State.SUSPECT
        return state, Verdict(
            state=verdict_state,
            statistic=statistic,
            threshold=level,
            best_step=state.peak.best_step,
            best_score=state.peak.best_score,
            note=note,
        )

    def _evidence(self, state: BayesState) -> tuple[float, str]:
        """Return the log odds and what there is to say about them."""
        silent = self.level - 2.0 * math.log(_SUSPECT_FACTOR)
        count = state.scatter.count
        if count > LONGEST:
            return silent, _BEYOND
        variances = np.array(state.variances)
        known = variances > 0.0
        if not known.all():
            fallback = variances[known].mean() if known.any() else estimated(state.scatter)
            if not fallback:
                return silent, TOO_FEW
            variances[~known] = fallback
        scores = np.array(state.scores)[None, :]
        return float(self.log_odds(scores, variances + self.misfit_variance)[0]), ""

    def log_odds(self, scores: Array, variances: Array) -> Array:
        """Return the log odds that the peak is past after the last score of each row.

        Args:
            scores: (runs, evals), at most `LONGEST` of them.
            variances: of each evaluation, > 0, (evals,).
        """
        believed = beliefs(self.prior)
        count = scores.shape[1]
        logs = self._marginal(believed, scores, variances)
        logs -= logs.max(axis=1, keepdims=True)
        weights = np.exp(logs, out=logs)
        weights[:, : believed.falling] *= self.declining / (1.0 - self.declining)
        over = weights @ (count > believed.peak)
        ahead = weights.sum(axis=1) - over
        odds: Array = np.log(over + _NEVER) - np.log(np.maximum(ahead, 0.0) + _NEVER)
        return odds

    def _marginal(self, believed: Beliefs, scores: Array, variances: Array) -> Array:
        """Return log likelihoods with base and gain integrated out, (runs, curves).

        scores = base + gain c + noise, base and gain normal; up to a constant of the run.
        """
        count = scores.shape[1]
        shares = believed.shares[:count]
        weights = 1.0 / variances
        weighted = (scores - self.base) * weights
        one = weights.sum() + self.base_sd**-2
        cross = weights @ shares
        square = weights @ believed.squares[:count]
        fit = weighted @ shares
        base = weighted.sum(axis=1, keepdims=True) - self.gain * cross
        gain = fit - self.gain * square
        slope = square + self.gain_sd**-2
        determinant = one * slope - cross * cross
        quadratic = base * (slope * base - 2.0 * cross * gain) + one * gain * gain
        quadratic *= 0.5 / determinant
        fit *= self.gain
        fit += quadratic
        fit -= 0.5 * self.gain**2 * square + 0.5 * np.log(determinant)
        return fit


def _first_wrong(rule: Bayes) -> str:
    """Return what is wrong with the settings in words, empty if nothing."""
    checks = []
    for name in ("peak", "healthy", "drop", "power"):
        low, high = getattr(rule, f"{name}_low"), getattr(rule, f"{name}_high")
        checks.append((0.0 < low <= high, f"0 < {name}_low <= {name}_high", f"{low} and {high}"))
    for name in ("base_sd", "gain", "gain_sd"):
        value = getattr(rule, name)
        checks.append((value > 0.0, f"{name} > 0 in the metric's units", str(value)))
    for name in ("odds", "horizon", "misfit", "stderr"):
        value = getattr(rule, name)
        checks.append((value >= 0.0, f"{name} >= 0", str(value)))
    checks += [
        (rule.peak_high < 1.0, "peak_high < 1: they peak before their end", str(rule.peak_high)),
        (rule.horizon <= LONGEST, f"horizon <= {LONGEST}", str(rule.horizon)),
        (0.0 < rule.declining < 1.0, "declining between 0 and 1", str(rule.declining)),
        (0.0 < rule.alpha <= _HIGHEST_ALPHA, "alpha above 0, at most 0.3", str(rule.alpha)),
        (rule.shape in SHAPES, f"shape to be one of {', '.join(SHAPES)}", repr(rule.shape)),
    ]
    return next((f"{words}, but got {got}" for good, words, got in checks if not good), "")
