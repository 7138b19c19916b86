"""Rules of other tools that need more than one curve."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["RAY_MEDIAN", "median_stops"]

RAY_MEDIAN = "ray-median"
"""Ray Tune's median stopping rule, by its documented logic (Golovin et al., Vizier, KDD 2017)."""

_GRACE = 3
_FEWEST = 3


def median_stops(scores: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the index at which each run is stopped, -1 if never: (runs,).

    A run is stopped at evaluation n if its best score so far lies below the median of the
    running means of the other runs up to n. It ranks runs against each other, so half of a
    population of equals is at risk.

    Args:
        scores: runs to judge, (runs, evals).
        others: the population they are compared with, (others, evals).
    """
    counts = np.arange(1, scores.shape[1] + 1)
    best = np.maximum.accumulate(scores, axis=1)
    median = np.median(np.cumsum(others, axis=1) / counts, axis=0)
    below = best < median
    below[:, :_GRACE] = False
    if others.shape[0] < _FEWEST:
        below[:] = False
    return np.where(below.any(axis=1), below.argmax(axis=1), -1)
