"""When jobs come. Load is work handed in over what the cluster can do, work in GPU-seconds."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["bursty_arrivals", "mean_gap_s", "poisson_arrivals"]

Floats: TypeAlias = NDArray[np.float64]


def mean_gap_s(work_gpu_s: Floats, *, load: float, gpus: float) -> float:
    """Return mean seconds between arrivals: mean(work) / (load x GPUs of speed 1)."""
    return float(work_gpu_s.mean()) / (load * gpus)


def poisson_arrivals(rng: np.random.Generator, count: int, *, gap_s: float) -> Floats:
    """Return times of a Poisson process, the first at 0."""
    return _from_gaps(rng.exponential(gap_s, size=count))


def bursty_arrivals(
    rng: np.random.Generator, count: int, *, gap_s: float, variation: float
) -> Floats:
    """Return times whose gaps are gamma with this coefficient of variation, the first at 0.

    Variation 1 is Poisson; above it jobs come in bursts (shape = 1 / variation^2).
    """
    shape = 1 / variation**2
    return _from_gaps(rng.gamma(shape, gap_s / shape, size=count))


def _from_gaps(gaps: Floats) -> Floats:
    """Return the running sum, shifted so that the first arrival is at 0."""
    times: Floats = np.cumsum(gaps)
    return times - times[0] if times.size else times
