"""Every rule on real training runs whose curves carry a label.

The labels describe the whole curve by a stated rule (declined, healthy, plateau, unclear) and
were made without any stop rule. A stop of a healthy or plateau run is false; a stop of a
declined run is a find. Runs of one project are correlated, so that intervals are too narrow by
an unknown amount; ``unclear`` runs are counted nowhere.
"""

from __future__ import annotations

import csv
import math
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from evalstop.core.errors import ReadError
from evalstop.core.series import pool
from evalstop.detectors.never import Never
from evalstop.experiments.peers.field import Field
from evalstop.metrics.stats import Interval, wilson_interval
from evalstop.policies.rules import NamedRule
from evalstop.traces.replay import judge
from evalstop.traces.selection import select
from evalstop.traces.sources import read_source

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from evalstop.experiments.peers.registry import NamedPeer
    from evalstop.policies.rules import Rules
    from evalstop.traces.results import Replayed
    from evalstop.traces.series import Series

__all__ = [
    "CLASSICAL",
    "LANGUAGE",
    "RealRunFigures",
    "built_in_runs",
    "measure",
    "measure_peer",
    "shared_runs",
]

LANGUAGE = "language"
"""Group of runs that fine-tune a language model, each with its primary metric."""

CLASSICAL = "classical"
"""Group of runs of classical reinforcement learning: many noisy evaluations, no errors known."""

_CLASSICAL_TYPE = "rl-other"


class RealRunFigures(Struct, frozen=True, kw_only=True):
    """One rule on one group of runs; intervals are Wilson's at 95 %, NaN where undefined.

    Attributes:
        group: which runs.
        rule: SPEC.
        healthy, plateau, declined: runs of each label.
        stopped_healthy, stopped_plateau: false stops.
        found: declined runs that are stopped.
        early: of these, stopped before the best evaluation of the whole run.
        delay_evals_mean: evaluations from the best one to the stop, of finds that are not early.
        saved_mean: mean saved fraction of declined runs, 0 where not stopped.
        regret_share_mean: mean regret of the stops over the run's range of scores.
        regret_share_max: the largest.
        intervals: of healthy, plateau and declined, the shares stopped.
    """

    group: str
    rule: str
    healthy: int
    plateau: int
    declined: int
    stopped_healthy: int
    stopped_plateau: int
    found: int
    early: int
    delay_evals_mean: float
    saved_mean: float
    regret_share_mean: float
    regret_share_max: float
    intervals: dict[str, Interval]


def built_in_runs() -> dict[str, list[Series]]:
    """Return the runs that ship with evalstop, by group."""
    primary = {curve.trace_id for curve in read_source("example:").curves}
    every = select(read_source("example:all").curves).series
    return {
        LANGUAGE: [one for one in every if one.trace_id in primary],
        CLASSICAL: [one for one in every if one.job_type == _CLASSICAL_TYPE],
    }


def shared_runs(folder: Path) -> dict[str, list[Series]]:
    """Return the runs of a collection: ``public_runs.parquet`` with its ``index.csv``.

    Raises:
        ReadError: one of the files is not there or cannot be read.
    """
    path = folder / "index.csv"
    if not path.exists():
        message = "the collection has no index.csv"
        raise ReadError(str(folder), message)
    with path.open(newline="", encoding="utf-8") as file:
        index = {row["trace_id"]: row for row in csv.DictReader(file)}
    groups: dict[str, list[Series]] = {LANGUAGE: [], CLASSICAL: []}
    for one in select(read_source(folder / "public_runs.parquet").curves).series:
        row = index.get(one.trace_id)
        if row is None:
            continue
        labelled = replace(one, label=row["label"])
        if one.job_type == _CLASSICAL_TYPE:
            groups[CLASSICAL].append(labelled)
        elif row["primary"] == "1":
            groups[LANGUAGE].append(labelled)
    return groups


def measure(group: str, runs: Sequence[Series], rules: Rules) -> RealRunFigures:
    """Return one rule's figures on a group of runs."""
    results = [judge(one, rules.named(one.job_type), rules.spec) for one in runs]
    return _figures(group, rules.spec, runs, results)


def measure_peer(group: str, runs: Sequence[Series], named: NamedPeer) -> RealRunFigures:
    """Return the figures of another library's rule on a group of runs, each judged by itself.

    The rule sees the finite scores, one a step, as they came; rules that compare runs with each
    other, or items, have nothing to compare here.
    """
    results = [_judged_by(named, one) for one in runs]
    return _figures(group, named.spec, runs, results)


def _judged_by(named: NamedPeer, series: Series) -> Replayed:
    """Return what a library would have done to a run, as replay tells it."""
    # The rule that never stops gives the whole run's own figures.
    untouched = judge(series, NamedRule(Never(), "none"), named.spec)
    points = [p for p in pool(series.points) if math.isfinite(p.score)]
    scores = np.array([[point.score for point in points]])
    field = Field(scores=scores, declines=np.zeros(1, dtype=np.bool_), sigma=math.nan, seed=0)
    stop = int(named.peer.stops(field)[0]) if points else -1
    if stop < 0:
        return untouched
    step, last = points[stop].step, points[-1].step
    kept = max(point.score for point in points[: stop + 1])
    return replace(
        untouched,
        fired=True,
        stop_step=step,
        stop_index=stop,
        saved_fraction=1.0 - step / last if last else 0.0,
        regret=max(point.score for point in points) - kept,
    )


def _figures(
    group: str, rule: str, runs: Sequence[Series], results: Sequence[Replayed]
) -> RealRunFigures:
    by_label = {
        label: [r for r, one in zip(results, runs, strict=True) if one.label == label]
        for label in ("healthy", "plateau", "declined")
    }
    stopped = {label: sum(r.fired for r in of_label) for label, of_label in by_label.items()}
    finds = [result for result in by_label["declined"] if result.fired]
    late = [result for result in finds if not _is_early(result)]
    delays = [
        _delay(result, one)
        for result, one in zip(results, runs, strict=True)
        if one.label == "declined" and result.fired and not _is_early(result)
    ]
    regrets = [
        result.regret / _range(one)
        for result, one in zip(results, runs, strict=True)
        if result.fired and _range(one) > 0
    ]
    return RealRunFigures(
        group=group,
        rule=rule,
        healthy=len(by_label["healthy"]),
        plateau=len(by_label["plateau"]),
        declined=len(by_label["declined"]),
        stopped_healthy=stopped["healthy"],
        stopped_plateau=stopped["plateau"],
        found=stopped["declined"],
        early=len(finds) - len(late),
        delay_evals_mean=_mean(delays),
        saved_mean=_mean([result.saved_fraction for result in by_label["declined"]]),
        regret_share_mean=_mean(regrets),
        regret_share_max=max(regrets, default=math.nan),
        intervals={
            label: wilson_interval(stopped[label], len(of_label))
            for label, of_label in by_label.items()
        },
    )


def _is_early(result: Replayed) -> bool:
    return (
        result.stop_step is not None
        and result.best_step is not None
        and result.stop_step < result.best_step
    )


def _delay(result: Replayed, series: Series) -> float:
    """Return how many evaluations lie between the best of the run and the stop."""
    if result.stop_step is None or result.best_step is None:
        return math.nan
    steps = [point.step for point in series.points]
    return float(sum(result.best_step < step <= result.stop_step for step in steps))


def _range(series: Series) -> float:
    scores = [point.score for point in series.points if math.isfinite(point.score)]
    return max(scores) - min(scores) if scores else 0.0


def _mean(values: Iterable[float]) -> float:
    kept = [value for value in values if math.isfinite(value)]
    return math.fsum(kept) / len(kept) if kept else math.nan
