"""Runs of one setting over several seeds, as the tree of figures that commands print.

System and quality figures are means over seeds, with t intervals. Rates are pooled counts over
seeds, with Wilson intervals: a ratio of sums is defined more often than a mean of ratios. NaN
stands for a figure that is not defined, and for an interval of a single seed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from msgspec import Struct

from evalstop.metrics import system
from evalstop.metrics.detection import (
    RLHF,
    Confusion,
    count_early_stops,
    count_stops,
    detection_delays,
)
from evalstop.metrics.stats import Interval, t_interval, wilson_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.metrics.columns import JobColumns

__all__ = ["Summary", "json_tree", "quality_figures", "summarise", "system_figures"]

Figures: TypeAlias = dict[str, float]
Intervals: TypeAlias = dict[str, Interval]


class Summary(Struct, frozen=True, kw_only=True):
    """Figures of one setting; ``intervals`` has the same three branches, [low, high] at 95 %."""

    system: Figures
    quality: Figures
    detection: Figures
    intervals: dict[str, Intervals]


def system_figures(columns: JobColumns, *, gpus: int) -> Figures:
    """Return the system figures of one run on a cluster of ``gpus``; NaN where undefined."""
    return {
        "jct_mean_s": system.jct_mean_s(columns),
        "jct_completed_mean_s": system.jct_completed_mean_s(columns),
        "jct_p50_s": system.jct_percentile_s(columns, percent=50),
        "jct_p95_s": system.jct_percentile_s(columns, percent=95),
        "jct_p99_s": system.jct_percentile_s(columns, percent=99),
        "makespan_s": system.makespan_s(columns),
        "queue_delay_mean_s": system.queue_delay_mean_s(columns),
        "utilisation": system.utilisation(columns, gpus=gpus),
        "gpu_hours_used": system.gpu_hours_used(columns),
        "gpu_hours_wasted": system.gpu_hours_wasted(columns),
        "gpu_hours_hacking": system.gpu_hours_hacking(columns),
        "gpu_hours_lost_healthy": system.gpu_hours_lost_healthy(columns),
        "gpu_hours_reclaimed": system.gpu_hours_reclaimed(columns),
        "jain_tenants": system.jain_tenants(columns),
        "jain_gpu_shares": system.jain_gpu_shares(columns),
        "slowdown_worst_tenant": system.slowdown_worst_tenant(columns),
    }


def quality_figures(columns: JobColumns) -> Figures:
    """Return the quality figures of one run; NaN where undefined."""
    return {
        "delivered_score_mean": system.delivered_score_mean(columns),
        "regret_mean": system.regret_mean(columns),
    }


def summarise(runs: Sequence[JobColumns], *, gpus: int) -> Summary:
    """Return the figures of runs that differ in their seed only; NaN and counts of 0 for none."""
    system_tree, system_intervals = _over_seeds([system_figures(run, gpus=gpus) for run in runs])
    quality_tree, quality_intervals = _over_seeds([quality_figures(run) for run in runs])
    detection, detection_intervals = _pooled(runs)
    return Summary(
        system=system_tree,
        quality=quality_tree,
        detection=detection,
        intervals={
            "system": system_intervals,
            "quality": quality_intervals,
            "detection": detection_intervals,
        },
    )


def json_tree(summary: Summary) -> dict[str, Any]:
    """Return plain objects without NaN: null, and its path in ``undefined``."""
    undefined: list[str] = []
    tree: dict[str, Any] = {
        branch: _plain(branch, getattr(summary, branch), undefined)
        for branch in ("system", "quality", "detection")
    }
    tree["intervals"] = {
        branch: {
            name: None if math.isnan(low) or math.isnan(high) else [low, high]
            for name, (low, high) in intervals.items()
        }
        for branch, intervals in summary.intervals.items()
    }
    tree["undefined"] = undefined
    return tree


def _plain(branch: str, figures: Figures, undefined: list[str]) -> dict[str, float | None]:
    """Return figures with null for NaN; note the path of each."""
    undefined.extend(f"{branch}.{name}" for name, value in figures.items() if math.isnan(value))
    return {name: None if math.isnan(value) else value for name, value in figures.items()}


def _over_seeds(figures: Sequence[Figures]) -> tuple[Figures, Intervals]:
    """Return the mean and the t interval of each figure over seeds, undefined ones left out."""
    means, intervals = {}, {}
    for name in figures[0] if figures else ():
        values = np.array([one[name] for one in figures])
        some = values[np.isfinite(values)]
        means[name] = float(some.mean()) if some.size else math.nan
        intervals[name] = t_interval(some)
    return means, intervals


def _pooled(runs: Sequence[JobColumns]) -> tuple[Figures, Intervals]:
    """Return detection figures from the counts of all runs."""
    everyone = sum(map(count_stops, runs), Confusion())
    rlhf = sum((count_stops(run, job_type=RLHF) for run in runs), Confusion())
    delays = np.concatenate([detection_delays(run) for run in runs]) if runs else np.zeros(0)
    figures: Figures = {
        "tp": everyone.tp,
        "fp": everyone.fp,
        "fn": everyone.fn,
        "tn": everyone.tn,
        "precision": everyone.precision,
        "recall": everyone.recall,
        "fpr": everyone.fpr,
        "fpr_rlhf": rlhf.fpr,
        "f1": everyone.f1,
        "delay_evals_mean": float(delays.mean()) if delays.size else math.nan,
        "early_stops": sum(map(count_early_stops, runs)),
    }
    intervals: Intervals = {
        "precision": wilson_interval(everyone.tp, everyone.tp + everyone.fp),
        "recall": wilson_interval(everyone.tp, everyone.tp + everyone.fn),
        "fpr": wilson_interval(everyone.fp, everyone.fp + everyone.tn),
        "fpr_rlhf": wilson_interval(rlhf.fp, rlhf.fp + rlhf.tn),
        "f1": _f1_interval(everyone),
        "delay_evals_mean": t_interval(delays),
        "early_stops": _sum_interval([count_early_stops(run) for run in runs]),
    }
    counts = [count_stops(run) for run in runs]
    for name in ("tp", "fp", "fn", "tn"):
        intervals[name] = _sum_interval([getattr(one, name) for one in counts])
    return figures, intervals


def _f1_interval(counts: Confusion) -> Interval:
    """Return Wilson's interval of tp / (tp + fp + fn) = J, carried over by F1 = 2 J / (1 + J)."""
    low, high = wilson_interval(counts.tp, counts.tp + counts.fp + counts.fn)
    return 2 * low / (1 + low), 2 * high / (1 + high)


def _sum_interval(values: Sequence[int]) -> Interval:
    """Return the t interval of a mean over seeds, times the seeds: one of the sum."""
    low, high = t_interval(values)
    return low * len(values), high * len(values)
