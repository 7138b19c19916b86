"""From a user's own history to a stated prior, as a SPEC of rule `bayes`.

All runs are fitted at once by the curves that the prior knows (`evalstop.detectors.prior`), over
wide ranges: EM on the means and variances of base and gain, each run weighing the curves of its
fate. The ranges of what is left (where the top is, the power, the drop) are the 5 and 95 %
quantiles of the curves so weighed. Then healthy runs of that prior are simulated, and the odds
are set at which alpha of them are stopped. That figure holds for runs like these and for no others.

Reference:
    Dempster, Laird, Rubin, "Maximum likelihood from incomplete data via the EM algorithm",
    Journal of the Royal Statistical Society B 39, 1977.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from evalstop.config.rules import parse_rule
from evalstop.core.errors import InputError
from evalstop.detectors.bayes import Bayes
from evalstop.detectors.prior import LONGEST, Beliefs, Prior, beliefs
from evalstop.detectors.scan import reported_variance
from evalstop.metrics.stats import Interval, wilson_interval
from evalstop.traces.replay import judge
from evalstop.traces.selection import select
from evalstop.traces.sources import read_source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from evalstop.traces.series import Direction, Series

__all__ = ["FEWEST_RUNS", "FittedPrior", "fit_prior", "fitted_to", "odds_for"]

Array = NDArray[np.float64]

FEWEST_RUNS = 10
"""Healthy runs that it takes to say what runs are like."""

_FEWEST_EVALS = 5
_TAIL = 0.05
_SIMULATED = 4000
_EVEN_LENGTHS = 0.8
_SMALLEST_SD = 0.05
_LEVEL = 1e-12
"""Below this nothing moves."""
_ROUNDS = 60
_FITTED = 3
"""What a fit takes: base, gain and a curve."""
_WIDE = Prior(
    peak=(0.05, 0.95),
    healthy=(0.05, 2.0),
    drop=(0.1, 1.2),
    power=(1.0, 2.0),
    horizon=0,
    shape="any",
)
"""Curves that are thought of before any run is seen."""


class FittedPrior(Struct, frozen=True, kw_only=True):
    """A prior, and what the rule that trusts it does to the runs it comes from.

    Attributes:
        spec: the rule, as ``bayes:...``; empty if there are too few runs.
        alpha: share of healthy runs of the prior that it stops.
        stderr: error of an evaluation that the odds were set for, in the metric's units.
        healthy, stopped: own healthy runs, and how many of them it stops.
        declined, found: own declined runs, and how many it finds.
        interval: Wilson's at 95 %, of the share of own healthy runs stopped.
        note: what to know before trusting it.
    """

    spec: str
    alpha: float
    stderr: float
    healthy: int
    stopped: int
    declined: int
    found: int
    interval: Interval
    note: str


class _Run(Struct, frozen=True, kw_only=True, eq=False):
    """One run with the curves of its fate: scores, variances (evals,), shares (evals, curves)."""

    scores: Array
    variances: Array
    known: bool
    fate: slice
    believed: Beliefs

    @property
    def shares(self) -> Array:
        return self.believed.shares[: self.scores.size, self.fate]


class _Spread(Struct, frozen=True, kw_only=True):
    """Means and variances of base and gain."""

    base: float
    base_variance: float
    gain: float
    gain_variance: float


class _Weighed(Struct, frozen=True, kw_only=True, eq=False):
    """What one run says under a `_Spread`, one entry a curve: weight and moments of base, gain."""

    weight: Array
    base: Array
    gain: Array
    base_variance: Array
    gain_variance: Array


def fit_prior(
    healthy: Sequence[str | Path],
    declined: Sequence[str | Path] = (),
    *,
    alpha: float = 0.01,
    metric: str | None = None,
    direction: Direction | None = None,
    seed: int = 0,
) -> FittedPrior:
    """Fit a prior to runs in files and set the odds for it.

    Args:
        healthy: sources as for `evalstop.replay`; every run counts as healthy.
        declined: sources whose runs all declined; without them drops of 30-70 % of the gain and
            peaks at 20-80 % of the run are taken for granted, and one run in two to decline.
        alpha: share of healthy runs that may be stopped.
        metric: as for `evalstop.replay`.
        direction: as for `evalstop.replay`.
        seed: of the simulated runs that set the odds.

    Raises:
        ReadError: a source cannot be read.
    """
    good = _series(healthy, metric, direction)
    bad = _series(declined, metric, direction)
    nothing = FittedPrior(
        spec="",
        alpha=alpha,
        stderr=math.nan,
        healthy=len(good),
        stopped=0,
        declined=len(bad),
        found=0,
        interval=(math.nan, math.nan),
        note=f"it takes {FEWEST_RUNS} healthy runs to say what runs are like",
    )
    if len(good) < FEWEST_RUNS:
        return nothing
    try:
        rule, stderr = fitted_to(good, bad)
    except InputError as error:
        return structs.replace(nothing, note=str(error))
    odds = odds_for(rule, stderr, alpha=alpha, seed=seed)
    spec = _spec(rule, odds)
    named = parse_rule(spec).named("rlhf")
    stopped, found = (sum(judge(one, named, spec).fired for one in runs) for runs in (good, bad))
    return FittedPrior(
        spec=spec,
        alpha=alpha,
        stderr=stderr,
        healthy=len(good),
        stopped=stopped,
        declined=len(bad),
        found=found,
        interval=wilson_interval(stopped, len(good)),
        note="holds for runs like these and no others; judged on the runs that it was fitted to",
    )


def _series(
    sources: Sequence[str | Path], metric: str | None, direction: Direction | None
) -> list[Series]:
    curves = [curve for source in sources for curve in read_source(source, metric).curves]
    return select(curves, metric=metric, direction=direction).series if curves else []


def fitted_to(healthy: Sequence[Series], declined: Sequence[Series]) -> tuple[Bayes, float]:
    """Return the rule with a prior fitted to runs, its odds not set, and the error of a score.

    Raises:
        InputError: no run has five evaluations, or runs do not rise.
    """
    rises = [run for run in map(_healthy_run, healthy) if run is not None]
    falls = [run for run in map(_declined_run, declined) if run is not None]
    every = [*rises, *falls]
    if not rises:
        msg = f"no healthy run has the {_FEWEST_EVALS} evaluations that it takes to fit a prior"
        raise InputError(msg)
    spread = _start(every)
    for _ in range(_ROUNDS):
        spread = _updated(every, spread)
    if spread.gain <= 0.0:
        msg = "these runs do not rise, so that they tell nothing of rises"
        raise InputError(msg)
    stderr = math.sqrt(float(np.median(np.concatenate([run.variances for run in rises]))))
    tops = _range(rises, spread, lambda run: run.believed.top / run.scores.size, (0.2, 0.8))
    peaks = _range(falls, spread, lambda run: run.believed.top / run.scores.size, (0.2, 0.8))
    powers = _range(every, spread, lambda run: run.believed.power, (1.0, 2.0))
    drops = _range(falls, spread, lambda run: run.believed.drop, (0.3, 0.7))
    known = all(run.known for run in every)
    rule = Bayes(
        horizon=_horizon([run.scores.size for run in every]),
        base=_short(spread.base),
        base_sd=_short(math.sqrt(spread.base_variance)),
        gain=_short(spread.gain),
        gain_sd=_short(math.sqrt(spread.gain_variance)),
        peak_low=_short(peaks[0]),
        peak_high=_short(peaks[1]),
        healthy_low=_short(tops[0]),
        healthy_high=_short(tops[1]),
        drop_low=_short(drops[0]),
        drop_high=_short(drops[1]),
        power_low=_short(powers[0]),
        power_high=_short(powers[1]),
        declining=_short(len(falls) / len(every)) if falls else 0.5,
        misfit=_short(_misfit(every, spread)),
        stderr=0.0 if known else _short(stderr),
    )
    return rule, stderr


def odds_for(rule: Bayes, stderr: float, *, alpha: float, seed: int) -> float:
    """Return the odds at which ``alpha`` of simulated healthy runs of the prior are stopped.

    Never below even odds. With an unknown horizon runs are of the longest that are believed in.
    """
    generator = np.random.default_rng(seed)
    believed = beliefs(rule.prior)
    evals = rule.horizon or LONGEST
    shares = believed.shares[:evals, believed.falling :].T
    chosen = shares[generator.integers(0, shares.shape[0], _SIMULATED)]
    base = rule.base + rule.base_sd * generator.standard_normal((_SIMULATED, 1))
    gain = rule.gain + rule.gain_sd * generator.standard_normal((_SIMULATED, 1))
    variance = stderr**2 + rule.misfit_variance
    scores = base + gain * chosen + math.sqrt(variance) * generator.standard_normal(chosen.shape)
    highest = np.full(_SIMULATED, -np.inf)
    for count in range(1, evals + 1):
        variances = np.full(count, variance)
        np.maximum(highest, rule.log_odds(scores[:, :count], variances), out=highest)
    return math.exp(max(float(np.quantile(highest, 1.0 - alpha)), 0.0))


def _healthy_run(series: Series) -> _Run | None:
    return _run(series, falling=False)


def _declined_run(series: Series) -> _Run | None:
    return _run(series, falling=True)


def _run(series: Series, *, falling: bool) -> _Run | None:
    """Return a run beside the curves of its fate, None if it is too short."""
    points = [point for point in series.points if math.isfinite(point.score)]
    points = points[:: math.ceil(len(points) / LONGEST)] if points else []
    if len(points) < _FEWEST_EVALS:
        return None
    scores = np.array([point.score for point in points])
    reported = np.array([reported_variance(point) for point in points])
    known = bool((reported > 0.0).all())
    believed = beliefs(structs.replace(_WIDE, horizon=scores.size))
    half = believed.falling
    return _Run(
        scores=scores,
        variances=reported if known else np.full(scores.size, _scatter(scores)),
        known=known,
        fate=slice(0, half) if falling else slice(half, 2 * half),
        believed=believed,
    )


def _scatter(scores: Array) -> float:
    """Return a variance of one evaluation from second differences, robust to a cliff."""
    bends = np.abs(np.diff(scores, n=2))
    return max(
        (1.4826 * float(np.median(bends))) ** 2 / 6.0, float(np.ptp(scores)) ** 2 * 1e-4, 1e-12
    )


def _start(runs: Sequence[_Run]) -> _Spread:
    first = np.array([run.scores[0] for run in runs])
    rise = float(np.median([run.scores.max() - run.scores[0] for run in runs]))
    gain = max(rise, math.sqrt(float(runs[0].variances.mean())))
    return _Spread(
        base=float(np.median(first)),
        base_variance=float(first.var()) + gain**2,
        gain=gain,
        gain_variance=gain**2,
    )


def _weighed(run: _Run, spread: _Spread) -> _Weighed:
    """Return the posterior of base and gain under each curve, and the weight of each curve."""
    precision = 1.0 / run.variances
    shares = run.shares
    cross, square = precision @ shares, precision @ (shares * shares)
    one = precision.sum() + 1.0 / spread.base_variance
    slope = square + 1.0 / spread.gain_variance
    base = (precision * run.scores).sum() + spread.base / spread.base_variance
    gain = (precision * run.scores) @ shares + spread.gain / spread.gain_variance
    determinant = one * slope - cross * cross
    mean_base = (slope * base - cross * gain) / determinant
    mean_gain = (one * gain - cross * base) / determinant
    logs = 0.5 * (base * mean_base + gain * mean_gain) - 0.5 * np.log(determinant)
    weight = np.exp(logs - logs.max())
    return _Weighed(
        weight=weight / weight.sum(),
        base=mean_base,
        gain=mean_gain,
        base_variance=slope / determinant,
        gain_variance=one / determinant,
    )


def _updated(runs: Sequence[_Run], spread: _Spread) -> _Spread:
    """One round of EM; standard deviations stay above a twentieth of the gain."""
    every = [_weighed(run, spread) for run in runs]
    base = float(np.mean([one.weight @ one.base for one in every]))
    gain = float(np.mean([one.weight @ one.gain for one in every]))
    least = (_SMALLEST_SD * abs(gain)) ** 2
    bases = [one.weight @ ((one.base - base) ** 2 + one.base_variance) for one in every]
    gains = [one.weight @ ((one.gain - gain) ** 2 + one.gain_variance) for one in every]
    return _Spread(
        base=base,
        base_variance=max(float(np.mean(bases)), least),
        gain=gain,
        gain_variance=max(float(np.mean(gains)), least),
    )


def _range(
    runs: Sequence[_Run],
    spread: _Spread,
    values: Callable[[_Run], Array],
    otherwise: tuple[float, float],
) -> tuple[float, float]:
    """Return the 5 and 95 % quantiles over curves, each run weighing them anew."""
    if not runs:
        return otherwise
    found = np.concatenate([values(run)[run.fate] for run in runs])
    weights = np.concatenate([_weighed(run, spread).weight for run in runs])
    order = np.argsort(found)
    reached = np.cumsum(weights[order]) / len(runs)
    low, high = (found[order][np.searchsorted(reached, q)] for q in (_TAIL, 1.0 - _TAIL))
    return float(low), float(high)


def _misfit(runs: Sequence[_Run], spread: _Spread) -> float:
    """Return how far runs are from the likeliest curves beyond their errors, over the gain."""
    beyond = []
    for run in runs:
        one = _weighed(run, spread)
        best = int(one.weight.argmax())
        rest = run.scores - one.base[best] - one.gain[best] * run.shares[:, best]
        fitted = run.scores.size / max(run.scores.size - _FITTED, 1)
        beyond.append(float((rest * rest).mean()) * fitted - float(run.variances.mean()))
    return math.sqrt(max(float(np.median(beyond)), 0.0)) / max(spread.gain, _LEVEL)


def _horizon(evals: Sequence[int]) -> int:
    """Return the length of runs if most have nearly the same, 0 if not."""
    middle = int(np.median(evals))
    alike = np.mean([abs(count - middle) <= middle / 5 for count in evals])
    return min(middle, LONGEST) if alike >= _EVEN_LENGTHS else 0


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _spec(rule: Bayes, odds: float) -> str:
    plain = Bayes()
    names = [name for name in rule.__struct_fields__ if name not in {"alpha", "odds"}]
    set_to = [f"{n}={getattr(rule, n)}" for n in names if getattr(rule, n) != getattr(plain, n)]
    return ",".join([f"bayes:odds={odds:.4g}", *set_to])
