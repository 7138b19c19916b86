"""The limit: what a Bayesian who knows the world's prior and the noise would find.

Log posterior odds that the peak is past, given the scores so far: curves are drawn from the
world's own prior (peak, power, drop; horizons log-uniform), base and gain are integrated out in
closed form under normal priors of the same mean and variance. It is told neither label, peak nor
horizon. The oracle, for scale only, is told each run's true curve and its twin, and only has to
tell which of the two it sees.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evalstop.experiments.detection.worlds import shapes, truths

__all__ = ["final_evidence", "oracle", "posterior_odds", "recall_at", "sampled"]

Array = NDArray[np.float64]

_SHARE_DECLINING = 0.6
_BASE, _GAIN, _WIDTH = 0.3, 0.4, 0.2
_BLOCK = 500


def posterior_odds(
    world: str, scores: Array, sigma: float, generator: np.random.Generator, particles: int = 800
) -> Array:
    """Return the log odds that the peak is past after each evaluation, (runs, evals).

    Args:
        world: a declining world.
        scores: (runs, evals).
        sigma: standard deviation of the noise.
        generator: draws the particles.
        particles: curves drawn for either hypothesis.
    """
    drawn = shapes(generator, particles, None)
    twin, declining = truths(world, drawn, scores.shape[1])
    time = np.arange(1, scores.shape[1] + 1)
    past = time[:, None] > drawn.peak[None, :]
    result = np.empty_like(scores)
    for start in range(0, scores.shape[0], _BLOCK):
        block = scores[start : start + _BLOCK]
        fallen, stayed = _Evidence(declining, sigma), _Evidence(twin, sigma)
        for index in range(scores.shape[1]):
            one, other = fallen.add(block[:, index]), stayed.add(block[:, index])
            top = np.maximum(one.max(axis=1), other.max(axis=1))[:, None]
            one, other = np.exp(one - top), np.exp(other - top)
            over = one @ past[index] * _SHARE_DECLINING
            ahead = one @ ~past[index] * _SHARE_DECLINING + other.sum(axis=1) * (
                1 - _SHARE_DECLINING
            )
            result[start : start + _BLOCK, index] = np.log(over + 1e-300) - np.log(ahead + 1e-300)
    return result


class _Evidence:
    """Marginal log likelihood of y = base + gain c + noise, one evaluation after another."""

    def __init__(self, curves: Array, sigma: float) -> None:
        self._curves = curves
        self._precision = 1.0 / sigma**2
        self._count = 0
        self._sum_y: Array = np.zeros(1)
        self._sum_yc: Array = np.zeros(1)
        self._sum_c = np.zeros(curves.shape[0])
        self._sum_cc = np.zeros(curves.shape[0])

    def add(self, scores: Array) -> Array:
        """Take in one score a run; return (runs, particles), up to a constant of the run."""
        curve = self._curves[:, self._count]
        residual = (scores - _BASE)[:, None]
        self._count += 1
        self._sum_y = self._sum_y + residual
        self._sum_yc = self._sum_yc + residual * curve
        self._sum_c = self._sum_c + curve
        self._sum_cc = self._sum_cc + curve * curve
        prior = 12.0 / _WIDTH**2
        base = self._precision * (self._sum_y - _GAIN * self._sum_c)
        gain = self._precision * (self._sum_yc - _GAIN * self._sum_cc)
        a = self._precision * self._count + prior
        b = self._precision * self._sum_c
        c = self._precision * self._sum_cc + prior
        determinant = a * c - b * b
        quadratic = (c * base**2 - 2.0 * b * base * gain + a * gain**2) / determinant
        mean = self._precision * (_GAIN * self._sum_yc - 0.5 * _GAIN**2 * self._sum_cc)
        evidence: Array = mean + 0.5 * quadratic - 0.5 * np.log(determinant)
        return evidence


def final_evidence(shares: Array, scores: Array, sigma: float) -> Array:
    """Return the marginal log likelihood of whole runs under each curve, (runs, curves).

    Up to a constant of the run. Base and gain are integrated out under their normal priors.

    Args:
        shares: shares of the gain, (curves, evals).
        scores: (runs, evals).
        sigma: standard deviation of the noise.
    """
    evidence = _Evidence(shares, sigma)
    logs = np.zeros((scores.shape[0], shares.shape[0]))
    for index in range(scores.shape[1]):
        logs = evidence.add(scores[:, index])
    return logs


def sampled(
    generator: np.random.Generator, shares: Array, weights: Array, runs: int, sigma: float
) -> Array:
    """Draw scores of runs from a mixture of curves, base and gain from their normal priors."""
    chosen = generator.choice(shares.shape[0], runs, p=weights)
    spread = _WIDTH / np.sqrt(12.0)
    base = _BASE + spread * generator.standard_normal((runs, 1))
    gain = _GAIN + spread * generator.standard_normal((runs, 1))
    noise = generator.standard_normal((runs, shares.shape[1]))
    scores: Array = base + gain * shares[chosen] + sigma * noise
    return scores


def oracle(scores: Array, healthy: Array, declining: Array, sigma: float) -> Array:
    """Return the log likelihood ratio of each run's decline against its twin, (runs, evals)."""
    terms = (declining - healthy) * (scores - 0.5 * (declining + healthy)) / sigma**2
    ratio: Array = np.cumsum(terms, axis=1)
    return ratio


def recall_at(fpr: float, healthy: Array, declining: Array) -> float:
    """Return the share of declining runs found by the threshold that stops ``fpr`` of the healthy.

    Args:
        fpr: false-stop rate to match; at least one healthy run in all is stopped.
        healthy: a statistic of healthy runs, (runs, evals).
        declining: the same of declining runs.
    """
    tops = np.sort(healthy.max(axis=1))[::-1]
    stopped = max(round(fpr * tops.size), 1)
    return float((declining.max(axis=1) >= tops[stopped - 1]).mean())
