"""Shapes of decline: the bank of matched filters that `scan` listens with.

One filter asks one question: "was the score level for p evaluations, and has it been falling for
the last r?" Its template is f = 0 for p evaluations, then -sqrt(i / r) for i = 1..r. The square
root lies between a cliff (which falls at once) and a straight line, and loses little on either;
a bank of all three shapes finds no more (docs/design/0004-default-rule.md).

The filter's weights are w = f - mean(f): what is left of f once the best non-decreasing curve is
taken out. Hence for every truth mu that does not fall, w . mu <= 0: a rise can only lower the
answer, and of all healthy curves the flat one excites the bank most. Thresholds that hold on
flat noise therefore hold on every curve that does not fall.

The windows p and r run over the Fibonacci numbers up to 34, so a run is judged by its newest 68
evaluations, and the cost of an evaluation does not depend on the length of the run.
"""

from __future__ import annotations

import math
import struct
from functools import cache

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

__all__ = ["DROP_SCALE", "MOST", "REACH", "WINDOWS", "Bank", "bank_at", "decline"]

WINDOWS = (1, 2, 3, 5, 8, 13, 21, 34)
"""Lengths of the level and of the falling part, in evaluations."""

REACH = 2 * WINDOWS[-1]
"""Evaluations that the longest filter spans."""

DROP_SCALE = 4.0
"""Scale of the half-normal prior on the size of the drop, in standard errors of one evaluation.

Much smaller drops cannot be seen at all and much larger ones cannot be missed, so the power
hardly depends on it (2 to 8 were tried)."""

_WEIGHT_POWER = 3.0
"""Filters weigh in by (p r)^3 among those that fit: two for the geometric spacing of the windows,
which stand for all lengths between, one to favour filters that use more of the data."""


MOST = 600.0
"""Evidence of one filter, as a logarithm, beyond which all is the same."""

_POWERS = struct.Struct("4d")


class Bank(Struct, frozen=True, kw_only=True):
    """The filters that fit into ``span`` evaluations. K filters; arrays are float64.

    Attributes:
        span: evaluations that enter, the newest last.
        filters: weights of unit length times the root of ``gain``, (K, span).
        squares: squares of the weights of unit length, (K, span).
        resonance: ones, then `echoes`, (K, 4): a product with powers of rho gives `swell_one`.
        gain: half the shrinkage of z^2, (K,).
        offset: log weight plus log normaliser, (K,).
        weights: its exponential, (K,).
    """

    span: int
    filters: NDArray[np.float64]
    squares: NDArray[np.float64]
    resonance: NDArray[np.float64]
    gain: NDArray[np.float64]
    offset: NDArray[np.float64]
    weights: NDArray[np.float64]

    @property
    def echoes(self) -> NDArray[np.float64]:
        """Twice the sums of products at lags 1, 2 and 3, (K, 3)."""
        return self.resonance[:, 1:]

    def mixed_one(self, answers: NDArray[np.float64], rho: float = 0.0) -> float:
        """Return log sum_k exp(offset_k + max(answers_k, 0)^2) of one run.

        Squares are cut at `MOST`: evidence beyond e^600 is all the same, and stays finite.

        Args:
            answers: to the error of one evaluation that is taken for independent of others, (K,);
                overwritten.
            rho: autocorrelation to reckon with: each square is divided by `swell`.
        """
        np.maximum(answers, 0.0, out=answers)
        np.multiply(answers, answers, answers)
        if rho:
            np.divide(answers, self.swell_one(rho), answers)
        np.minimum(answers, MOST, out=answers)
        np.add(answers, self.offset, answers)
        np.exp(answers, answers)
        return math.log(np.add.reduce(answers))

    def tamed(self, answers: NDArray[np.float64], freedom: float) -> NDArray[np.float64]:
        """Return answers as they would be with a known error, overwriting ``answers``.

        z^2 becomes freedom log(1 + z^2 / freedom): the likelihood ratio with the variance
        estimated from ``freedom`` degrees of it, which a lucky small estimate cannot blow up.

        Args:
            answers: those with an estimated error, times the root of ``gain``.
            freedom: degrees of freedom of the estimate, > 0.
        """
        np.maximum(answers, 0.0, out=answers)
        np.square(answers, out=answers)
        answers /= self.gain * freedom
        np.log1p(answers, out=answers)
        answers *= self.gain * freedom
        np.sqrt(answers, out=answers)
        return answers

    def swell_one(self, rho: float) -> NDArray[np.float64]:
        """Return the factor of each filter's variance under autocorrelation ``rho``, (K,).

        The variance is 1 + 2 sum_m rho^m sum_i w_i w_(i+m), here up to m = 3, and never taken
        below 1: a correlation that is misread must not make evidence of nothing.
        """
        square = rho * rho
        powers = np.frombuffer(_POWERS.pack(1.0, rho, square, square * rho))
        factors: NDArray[np.float64] = self.resonance.dot(powers)
        np.maximum(factors, 1.0, out=factors)
        return factors


def bank_at(count: int) -> Bank:
    """Return the filters for a run of ``count`` >= 2 evaluations."""
    return _bank(min(count, REACH))


def decline(level: int, falling: int) -> NDArray[np.float64]:
    """Return the shape of a decline less its mean, (level + falling,).

    Args:
        level: evaluations before the fall.
        falling: evaluations of the fall, -sqrt(i / falling) for i = 1, 2, ...
    """
    template = np.concatenate([np.zeros(level), -np.sqrt(np.arange(1, falling + 1) / falling)])
    shape: NDArray[np.float64] = template - template.mean()
    return shape


@cache
def _bank(span: int) -> Bank:
    windows = [(p, r) for p in WINDOWS for r in WINDOWS if p + r <= span]
    weights = np.zeros((len(windows), span))
    for row, (p, r) in enumerate(windows):
        weights[row, span - p - r :] = decline(p, r)
    power = (weights**2).sum(axis=1)
    shrinkage = power * DROP_SCALE**2 / (1.0 + power * DROP_SCALE**2)
    prior = np.array([float(p * r) for p, r in windows]) ** _WEIGHT_POWER
    gain = shrinkage / 2.0
    units = weights / np.sqrt(power)[:, None]
    return Bank(
        span=span,
        filters=units * np.sqrt(gain)[:, None],
        squares=units**2,
        resonance=np.stack(
            [
                np.ones(len(windows)),
                *(2.0 * (units[:, lag:] * units[:, :-lag]).sum(axis=1) for lag in (1, 2, 3)),
            ],
            axis=1,
        ),
        gain=gain,
        offset=np.log(prior / prior.sum()) + 0.5 * np.log1p(-shrinkage),
        weights=prior / prior.sum() * np.sqrt(1.0 - shrinkage),
    )
