"""True quality over a run: families of curves with a known turning point.

Every family maps progress t (0 at the start, 1 at the end of the run) to the share of the gain
that has been reached: 0 at the start, 1 at the top. All arguments broadcast, so that one call
makes the curves of a whole workload. The true score is base + gain x share.

Families that can decline take ``peak``, the progress at their top, and rise alike up to it: a
healthy run is the same curve with its peak at or after its end. What a detector sees before the
peak does not depend on the label.

Gao, Schulman, Hilton, Scaling laws for reward model overoptimization (2023): with d = sqrt(KL),
gold reward is R = d (alpha - beta log d) under RL and R = d (alpha - beta d) for best-of-n. In
units of the peak, x = sqrt(KL / KL*), that is R / R* = x (1 - ln x) and x (2 - x). KL grows as
t^power with power in 1..2, so x = (t / peak)^(power / 2): the drop follows, there is no steepness
to choose.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "best_of_n",
    "cliff",
    "collapse",
    "dip",
    "gao_rl",
    "kl_root",
    "late_bloomer",
    "linear_decline",
    "peak_for_kl_ratio",
    "plateau",
    "random_walk",
    "restart",
    "saturating",
    "slow_rise",
]

Floats: TypeAlias = NDArray[np.float64]
Real: TypeAlias = float | Floats


def kl_root(progress: Real, *, peak: Real, power: Real) -> Floats:
    """Return x = sqrt(KL / KL*) = (t / peak)^(power / 2): 1 at the peak."""
    ratio = _floats(progress) / _floats(peak)
    root: Floats = ratio ** (_floats(power) / 2)
    return root


def peak_for_kl_ratio(ratio: Real, *, power: Real) -> Floats:
    """Return the progress at the peak of a run that ends at KL = ratio x KL*: ratio^(-1/power).

    Above 1 (the run ends before its peak: healthy) where the ratio is below 1.
    """
    peak: Floats = _floats(ratio) ** (-1 / _floats(power))
    return peak


def gao_rl(progress: Real, *, peak: Real, power: Real = 1.5) -> Floats:
    """Return x (1 - ln x), the RL law; all gain is lost at KL = e^2 KL* (7.39)."""
    x = kl_root(progress, peak=peak, power=power)
    return _rl(x)


def best_of_n(progress: Real, *, peak: Real, power: Real = 1.5) -> Floats:
    """Return x (2 - x), the best-of-n law; all gain is lost at KL = 4 KL*."""
    x = kl_root(progress, peak=peak, power=power)
    return x * (2 - x)


def linear_decline(progress: Real, *, peak: Real, drop: Real, power: Real = 1.5) -> Floats:
    """Return the RL rise to the peak, then a line that has lost ``drop`` of the gain at the end."""
    after = _share_after(progress, peak)
    return _rise(progress, peak, power) - _floats(drop) * after


def cliff(progress: Real, *, peak: Real, drop: Real, power: Real = 1.5) -> Floats:
    """Return the RL rise to the peak, then one fall by ``drop`` of the gain, low and flat."""
    fallen = _floats(progress) > peak
    return _rise(progress, peak, power) - _floats(drop) * fallen


def collapse(
    progress: Real,
    *,
    peak: Real,
    depth: Real,
    power: Real = 1.5,
    time_constant: float = 0.05,
) -> Floats:
    """Return the RL rise to the peak, then a fall to ``-depth``: far below the start.

    1 + depth is lost as 1 - exp(-(t - peak) / time_constant).
    """
    past = np.maximum(0.0, _floats(progress) - peak)
    lost: Floats = (1 + _floats(depth)) * -np.expm1(-past / time_constant)
    return _rise(progress, peak, power) - lost


def saturating(progress: Real, *, time_constant: Real = 0.25) -> Floats:
    """Return 1 - exp(-t / time_constant): healthy, flat at the end if the constant is small."""
    share: Floats = -np.expm1(-_floats(progress) / time_constant)
    return share


def slow_rise(progress: Real, *, exponent: Real = 1.0) -> Floats:
    """Return t^exponent: healthy, and rising to the end."""
    share: Floats = _floats(progress) ** exponent
    return share


def plateau(progress: Real, *, knee: Real = 0.3) -> Floats:
    """Return min(1, t / knee): healthy, flat after the knee; knee 0 is flat throughout."""
    t, bend = np.broadcast_arrays(_floats(progress), _floats(knee))
    share: Floats = np.divide(t, bend, out=np.ones(t.shape), where=bend > 0)
    return np.minimum(1.0, share)


def late_bloomer(progress: Real, *, onset: Real = 0.6, width: float = 0.05) -> Floats:
    """Return a logistic step at ``onset``: nothing for long, then nearly everything."""
    centred = (_floats(progress) - onset) / width
    share: Floats = 0.5 * (1 + np.tanh(centred / 2))  # the logistic function, without overflow
    return share


def dip(
    progress: Real,
    *,
    place: Real = 0.5,
    depth: Real = 0.3,
    width: Real = 0.15,
    time_constant: Real = 0.25,
) -> Floats:
    """Return a saturating rise with a dip that recovers, a raised cosine ``width`` wide.

    ``place`` is its middle; ``depth`` is in shares of the gain.
    """
    t = _floats(progress)
    offset = np.clip((t - place) / width, -0.5, 0.5)
    dent: Floats = _floats(depth) * 0.5 * (1 + np.cos(2 * np.pi * offset))
    return saturating(t, time_constant=time_constant) - dent


def restart(
    progress: Real,
    *,
    place: Real = 0.5,
    depth: Real = 0.3,
    time_constant: Real = 0.25,
) -> Floats:
    """Return a learning-rate restart: a fall at ``place`` that is recovered and overtaken.

    The fall of ``depth`` fades as exp(-(t - place) / 0.08) on top of a saturating rise.
    """
    t = _floats(progress)
    past = t - _floats(place)
    fall = np.where(past > 0, _floats(depth) * np.exp(-np.maximum(past, 0.0) / 0.08), 0.0)
    return saturating(t, time_constant=time_constant) - fall


def random_walk(progress: Real, normals: Real, *, roughness: Real = 0.3) -> Floats:
    """Return t + roughness x W(t): a walk upward that ends near 1, shape (..., evals).

    Args:
        progress: increasing along the last axis.
        normals: standard normal draws of the same shape.
        roughness: standard deviation of the walk at the end.
    """
    t = _floats(progress)
    spans = np.maximum(0.0, np.diff(t, axis=-1, prepend=0.0))
    walk = np.cumsum(np.sqrt(spans) * _floats(normals), axis=-1)
    return t + _floats(roughness) * walk


def _rl(x: Floats) -> Floats:
    """Return x (1 - ln x), 0 at 0."""
    positive = np.where(x > 0, x, 1.0)
    return np.where(x > 0, x * (1 - np.log(positive)), 0.0)


def _rise(progress: Real, peak: Real, power: Real) -> Floats:
    """Return the RL law up to the peak and 1 after it."""
    return _rl(np.minimum(1.0, kl_root(progress, peak=peak, power=power)))


def _share_after(progress: Real, peak: Real) -> Floats:
    """Return (t - peak) / (1 - peak) after the peak, else 0; 0 where the peak is at the end."""
    t, top = np.broadcast_arrays(_floats(progress), _floats(peak))
    past = np.maximum(0.0, t - top)
    share: Floats = np.divide(past, 1 - top, out=np.zeros(t.shape), where=past > 0)
    return share


def _floats(values: Real) -> Floats:
    """Return an array."""
    return np.asarray(values, dtype=np.float64)
