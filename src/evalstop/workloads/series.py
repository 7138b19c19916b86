"""Evaluation series of many jobs at once: progress, truth, noise, proxy and loss.

Jobs are worked on in blocks, as rectangles padded to the longest series, and kept flat: what is
held at once does not grow with the workload, but for the columns themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evalstop.workloads import curves as families
from evalstop.workloads.noise import (
    ar1_noise,
    binomial_sigma,
    proxy_reward,
    reported_stderr,
    training_loss,
)
from evalstop.workloads.scenario import DECLINING, Curves, Range, Scenario, highest, lowest

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Series", "Ways", "draw", "draw_ways", "make_series", "true_shares"]

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Columns: TypeAlias = NDArray[np.floating[Any]]
Flags: TypeAlias = NDArray[np.bool_]

_BLOCK = 1 << 14
"""Jobs worked on at once. Part of what a seed means: another size draws in another order."""


class Series(Struct, frozen=True, kw_only=True, eq=False):
    """Evaluations of many jobs, end to end; see `Workload` for the columns.

    ``peak`` is the progress at each job's true peak, 1 where it never declines; ``hacking`` is
    the label that is left after mitigation.
    """

    bounds: Integers
    hacking: Flags
    peak: Floats
    progress: Columns
    steps: NDArray[np.integer[Any]]
    scores: Columns
    true_scores: Columns
    stderrs: Columns | None
    proxies: Columns | None
    losses: Columns | None
    replicates: Columns | None

    @property
    def evals(self) -> int:
        """Evaluations of all jobs together."""
        return int(self.bounds[-1])


class Ways(Struct, frozen=True, kw_only=True, eq=False):
    """The way to the peak: progress at the peak (1 or more: not reached) and power, (jobs,)."""

    peak: Floats
    power: Floats


class Shapes(Struct, frozen=True, kw_only=True, eq=False):
    """Parameters of a block of curves, each of shape (jobs, 1), so that they broadcast."""

    peak: Floats
    power: Floats
    drop: Floats
    depth: Floats
    knee: Floats
    time_constant: Floats
    place: Floats
    width: Floats
    roughness: Floats

    def some(self, chosen: Flags) -> Shapes:
        """Return the parameters of some of the jobs."""
        return Shapes(**{name: getattr(self, name)[chosen] for name in self.__struct_fields__})


def make_series(
    scenario: Scenario,
    hacking: Flags,
    evals: Integers,
    *,
    ways: Ways,
    hiding: Flags,
    curves: np.random.Generator,
    noise: np.random.Generator,
    signals: np.random.Generator,
    replicates: np.random.Generator,
) -> Series:
    """Return the series of many jobs.

    Args:
        scenario: what curves and noise look like.
        hacking: which jobs go past their peak unless they are mitigated, shape (jobs,).
        evals: evaluations of each, shape (jobs,).
        ways: where each would peak.
        hiding: which jobs report the best score so far, shape (jobs,).
        curves: generator for the truth.
        noise: generator for the errors.
        signals: generator for proxy and loss.
        replicates: generator for the errors of further evaluations.
    """
    bounds = np.concatenate([[0], np.cumsum(evals)]).astype(np.int64)
    columns = _Columns(scenario, int(bounds[-1]))
    peak = np.ones(hacking.size)
    for start in range(0, hacking.size, _BLOCK):
        block = slice(start, min(start + _BLOCK, hacking.size))
        rectangle = _Rectangle(scenario, evals[block])
        shapes = _draw_shapes(scenario.curves, ways, block, curves)
        truth = _truth(scenario.curves, hacking[block], rectangle.progress, shapes, curves)
        peak[block] = np.where(hacking[block], np.minimum(1.0, shapes.peak[:, 0]), 1.0)
        part = slice(int(bounds[block.start]), int(bounds[block.stop]))
        columns.fill(part, rectangle, truth, hiding[block], rng=noise, again=replicates)
        columns.fill_signals(part, rectangle, shapes, signals)
    return Series(
        bounds=bounds,
        hacking=hacking & (peak < 1.0),
        peak=peak,
        progress=columns.progress,
        steps=columns.steps,
        scores=columns.scores,
        true_scores=columns.true_scores,
        stderrs=columns.stderrs,
        proxies=columns.proxies,
        losses=columns.losses,
        replicates=columns.replicates,
    )


class _Rectangle:
    """Progress of a block of jobs, padded to the longest, and which entries are real."""

    def __init__(self, scenario: Scenario, evals: Integers) -> None:
        width = int(evals.max(initial=0))
        index = np.arange(1, width + 1, dtype=np.float64)
        slots = evals + (0 if scenario.evals.at_end else 1)
        self.real: Flags = index <= evals[:, None]
        self.progress: Floats = np.minimum(1.0, index / np.maximum(slots, 1)[:, None])
        self.steps: Integers = np.broadcast_to(
            index.astype(np.int64) * scenario.evals.steps, self.real.shape
        )


class _Columns:
    """The flat columns while they are filled, block by block."""

    def __init__(self, scenario: Scenario, evals: int) -> None:
        self.scenario = scenario
        precision = np.float32 if scenario.single_precision else np.float64

        def column(*, wanted: bool = True) -> Any:  # noqa: ANN401 -- None only where not wanted
            return np.empty(evals, dtype=precision) if wanted else None

        self.progress: Columns = np.empty(evals)
        self.steps = np.empty(evals, dtype=np.int32)
        self.scores: Columns = column()
        self.true_scores: Columns = column()
        self.stderrs: Columns | None = column(wanted=scenario.noise.reported != "unknown")
        self.proxies: Columns | None = column(wanted=scenario.signals.proxy)
        self.losses: Columns | None = column(wanted=scenario.signals.loss)
        again = scenario.evals.replicates
        self.replicates: Columns | None = np.empty((evals, again), precision) if again else None

    def fill(
        self,
        part: slice,
        rectangle: _Rectangle,
        truth: Floats,
        hiding: Flags,
        *,
        rng: np.random.Generator,
        again: np.random.Generator,
    ) -> None:
        """Write what evaluations saw."""
        plan, real = self.scenario.noise, rectangle.real
        sigma = _sigma(self.scenario, truth, rng)
        scores = truth + sigma * ar1_noise(rng, truth.shape, rho=plan.rho)
        if plan.lost_scores:
            scores[rng.random(truth.shape) < plan.lost_scores] = np.nan
        if hiding.any():
            scores[hiding] = np.fmax.accumulate(scores[hiding], axis=1)
        self.progress[part] = rectangle.progress[real]
        self.steps[part] = rectangle.steps[real]
        self.true_scores[part] = truth[real]
        self.scores[part] = scores[real]
        reported = reported_stderr(sigma, reported=plan.reported)
        if self.stderrs is not None and reported is not None:
            self.stderrs[part] = np.broadcast_to(reported, truth.shape)[real]
        if self.replicates is not None:
            fresh = again.standard_normal((*truth.shape, self.replicates.shape[1]))
            spread = np.broadcast_to(sigma, truth.shape)[:, :, None]
            self.replicates[part] = (truth[:, :, None] + spread * fresh)[real]

    def fill_signals(
        self, part: slice, rectangle: _Rectangle, shapes: Shapes, rng: np.random.Generator
    ) -> None:
        """Write what training saw of itself."""
        plan, real, shape = self.scenario.signals, rectangle.real, rectangle.progress.shape
        if self.proxies is not None:
            root = families.kl_root(rectangle.progress, peak=shapes.peak, power=shapes.power)
            reward = proxy_reward(root) + plan.proxy_noise * rng.standard_normal(shape)
            self.proxies[part] = reward[real]
        if self.losses is not None:
            rate = draw(rng, plan.loss_rate, shape[0])
            loss = training_loss(rectangle.progress, rate=rate)
            self.losses[part] = (loss + plan.loss_noise * rng.standard_normal(shape))[real]


def draw(rng: np.random.Generator, bounds: Range, count: int) -> Floats:
    """Return one uniform draw a job, shape (count, 1); a fixed number draws too, and is itself.

    Drawing either way keeps what comes after it the same.
    """
    low, high = lowest(bounds), highest(bounds)
    return low + (high - low) * rng.random((count, 1))


def _sigma(scenario: Scenario, truth: Floats, rng: np.random.Generator) -> Floats:
    """Return the true standard deviation of each score, shape (jobs, 1) or (jobs, evals)."""
    plan = scenario.noise
    level = draw(rng, plan.sigma, truth.shape[0])
    return level if plan.items is None else binomial_sigma(truth, items=plan.items)


def _truth(
    plan: Curves, hacking: Flags, progress: Floats, shapes: Shapes, rng: np.random.Generator
) -> Floats:
    """Return the true scores of a block, shape (jobs, evals)."""
    count = hacking.size
    start, gain = draw(rng, plan.start, count), draw(rng, plan.gain, count)
    luck = rng.random(count)
    normals = rng.standard_normal(progress.shape) if "random-walk" in plan.healthy else None
    share = np.zeros(progress.shape)
    for label, weights in ((False, plan.healthy), (True, plan.hacking)):
        for family, chosen in _choices(weights, luck, hacking == label):
            walk = None if normals is None else normals[chosen]
            share[chosen] = true_shares(family, progress[chosen], shapes.some(chosen), walk)
    truth = start + gain * share
    return truth if plan.floor is None else np.maximum(truth, plan.floor)


def draw_ways(rng: np.random.Generator, plan: Curves, hacking: Flags, *, kl_factor: Floats) -> Ways:
    """Return where jobs peak, given their labels and what their trainers do.

    Args:
        rng: generator.
        plan: laws.
        hacking: which jobs go past their peak unless they are mitigated, shape (jobs,).
        kl_factor: KL spent over the KL that would have been, shape (jobs,).
    """
    power = draw(rng, plan.power, hacking.size)[:, 0]
    low, high = (
        np.where(hacking, bound(plan.hacking_kl), bound(plan.healthy_kl))
        for bound in (lowest, highest)
    )
    ratio = (low + (high - low) * rng.random(hacking.size)) * kl_factor
    return Ways(peak=families.peak_for_kl_ratio(ratio, power=power), power=power)


def _draw_shapes(plan: Curves, ways: Ways, block: slice, rng: np.random.Generator) -> Shapes:
    """Return parameters for every family: all are drawn, whichever are used."""
    count = block.stop - block.start
    return Shapes(
        peak=ways.peak[block, None],
        power=ways.power[block, None],
        drop=draw(rng, plan.drop, count),
        depth=draw(rng, plan.depth, count),
        knee=draw(rng, plan.knee, count),
        time_constant=draw(rng, plan.time_constant, count),
        place=draw(rng, plan.place, count),
        width=draw(rng, plan.width, count),
        roughness=draw(rng, plan.roughness, count),
    )


def _choices(weights: Mapping[Any, float], luck: Floats, among: Flags) -> list[tuple[str, Flags]]:
    """Return which jobs follow which family, by weight."""
    edges = np.cumsum(list(weights.values())) / sum(weights.values())
    place = np.minimum(np.searchsorted(edges, luck, side="right"), len(weights) - 1)
    return [(family, among & (place == i)) for i, family in enumerate(weights)]


def true_shares(  # noqa: PLR0911 -- one line a family
    family: str, progress: Floats, shapes: Shapes, normals: Floats | None = None
) -> Floats:
    """Return a family's curves, shape (jobs, evals): the share of the gain reached.

    Args:
        family: one of `evalstop.workloads.scenario.FAMILIES`.
        progress: shape (jobs, evals).
        shapes: parameters.
        normals: standard normal draws, shape (jobs, evals): for random-walk alone.
    """
    if family in DECLINING:
        return _declining_shares(family, progress, shapes)
    match family:
        case "saturating":
            return families.saturating(progress, time_constant=shapes.time_constant)
        case "slow-rise":
            return families.slow_rise(progress)
        case "plateau":
            return families.plateau(progress, knee=shapes.knee)
        case "late-bloomer":
            return families.late_bloomer(progress, onset=shapes.place)
        case "dip":
            return families.dip(
                progress,
                place=shapes.place,
                depth=shapes.depth,
                width=shapes.width,
                time_constant=shapes.time_constant,
            )
        case "restart":
            return families.restart(
                progress,
                place=shapes.place,
                depth=shapes.depth,
                time_constant=shapes.time_constant,
            )
        case _:
            assert normals is not None, "a random walk needs normal draws"
            return families.random_walk(progress, normals, roughness=shapes.roughness)


def _declining_shares(family: str, progress: Floats, shapes: Shapes) -> Floats:
    """Return the curves of a family with a peak."""
    peak, power = shapes.peak, shapes.power
    match family:
        case "gao-rl":
            return families.gao_rl(progress, peak=peak, power=power)
        case "best-of-n":
            return families.best_of_n(progress, peak=peak, power=power)
        case "linear-decline":
            return families.linear_decline(progress, peak=peak, drop=shapes.drop, power=power)
        case "cliff":
            return families.cliff(progress, peak=peak, drop=shapes.drop, power=power)
        case _:
            return families.collapse(progress, peak=peak, depth=shapes.depth, power=power)
