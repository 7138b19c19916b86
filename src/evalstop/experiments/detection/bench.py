"""Run rules over worlds, cadences, noises and reports; count what they find and what they hurt."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from evalstop.config.rules import parse_rule
from evalstop.core.detector import Detector
from evalstop.core.errors import InputError
from evalstop.detectors.fleet import judge
from evalstop.detectors.paired import Paired
from evalstop.experiments.detection.reference import oracle, posterior_odds, recall_at
from evalstop.experiments.detection.rivals import RAY_MEDIAN, ByItems, RayMedian
from evalstop.experiments.detection.worlds import DECLINING, Draw, draw
from evalstop.experiments.peers.field import Field
from evalstop.experiments.peers.registry import parse_peer
from evalstop.metrics.stats import wilson_interval
from evalstop.workloads.noise import ar1_noise, reported_stderr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from evalstop.experiments.peers.field import Peer
    from evalstop.experiments.peers.registry import NamedPeer

__all__ = ["QUICK", "RULES", "Cell", "Grid", "Report", "run", "summarise"]

Array = NDArray[np.float64]
Report = Literal["true", "understated", "unknown"]

RULES = (
    "default",
    "order-restricted",
    "e-detector",
    "glr-cusum",
    "bocpd",
    "local-trend",
    "consecutive:k=2",
    "consecutive:k=3",
    "patience:k=3",
    "patience:k=3,min_delta=0.01",
    "drop",
    "cusum",
    "page-hinkley",
    RAY_MEDIAN,
)


class Grid(Struct, frozen=True, kw_only=True):
    """What to run: every combination is one cell for each rule.

    ``runs`` declining and as many healthy curves are drawn for each cell; ``base_rates`` mix
    them. Controls have no declining runs and one base rate, 0. ``peers`` are rules of other
    libraries (`evalstop.experiments.peers`), which judge the first ``peer_runs`` of each kind.
    """

    worlds: tuple[str, ...]
    evals: tuple[int, ...]
    sigmas: tuple[float, ...]
    rhos: tuple[float, ...] = (0.0,)
    base_rates: tuple[float, ...] = (0.6,)
    reports: tuple[Report, ...] = ("true",)
    rules: tuple[str, ...] = RULES
    peers: tuple[str, ...] = ()
    peer_runs: int = 100
    runs: int = 400
    seed: int = 0
    reference: bool = True


QUICK = Grid(
    worlds=("gao", "linear", "cliff", "flat", "saturating", "dip"),
    evals=(10, 20),
    sigmas=(0.02, 0.05),
    reports=("true", "unknown"),
    rules=("default", "consecutive:k=2", "patience:k=3", "cusum"),
    runs=200,
)
"""A minute on one core."""


class Cell(Struct, frozen=True, kw_only=True):
    """One rule in one cell; rates are NaN where nothing of their kind was there.

    Attributes:
        early_rate: declining runs stopped before their true peak.
        delay_evals_mean: evaluations from the true peak to the stop, over runs found after it.
        reclaimed_fraction: share of the evaluations after the true peak that were saved, over all
            declining runs; those never stopped save nothing.
        last_eval_rate: declining runs found at their very last evaluation, with nothing saved.
        regret_mean: best true score of the run minus that of the best evaluation at the stop.
        reference_recall: what the Bayes reference finds at this rule's false-stop rate.
        oracle_recall: what the oracle finds at it.
        library: name and version of the library whose rule this is, empty for evalstop's own.
    """

    world: str
    n_evals: int
    sigma: float
    rho: float
    base_rate: float
    stderr_reported: str
    rule: str
    n: int
    precision: float
    recall: float
    fpr: float
    early_rate: float
    delay_evals_mean: float
    reclaimed_fraction: float
    last_eval_rate: float
    regret_mean: float
    reference_recall: float
    oracle_recall: float
    intervals: dict[str, tuple[float, float]]
    library: str = ""


def run(grid: Grid, *, progress: Callable[[int, int], None] | None = None) -> list[Cell]:
    """Run a grid; the same grid gives the same cells.

    Raises:
        InputError: on an unknown world or rule, or a rule that needs more than scores.
        MissingExtraError: a peer's library is not installed.
    """
    peers = [parse_peer(spec) for spec in grid.peers]
    places = list(itertools.product(grid.worlds, grid.evals, grid.sigmas, grid.rhos, grid.reports))
    cells: list[Cell] = []
    for index, (world, evals, sigma, rho, report) in enumerate(places):
        # The same curves under each kind of report and each rule: comparisons are paired.
        key = [grid.seed, evals, round(sigma * 10_000), round(rho * 100)]
        seeds = np.random.SeedSequence([*key, *world.encode()])
        generator = np.random.default_rng(seeds)
        drawn = draw(world, generator, grid.runs, evals)
        place = _Place(
            grid=grid,
            world=world,
            sigma=sigma,
            rho=rho,
            report=report,
            drawn=drawn,
            generator=generator,
            seed=int(seeds.generate_state(1)[0]),
        )
        cells.extend(place.cells())
        cells.extend(place.peer_cells(peers))
        if progress is not None:
            progress(index + 1, len(places))
    return cells


class _Place:
    """One world at one cadence, noise and kind of report."""

    def __init__(
        self,
        *,
        grid: Grid,
        world: str,
        sigma: float,
        rho: float,
        report: Report,
        drawn: Draw,
        generator: np.random.Generator,
        seed: int,
    ) -> None:
        self._seed = seed
        self._grid, self._world, self._sigma = grid, world, sigma
        self._rho, self._report, self._drawn = rho, report, drawn
        shape = drawn.healthy.shape
        self._healthy = drawn.healthy + sigma * ar1_noise(generator, shape, rho=rho)
        self._declining = (
            None
            if drawn.declining is None
            else drawn.declining + sigma * ar1_noise(generator, shape, rho=rho)
        )
        self._limits = self._find_limits(generator)

    def _find_limits(self, generator: np.random.Generator) -> list[tuple[Array, Array]]:
        """Return (healthy, declining) statistics of the reference and the oracle, if wanted."""
        wanted = self._grid.reference and self._report == "true" and self._rho == 0.0
        declining, drawn = self._declining, self._drawn
        if not wanted or declining is None or drawn.declining is None:
            return []
        seed = int(generator.integers(2**63))
        odds = [
            posterior_odds(self._world, scores, self._sigma, np.random.default_rng(seed))
            for scores in (self._healthy, declining)
        ]
        ratios = [
            oracle(scores, drawn.healthy, drawn.declining, self._sigma)
            for scores in (self._healthy, declining)
        ]
        return [(odds[0], odds[1]), (ratios[0], ratios[1])]

    def cells(self) -> Iterable[Cell]:
        """Return a cell for each rule and base rate."""
        rates = self._grid.base_rates if self._world in DECLINING else (0.0,)
        for rule in self._grid.rules:
            peer = _more_than_a_curve(rule)
            if peer is not None:
                healthy, declining = self._judged_together(peer, self._grid.runs)
            else:
                healthy = self._stops(rule, self._healthy)
                declining = None if self._declining is None else self._stops(rule, self._declining)
            for rate in rates:
                yield self._cell(rule, rate, healthy, declining)

    def peer_cells(self, peers: Sequence[NamedPeer]) -> Iterable[Cell]:
        """Return a cell for each rule of another library and base rate."""
        rates = self._grid.base_rates if self._world in DECLINING else (0.0,)
        for named in peers:
            healthy, declining = self._judged_together(named.peer, self._grid.peer_runs)
            for rate in rates:
                cell = self._cell(named.spec, rate, healthy, declining)
                yield replace(cell, library=f"{named.library} {named.version}")

    def _judged_together(
        self, peer: Peer, runs: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        """Return the stops of healthy and of declining runs by a rule that may compare them."""
        parts = [part[:runs] for part in (self._declining, self._healthy) if part is not None]
        scores = np.concatenate(parts)
        declines = np.arange(len(scores)) < len(scores) - len(parts[-1])
        stops = peer.stops(
            Field(scores=scores, declines=declines, sigma=self._sigma, seed=self._seed)
        )
        return stops[~declines], stops[declines] if declines.any() else None

    def _stops(self, rule: str, scores: Array) -> NDArray[np.int64]:
        detector = parse_rule(rule).for_type("rlhf")
        if not isinstance(detector, Detector):
            msg = f"rule {rule!r} needs more than scores: the benchmark cannot drive it"
            raise InputError(msg)
        sigma = np.full(scores.shape, self._sigma)
        return judge(detector, scores, reported_stderr(sigma, reported=self._report)).stop

    def _cell(
        self,
        rule: str,
        rate: float,
        healthy: NDArray[np.int64],
        declining: NDArray[np.int64] | None,
    ) -> Cell:
        runs = healthy.size
        bad = 0 if declining is None else round(rate * runs)
        good = runs - bad
        false = int((healthy[:good] >= 0).sum())
        stops = np.zeros(0, dtype=np.int64) if declining is None else declining[:bad]
        true = int((stops >= 0).sum())
        early = int(((stops >= 0) & (stops < self._drawn.peak[:bad])).sum())
        fpr = false / good if good else math.nan
        whole_fpr = float((healthy >= 0).mean())
        limits = [recall_at(whole_fpr, *limit) for limit in self._limits] or [math.nan, math.nan]
        found = self._after_peak(stops)
        return Cell(
            world=self._world,
            n_evals=self._healthy.shape[1],
            sigma=self._sigma,
            rho=self._rho,
            base_rate=rate,
            stderr_reported=self._report,
            rule=rule,
            n=runs,
            precision=true / (true + false) if true + false else math.nan,
            recall=true / bad if bad else math.nan,
            fpr=fpr,
            early_rate=early / bad if bad else math.nan,
            reference_recall=limits[0],
            oracle_recall=limits[1],
            intervals={
                "precision": wilson_interval(true, true + false),
                "recall": wilson_interval(true, bad),
                "fpr": wilson_interval(false, good),
                "early_rate": wilson_interval(early, bad),
            },
            delay_evals_mean=found[0],
            reclaimed_fraction=found[1],
            last_eval_rate=found[2],
            regret_mean=found[3],
        )

    def _after_peak(self, stops: NDArray[np.int64]) -> tuple[float, float, float, float]:
        """Return delay, compute reclaimed, late finds and regret of the declining runs."""
        truth = self._drawn.declining
        if truth is None or self._declining is None or not stops.size:
            return (math.nan, math.nan, math.nan, math.nan)
        evals = truth.shape[1]
        peak = self._drawn.peak[: stops.size]
        found = stops >= 0
        after = found & (stops >= peak)
        saved = np.where(found, evals - 1 - np.maximum(stops, peak), 0)
        end = np.where(found, stops, evals - 1)
        seen = np.where(
            np.arange(evals)[None, :] <= end[:, None], self._declining[: stops.size], -np.inf
        )
        rows = np.arange(stops.size)
        kept = truth[rows, seen.argmax(axis=1)]
        return (
            float((stops - peak)[after].mean()) if after.any() else math.nan,
            float((saved / np.maximum(evals - 1 - peak, 1)).mean()),
            float((stops == evals - 1).mean()),
            float((truth[: stops.size].max(axis=1) - kept).mean()),
        )


def _more_than_a_curve(rule: str) -> Peer | None:
    """Return the judge of a rule that compares runs or items, None for all others."""
    if rule == RAY_MEDIAN:
        return RayMedian()
    detector = parse_rule(rule).for_type("rlhf")
    return ByItems(detector=detector) if isinstance(detector, Paired) else None


def summarise(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Return one line a rule: means over cells, and the worst cell where that is the promise."""
    lines = []
    for rule in dict.fromkeys(cell.rule for cell in cells):
        own = [cell for cell in cells if cell.rule == rule]
        shares = [c.recall / c.reference_recall for c in own if c.reference_recall > 0]
        lines.append(
            {
                "rule": rule,
                "cells": len(own),
                "precision_mean": _mean(cell.precision for cell in own),
                "recall_mean": _mean(cell.recall for cell in own),
                "fpr_mean": _mean(cell.fpr for cell in own),
                "fpr_max": max((c.fpr for c in own if math.isfinite(c.fpr)), default=math.nan),
                "early_rate_max": max(
                    (c.early_rate for c in own if math.isfinite(c.early_rate)), default=math.nan
                ),
                "reclaimed_mean": _mean(cell.reclaimed_fraction for cell in own),
                "share_of_reference_mean": _mean(shares),
                "share_of_reference_min": min(shares, default=math.nan),
            }
        )
    return lines


def _mean(values: Iterable[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan
