"""Thresholds of `scan`: looked up in the shipped table, between its points by interpolation.

The table (`evalstop.detectors.threshold_table`) is made by ``tools/calibrate_scan.py``. Threshold
n is set so that the chance of an alarm up to evaluation n, on a curve whose quality does not
fall, is alpha * s(n) with s(n) = n^2 / (n^2 + 12^2): 15 % of alpha is spent in 5
evaluations, 41 % in 10, 74 % in 20, 92 % in 40, 99 % in 100, and all of it never. Early enough for
short runs, late enough that a long one keeps its power, and the horizon need not be known.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import lru_cache

from evalstop.detectors.threshold_table import ALPHAS, COUNTS, ESTIMATED, KNOWN

__all__ = ["FIRST_ALARM", "share_spent", "threshold", "threshold_within"]

FIRST_ALARM = 3
"""First evaluation at which a curve with a known error can be stopped."""

HALF_SPENT = 12.0
SPENDING_POWER = 2.0

_WITHIN = 0.9
"""Share of alpha that is spent within a stated horizon."""

_BEYOND = 3.0
"""Slope in log n beyond the table: the spending falls like n^-3 there, the tail like e^-h."""


def share_spent(count: float) -> float:
    """Return the share s(n) of alpha that may be spent by evaluation ``count``."""
    return 1.0 / (1.0 + math.pow(HALF_SPENT / count, SPENDING_POWER))


@lru_cache(maxsize=8192)
def threshold(count: int, alpha: float, *, known: bool) -> float:
    """Return the threshold at evaluation ``count`` for a lifetime false-stop rate ``alpha``.

    Args:
        count: evaluations so far, >= 1; before the first in the table its value is returned.
        alpha: in (0, 0.3]. Between and beyond the table's rates linear in log alpha.
        known: whether the error of an evaluation is reported.
    """
    table = KNOWN if known else ESTIMATED
    high, share = _rate(alpha)
    below, above = _at(count, table[high - 1]), _at(count, table[high])
    return below + share * (above - below)


@lru_cache(maxsize=64)
def _rate(alpha: float) -> tuple[int, float]:
    """Return the first of the table's rates above ``alpha``, and the place between the two."""
    rates = [math.log(rate) for rate in ALPHAS]
    level = math.log(alpha)
    high = min(max(bisect_right(rates, level), 1), len(rates) - 1)
    return high, (level - rates[high - 1]) / (rates[high] - rates[high - 1])


@lru_cache(maxsize=8192)
def threshold_within(count: int, alpha: float, *, horizon: int, known: bool) -> float:
    """Return the threshold at evaluation ``count`` of a run that is to have ``horizon`` of them.

    Row a of the table has stopped a * s(N) by evaluation N. So the row 0.9 alpha / s(N) spends
    0.9 alpha by the horizon N; the rest is for runs that go on beyond it.

    Args:
        count: evaluations so far, >= 1.
        alpha: lifetime false-stop rate, in (0, 0.3].
        horizon: evaluations of the whole run; 0 if unknown, as `threshold`.
        known: whether the error of an evaluation is reported.
    """
    if not horizon:
        return threshold(count, alpha, known=known)
    if count > horizon:
        return threshold(count, (1.0 - _WITHIN) * alpha, known=known)
    return threshold(count, min(_WITHIN * alpha / share_spent(horizon), ALPHAS[-1]), known=known)


def _at(count: int, row: tuple[float, ...]) -> float:
    if count <= COUNTS[0]:
        return row[0]
    if count >= COUNTS[-1]:
        return row[-1] + _BEYOND * math.log(count / COUNTS[-1])
    high = bisect_right(COUNTS, count)
    left, right = math.log(COUNTS[high - 1]), math.log(COUNTS[high])
    share = (math.log(count) - left) / (right - left)
    return row[high - 1] + share * (row[high] - row[high - 1])
