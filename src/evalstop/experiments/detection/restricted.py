"""How much can any rule find that must leave every curve alone which does not fall?

A rule that stops at most a share a of *all* curves that do not fall stops at most a of any mixture
of them. So, by Neyman and Pearson, it finds no more of a world's declines than the likelihood
ratio of that world's prior against that mixture does at level a: whatever the mixture, that is an
upper bound, for rules that know the prior, too. The nearest mixture gives the lowest bound. Here
it is sought among the best non-decreasing fit to each decline and its healthy twin, with the
weights that maximise the likelihood of declining runs (the reversed information projection).

References:
    Lehmann, Romano, "Testing Statistical Hypotheses", 3rd ed., theorem 3.8.1, 2005. Gruenwald, de
    Heide, Koolen, "Safe testing", Journal of the Royal Statistical Society B 86, 2024.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evalstop.experiments.detection.reference import final_evidence, sampled
from evalstop.experiments.detection.worlds import shapes, truths

__all__ = ["never_falling", "restricted_limit"]

Array = NDArray[np.float64]

_PARTICLES = 500
_ROUNDS = 150
_FITTED = 2500
_BLOCK = 1000


def restricted_limit(
    world: str, evals: int, sigma: float, levels: tuple[float, ...], *, runs: int, seed: int
) -> list[float]:
    """Return an upper bound of the share found by rules that hold each level on every null.

    Args:
        world: a declining world; its horizon, prior and noise are known.
        evals: evaluations of a run.
        sigma: standard deviation of the noise.
        levels: shares of curves that do not fall that may be stopped within ``evals``.
        runs: declining runs drawn; five times as many of the mixture set the level.
        seed: of everything drawn.
    """
    generator = np.random.default_rng([seed, evals, round(sigma * 10_000), *world.encode()])
    twin, falling = truths(world, shapes(generator, _PARTICLES, evals), evals)
    healthy = np.concatenate([never_falling(falling), twin])
    even = np.full(_PARTICLES, 1.0 / _PARTICLES)
    weights = _nearest(healthy, sampled(generator, falling, even, _FITTED, sigma), sigma)

    def ratio(scores: Array) -> Array:
        parts = [scores[start : start + _BLOCK] for start in range(0, scores.shape[0], _BLOCK)]
        return np.concatenate(
            [
                _log_mean(final_evidence(falling, part, sigma), even)
                - _log_mean(final_evidence(healthy, part, sigma), weights)
                for part in parts
            ]
        )

    null = ratio(sampled(generator, healthy, weights, 5 * runs, sigma))
    found = ratio(sampled(generator, falling, even, runs, sigma))
    return [float((found >= np.quantile(null, 1.0 - level)).mean()) for level in levels]


def never_falling(rows: Array) -> Array:
    """Return the best non-decreasing fit to each row, by pooling adjacent violators."""
    fitted = np.empty_like(rows)
    for index, row in enumerate(rows.tolist()):
        blocks: list[tuple[float, int]] = []
        for value in row:
            mean, count = value, 1
            while blocks and blocks[-1][0] >= mean:
                other, more = blocks.pop()
                mean = (mean * count + other * more) / (count + more)
                count += more
            blocks.append((mean, count))
        fitted[index] = np.concatenate([np.full(count, mean) for mean, count in blocks])
    return fitted


def _nearest(healthy: Array, scores: Array, sigma: float) -> Array:
    """Return the weights of the mixture under which ``scores`` are likeliest, by EM."""
    logs = final_evidence(healthy, scores, sigma)
    likelihood = np.exp(logs - logs.max(axis=1, keepdims=True))
    weights = np.full(healthy.shape[0], 1.0 / healthy.shape[0])
    for _ in range(_ROUNDS):
        weights *= (likelihood / (likelihood @ weights)[:, None]).mean(axis=0)
    total: Array = weights / weights.sum()
    return total


def _log_mean(logs: Array, weights: Array) -> Array:
    top = logs.max(axis=1, keepdims=True)
    mean: Array = np.log(np.exp(logs - top) @ weights) + top[:, 0]
    return mean
