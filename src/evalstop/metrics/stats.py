"""Intervals and paired comparisons. An interval is (low, high); an undefined end is NaN.

Resampling takes a generator, or a seed for one: no other function of this package draws.
Quantiles come from scipy.special. scipy.stats takes 1.5 s to import, longer than most simulations
that are summarised, so it is imported where it is needed: for the bootstrap.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from msgspec import Struct
from scipy.special import ndtri, stdtr, stdtrit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Interval",
    "PairedTest",
    "bootstrap_interval",
    "holm_adjusted",
    "paired_difference",
    "relative_change_interval",
    "t_interval",
    "wilson_interval",
]

Interval: TypeAlias = tuple[float, float]

_UNDEFINED: Interval = (math.nan, math.nan)


class PairedTest(Struct, frozen=True, kw_only=True):
    """Comparison of two treatments on the same seeds.

    Attributes:
        mean: mean of ``treated - control``.
        interval: t interval of that mean.
        p_value: two-sided paired t test; NaN for fewer than two pairs.
        effect_size: Cohen's d of the differences, mean / standard deviation; NaN if they are
            all alike.
        pairs: how many.
    """

    mean: float
    interval: Interval
    p_value: float
    effect_size: float
    pairs: int


def wilson_interval(successes: int, trials: int, *, confidence: float = 0.95) -> Interval:
    """Return Wilson's score interval of a proportion; (NaN, NaN) for no trials.

    centre +- half, with z the normal quantile, n trials, p = successes / n:
    centre = (p + z^2 / 2n) / (1 + z^2 / n),
    half = z sqrt(p (1 - p) / n + z^2 / 4n^2) / (1 + z^2 / n).
    Wilson, Probable inference, the law of succession, and statistical inference (1927).
    """
    if trials == 0:
        return _UNDEFINED
    z = float(ndtri((1 + confidence) / 2))
    share, square = successes / trials, z * z / trials
    centre = (share + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt(share * (1 - share) / trials + square / (4 * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


def t_interval(values: Sequence[float] | ArrayLike, *, confidence: float = 0.95) -> Interval:
    """Return mean +- t sd / sqrt(n), NaN entries left out; (NaN, NaN) for fewer than two."""
    some = _finite(values)
    if some.size < 2:  # noqa: PLR2004 -- no spread in one value
        return _UNDEFINED
    centre = float(some.mean())
    half = float(
        stdtrit(some.size - 1, (1 + confidence) / 2) * some.std(ddof=1) / math.sqrt(some.size)
    )
    return centre - half, centre + half


def bootstrap_interval(
    values: Sequence[float] | ArrayLike,
    *,
    rng: np.random.Generator | int,
    statistic: Callable[..., Any] = np.mean,
    confidence: float = 0.95,
    resamples: int = 2000,
    method: Literal["percentile", "BCa"] = "BCa",
) -> Interval:
    """Return a bootstrap interval, NaN entries left out; (NaN, NaN) for fewer than two.

    BCa: bias-corrected and accelerated (Efron 1987). Values that are all alike give that value
    twice, where scipy warns and gives NaN.

    Args:
        values: the sample.
        rng: a generator, or the seed of one.
        statistic: takes the sample and ``axis``.
        confidence: chance that the interval covers the truth.
        resamples: how often the sample is drawn anew.
        method: percentile, or BCa.
    """
    some = _finite(values)
    if some.size < 2:  # noqa: PLR2004 -- no spread in one value
        return _UNDEFINED
    if float(np.ptp(some)) == 0.0:
        alike = float(statistic(some, axis=-1))
        return alike, alike
    from scipy import stats  # noqa: PLC0415 -- slow to import, see the top of the file

    found = stats.bootstrap(
        (some,),
        statistic,
        n_resamples=resamples,
        confidence_level=confidence,
        method=method,
        rng=np.random.default_rng(rng),
        vectorized=True,
    ).confidence_interval
    return float(found.low), float(found.high)


def paired_difference(
    treated: Sequence[float] | ArrayLike,
    control: Sequence[float] | ArrayLike,
    *,
    confidence: float = 0.95,
) -> PairedTest:
    """Compare ``treated - control``, pair by pair; pairs with a NaN are left out.

    Without pairs everything is NaN. Differences that are all alike have p-value 1 if they are 0,
    else 0: they leave no doubt.
    """
    difference = _finite(np.asarray(treated, dtype=float) - np.asarray(control, dtype=float))
    pairs = int(difference.size)
    mean = float(difference.mean()) if pairs else math.nan
    spread = float(difference.std(ddof=1)) if pairs > 1 else math.nan
    if pairs > 1 and spread > 0:
        p_value = float(2 * stdtr(pairs - 1, -abs(mean) * math.sqrt(pairs) / spread))
        effect = mean / spread
    else:
        p_value = math.nan if pairs < 2 else float(mean == 0.0)  # noqa: PLR2004 -- pairs
        effect = math.nan
    return PairedTest(
        mean=mean,
        interval=t_interval(difference, confidence=confidence),
        p_value=p_value,
        effect_size=effect,
        pairs=pairs,
    )


def relative_change_interval(
    treated: Sequence[float] | ArrayLike,
    control: Sequence[float] | ArrayLike,
    *,
    confidence: float = 0.95,
) -> tuple[float, Interval]:
    """Return the mean of ``treated / control - 1`` over pairs, and its t interval.

    Pairs with a NaN or a control of 0 are left out; NaN without pairs.
    """
    above, below = np.asarray(treated, dtype=float), np.asarray(control, dtype=float)
    usable = np.isfinite(above) & np.isfinite(below) & (below != 0)
    change = above[usable] / below[usable] - 1
    mean = float(change.mean()) if change.size else math.nan
    return mean, t_interval(change, confidence=confidence)


def holm_adjusted(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number, in the same order; empty for none.

    Sorted ascending, the i-th of m (from 0) becomes max over j <= i of min(1, (m - j) p_j). NaN
    stays NaN and does not count. Holm, A simple sequentially rejective multiple test (1979).
    """
    adjusted = [math.nan] * len(p_values)
    known = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    highest = 0.0
    for rank, (p, place) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * p))
        adjusted[place] = highest
    return adjusted


def _finite(values: Sequence[float] | ArrayLike) -> NDArray[np.float64]:
    """Return the entries that are numbers."""
    array = np.asarray(values, dtype=np.float64)
    return array[np.isfinite(array)]
