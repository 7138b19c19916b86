"""How noisy is one evaluation: the reported standard error, or what the curve itself says.

Robust estimate from first differences, sigma = 1.4826 * median|x_t - x_(t-1)| / sqrt(2): slow
trends cancel, and a cliff is one difference among many. It needs `MIN_DIFFERENCES` of them. The
larger of the reported and the robust one counts (R02): a reporter who forgets a source of noise
cannot talk a rule into stopping.
"""

from __future__ import annotations

import math

__all__ = ["MIN_DIFFERENCES", "WINDOW", "robust_sigma", "sigma_of"]

MIN_DIFFERENCES = 8
"""Differences needed before the robust estimate is used."""

WINDOW = 32
"""Newest differences that enter the estimate."""

_TO_SIGMA = 1.4826 / math.sqrt(2.0)


def robust_sigma(differences: tuple[float, ...]) -> float | None:
    """Return the robust sigma of one evaluation, None with too few differences.

    Args:
        differences: absolute first differences of the scores, in the metric's units.
    """
    count = len(differences)
    if count < MIN_DIFFERENCES:
        return None
    ordered = sorted(differences)
    middle = count // 2
    median = ordered[middle] if count % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return _TO_SIGMA * median


def sigma_of(stderr: float | None, differences: tuple[float, ...]) -> float | None:
    """Return max(reported, robust) standard error; None while neither is known."""
    robust = robust_sigma(differences)
    if stderr is None or robust is None:
        return robust if stderr is None else stderr
    return max(stderr, robust)
