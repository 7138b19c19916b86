"""What lies between true and observed: noise of scores, their reported errors, proxy and loss."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "UNDERSTATED",
    "ar1_noise",
    "binomial_sigma",
    "proxy_reward",
    "reported_stderr",
    "training_loss",
]

Floats: TypeAlias = NDArray[np.float64]
Real: TypeAlias = float | Floats

UNDERSTATED = 2 / 3
"""Share of the true error that an under-reporting suite states (item noise without judge noise)."""


def ar1_noise(rng: np.random.Generator, shape: tuple[int, int], *, rho: float = 0.0) -> Floats:
    """Return standard noise of shape (jobs, evals): z_t = rho z_(t-1) + sqrt(1 - rho^2) e_t.

    Every entry has variance 1, the first included; neighbours correlate by ``rho``; 0 is
    independent noise.
    """
    noise = rng.standard_normal(shape)
    if rho:
        fresh = np.sqrt(1 - rho * rho)
        for t in range(1, shape[1]):
            noise[:, t] = rho * noise[:, t - 1] + fresh * noise[:, t]
    return noise


def binomial_sigma(scores: Real, *, items: Real) -> Floats:
    """Return the standard error of a mean of 0/1 items: sqrt(q (1 - q) / items).

    q = (items x score + 1) / (items + 2), scores clipped to 0-1, so that it is never 0
    (add-one smoothing, as for the real series).
    """
    n = _floats(items)
    q = (n * np.clip(_floats(scores), 0.0, 1.0) + 1) / (n + 2)
    sigma: Floats = np.sqrt(q * (1 - q) / n)
    return sigma


def reported_stderr(
    sigma: Floats, *, reported: Literal["true", "understated", "unknown"]
) -> Floats | None:
    """Return what a suite says its error is: the truth, 2/3 of it, or nothing."""
    match reported:
        case "true":
            return sigma
        case "understated":
            return UNDERSTATED * sigma
        case "unknown":
            return None


def proxy_reward(root: Real, *, gain: Real = 1.0) -> Floats:
    """Return the training reward: gain x ln(1 + x), x = sqrt(KL / KL*).

    It knows no peak: it rises with the optimisation spent, at a falling rate, through the true
    peak and beyond it (Gao et al. 2023, figure 1: the proxy parts from gold and keeps rising).
    """
    reward: Floats = _floats(gain) * np.log1p(_floats(root))
    return reward


def training_loss(
    progress: Real, *, start: Real = 2.0, floor: Real = 1.0, rate: Real = 5.0
) -> Floats:
    """Return floor + (start - floor) / (1 + rate t): the sublinear decay that SLAQ assumes.

    It falls throughout, whatever the true quality does.
    """
    t = _floats(progress)
    loss: Floats = _floats(floor) + (_floats(start) - _floats(floor)) / (1 + rate * t)
    return loss


def _floats(values: Real) -> Floats:
    """Return an array."""
    return np.asarray(values, dtype=np.float64)
