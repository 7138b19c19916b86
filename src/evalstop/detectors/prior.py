"""What an operator believes of runs before seeing one: curves that rise, and some that fall.

A stated prior is turned once into a few hundred curves for either fate, spread evenly over its
ranges (an additive recurrence, no chance in it), as shares of the gain after each evaluation.
Rises follow the law of Gao et al. in x = (t / peak)^(power / 2), x (1 - ln x), up to the peak;
healthy curves stay there, the others lose ``drop`` of the gain by the end along a line, or at
once, or go on by the law.

References:
    Gao, Schulman, Hilton, "Scaling laws for reward model overoptimization", ICML 2023. Roberts,
    "The unreasonable effectiveness of quasirandom sequences", 2018 (the recurrence).
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

__all__ = ["LONGEST", "SHAPES", "Beliefs", "Prior", "beliefs", "law"]

Array = NDArray[np.float64]

SHAPES = ("any", "linear", "cliff", "gao")

LONGEST = 128
"""Evaluations beyond which curves are not drawn."""

_CURVES = 512
"""Curves for either fate: more change the answer by less than the noise of one evaluation."""

_SHORTEST_RUN, _LONGEST_RUN = 8.0, 128.0
"""Range of horizons, log-uniform, where none is stated."""

_STEPS = 5
"""Hidden parameters of a curve: peak, power, drop, time of a cliff, horizon."""

_CLIFF_WITHIN = 0.7
"""A cliff comes within this part of the time after the peak."""


class Prior(Struct, frozen=True, kw_only=True):
    """Ranges of what makes a curve; peaks in shares of the run, drops in shares of the gain."""

    peak: tuple[float, float]
    healthy: tuple[float, float]
    drop: tuple[float, float]
    power: tuple[float, float]
    horizon: int
    shape: str


class Beliefs(Struct, frozen=True, kw_only=True, eq=False):
    """Curves of either fate, the falling ones first; read-only.

    Attributes:
        shares: shares of the gain, (`LONGEST`, curves).
        squares: their squares.
        peak: evaluation of the peak, from 1, infinite for healthy curves; (curves,).
        top: the same, and where healthy curves reach their top; (curves,).
        power: of time in KL; (curves,).
        drop: share of the gain that a line or a cliff loses; (curves,).
        falling: how many of the curves fall, half of them.
    """

    shares: Array
    squares: Array
    peak: Array
    top: Array
    power: Array
    drop: Array
    falling: int


@cache
def beliefs(prior: Prior) -> Beliefs:
    """Return the curves that stand for a prior; the same ones, always."""
    points = _even(_CURVES)
    horizon = _horizons(prior.horizon, points[:, 4])
    power = _between(prior.power, points[:, 1])[:, None]
    time = np.arange(1.0, LONGEST + 1.0)[None, :]
    peak = _between(prior.peak, points[:, 0]) * horizon
    rise = law(np.minimum(time / peak[:, None], 1.0), power)
    drop = _between(prior.drop, points[:, 2])[:, None]
    after = np.maximum(time - peak[:, None], 0.0)
    left = (horizon - peak)[:, None]
    kinds = ("linear", "cliff", "gao") if prior.shape == "any" else (prior.shape,)
    falling = np.empty_like(rise)
    for number, kind in enumerate(kinds):
        own = np.arange(_CURVES) % len(kinds) == number
        match kind:
            case "linear":
                curve = rise - drop * after / left
            case "cliff":
                wait = _CLIFF_WITHIN * points[:, 3:4] * left
                curve = rise - drop * (after > wait)
            case _:
                curve = law(time / peak[:, None], power)
        falling[own] = curve[own]
    top = _between(prior.healthy, points[:, 0]) * horizon
    healthy = law(np.minimum(time / top[:, None], 1.0), power)
    shares = np.ascontiguousarray(np.concatenate([falling, healthy]).T)
    found = Beliefs(
        shares=shares,
        squares=shares * shares,
        peak=np.concatenate([peak, np.full(_CURVES, np.inf)]),
        top=np.concatenate([peak, top]),
        power=np.tile(power[:, 0], 2),
        drop=np.tile(drop[:, 0], 2),
        falling=_CURVES,
    )
    for table in (found.shares, found.squares, found.peak, found.top, found.power, found.drop):
        table.flags.writeable = False
    return found


def _even(count: int) -> Array:
    """Return points spread evenly over the unit cube, (count, `_STEPS`)."""
    ratio = 1.5
    for _ in range(64):  # the root of x^(d + 1) = x + 1
        ratio = (1.0 + ratio) ** (1.0 / (_STEPS + 1))
    steps = ratio ** -np.arange(1.0, _STEPS + 1.0)
    points: Array = (0.5 + np.arange(1, count + 1)[:, None] * steps) % 1.0
    return points


def _between(ends: tuple[float, float], share: Array) -> Array:
    low, high = ends
    values: Array = low + (high - low) * share
    return values


def _horizons(stated: int, share: Array) -> Array:
    if stated:
        return np.full(share.shape, float(stated))
    logs = _between((math.log(_SHORTEST_RUN), math.log(_LONGEST_RUN)), share)
    return np.exp(logs)


def law(progress: Array, power: Array) -> Array:
    """Return x (1 - ln x) in x = progress^(power / 2), for progress > 0."""
    root = progress ** (power / 2.0)
    share: Array = root * (1.0 - np.log(root))
    return share
