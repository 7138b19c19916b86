"""Has a curve fallen from its very start?  For few evaluations without an error.

One real decline in three peaks in the first twentieth of its run. Then nearly the whole curve is
the fall, and what the curve's own scatter about a fall says of the error beats what its
differences say: those tell apart noise and signal of any shape, and pay for that with half of
their degrees of freedom. For p = 1, 2, 3 the shape is that of `evalstop.detectors.bank`: level for
p evaluations, then falling as -sqrt(i / r) for the r that are left. With a g-prior on the size of
the drop, and Jeffreys' on level and error, the Bayes factor against no drop is

    2 (1 + g)^((n - 2) / 2) / (1 + g (1 - R^2))^((n - 1) / 2)

where the shape is seen to fall, with R^2 its share of the sum of squares about the mean; else
it is nothing. The answer is the mean over p. No rise excites it: weights of a shape that falls,
less their mean, give no non-decreasing truth a positive answer.

Reference:
    Liang, Paulo, Molina, Clyde, Berger, "Mixtures of g priors for Bayesian variable selection",
    Journal of the American Statistical Association 103, 2008 (equation 6).
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from evalstop.detectors.bank import DROP_SCALE, decline

__all__ = ["LAST_SLUMP", "WEIGHT", "mixed_with_slump", "mixed_with_slump_one"]

Array = NDArray[np.float64]

LAST_SLUMP = 11
"""Scores up to which it is asked. From 12 on autocorrelation is reckoned with, of which this knows
nothing, and the estimate by differences serves."""

WEIGHT = 0.25
"""Of a slump among declines. A fifth to a third gives the most where a third of all are slumps."""

_LEVELS = (1, 2, 3)

_LOG_OTHERS = math.log(1.0 - WEIGHT)

_NOTHING = 1e-300


def mixed_with_slump(statistic: Array, scores: Array) -> Array:
    """Return the log of the average evidence of the bank's declines and of slumps.

    Args:
        statistic: log evidence of the bank, (runs,).
        scores: whole curves, oldest first, (runs, n), n from 6 to `LAST_SLUMP`.
    """
    shapes, spreads = _shapes(scores.shape[1])
    count = scores.shape[1]
    centred = scores - scores[:, :1]
    centred -= centred.mean(axis=1, keepdims=True)
    total = (centred * centred).sum(axis=1)
    answers = np.maximum(centred @ shapes.T, 0.0)
    explained = np.divide(
        answers * answers, total[:, None], out=np.zeros_like(answers), where=total[:, None] > 0.0
    )
    left = 1.0 + spreads * (1.0 - np.minimum(explained, 1.0))
    factors = 2.0 * (1.0 + spreads) ** (0.5 * (count - 2)) / left ** (0.5 * (count - 1))
    slump = np.where(answers > 0.0, factors, 0.0).mean(axis=1)
    mixed: Array = np.logaddexp(
        _LOG_OTHERS + statistic, np.log(np.maximum(WEIGHT * slump, _NOTHING))
    )
    return mixed


def mixed_with_slump_one(statistic: float, scores: Array) -> float:
    """Return `mixed_with_slump` of one run, in a tenth of the time: scores are (n,)."""
    count = scores.size
    centred = scores - scores[0]
    centred -= np.add.reduce(centred) / count
    total = float(centred.dot(centred))
    if total <= 0.0:
        return statistic + _LOG_OTHERS
    power, slump = 0.5 * (count - 1), 0.0
    answers = _shapes(count)[0].dot(centred).tolist()
    for answer, (spread, factor) in zip(answers, _terms(count), strict=True):
        if answer > 0.0:
            left = 1.0 - min(answer * answer / total, 1.0)
            slump += factor / math.pow(1.0 + spread * left, power)
    if slump == 0.0:
        return statistic + _LOG_OTHERS
    # Evidence of the bank is at most e^600, and of slumps far less: neither overflows.
    return math.log((1.0 - WEIGHT) * math.exp(statistic) + slump)


@cache
def _shapes(count: int) -> tuple[Array, Array]:
    """Return the shapes, of unit length and free of their mean, (3, n), and g of each, (3,)."""
    templates = np.stack([decline(level, count - level) for level in _LEVELS])
    power = (templates**2).sum(axis=1)
    return templates / np.sqrt(power)[:, None], power * DROP_SCALE**2


@cache
def _terms(count: int) -> tuple[tuple[float, float], ...]:
    """Return g of each shape, and what of its weighted Bayes factor does not depend on scores."""
    return tuple(
        (spread, WEIGHT / len(_LEVELS) * 2.0 * math.pow(1.0 + spread, 0.5 * (count - 2)))
        for spread in _shapes(count)[1].tolist()
    )
