"""Worlds of the benchmark: what a curve truly does, drawn with its healthy twin.

Every run of a declining world rises by the RL law to its peak (Gao et al. 2023) and then falls;
its twin rises alike and stays on top. Before the peak the two are the same curve, so that nothing
but the decline can give a run away. Control worlds have no declining runs.

Prior, in every declining world: gain 0.3-0.5, base 0.2-0.4, peak at 20-80 % of the run, KL ~
t^power with power 1-2; ``linear`` and ``cliff`` lose 30-70 % of the gain by the end, ``gao`` what
the law takes; a ``cliff`` falls at a time uniform in the first 70 % after the peak.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evalstop.core.errors import InputError
from evalstop.workloads import curves

__all__ = ["CONTROLS", "DECLINING", "WORLDS", "Draw", "Shapes", "draw", "shapes", "truths"]

Array = NDArray[np.float64]

DECLINING = ("gao", "linear", "cliff")
CONTROLS = ("flat", "saturating", "slow-rise", "late-bloomer", "dip", "random-walk", "restart")
WORLDS = DECLINING + CONTROLS


class Shapes(Struct, frozen=True, kw_only=True, eq=False):
    """Hidden parameters of declining runs, (runs,) each; ``peak`` and ``fall`` in evaluations."""

    peak: Array
    power: Array
    drop: Array
    fall: Array
    evals: Array


class Draw(Struct, frozen=True, kw_only=True, eq=False):
    """Curves of one world.

    Attributes:
        healthy, declining: true scores, (runs, evals); None for controls without declining runs.
        peak: index of the true peak of each declining run, (runs,).
    """

    healthy: Array
    declining: Array | None
    peak: NDArray[np.int64]


def shapes(generator: np.random.Generator, runs: int, evals: int | None) -> Shapes:
    """Draw hidden parameters; with ``evals`` None from log-uniform horizons of 8 to 128."""
    if evals is None:
        horizon = np.exp(generator.uniform(np.log(8.0), np.log(128.0), runs))
    else:
        horizon = np.full(runs, float(evals))
    peak = generator.uniform(0.2, 0.8, runs) * horizon
    return Shapes(
        peak=peak,
        power=generator.uniform(1.0, 2.0, runs),
        drop=generator.uniform(0.3, 0.7, runs),
        fall=peak + 0.7 * generator.uniform(0.0, 1.0, runs) * (horizon - peak),
        evals=horizon,
    )


def truths(world: str, drawn: Shapes, evals: int) -> tuple[Array, Array]:
    """Return (twin, declining) shares of the gain after evaluations 1 to ``evals``."""
    time = np.arange(1.0, evals + 1.0)[None, :]
    peak, power = drawn.peak[:, None], drawn.power[:, None]
    twin = curves.cliff(time, peak=peak, drop=0.0, power=power)
    if world == "gao":
        return twin, curves.gao_rl(time, peak=peak, power=power)
    drop = drawn.drop[:, None]
    if world == "linear":
        after = np.maximum(time - peak, 0.0) / (drawn.evals[:, None] - peak)
        return twin, twin - drop * after
    return twin, twin - drop * (time > drawn.fall[:, None])


def draw(world: str, generator: np.random.Generator, runs: int, evals: int) -> Draw:
    """Draw true curves.

    Raises:
        InputError: if there is no such world.
    """
    base = generator.uniform(0.2, 0.4, (runs, 1))
    gain = generator.uniform(0.3, 0.5, (runs, 1))
    if world in DECLINING:
        drawn = shapes(generator, runs, evals)
        twin, declining = truths(world, drawn, evals)
        peak = np.maximum(np.floor(drawn.peak).astype(np.int64) - 1, 0)
        return Draw(healthy=base + gain * twin, declining=base + gain * declining, peak=peak)
    time = np.linspace(0.0, 1.0, evals)[None, :]
    place = generator.uniform(0.3, 0.7, (runs, 1))
    match world:
        case "flat":
            share = np.ones((runs, evals))
        case "saturating":
            share = curves.saturating(time, time_constant=generator.uniform(0.05, 0.4, (runs, 1)))
        case "slow-rise":
            share = curves.slow_rise(time, exponent=generator.uniform(0.5, 1.5, (runs, 1)))
        case "late-bloomer":
            share = curves.late_bloomer(time, onset=place)
        case "dip":
            share = curves.dip(time, place=place)
        case "random-walk":
            share = curves.random_walk(time, generator.standard_normal((runs, evals)))
        case "restart":
            share = curves.restart(time, place=place)
        case _:
            msg = f"unknown world {world!r}; the known ones are: {', '.join(WORLDS)}"
            raise InputError(msg)
    return Draw(healthy=base + gain * share, declining=None, peak=np.zeros(0, dtype=np.int64))
