"""What a workload turned out to be, in figures a person can check against what was meant."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

if TYPE_CHECKING:
    from evalstop.workloads.job import Workload

__all__ = ["Quartiles", "WorkloadFacts", "declines", "describe"]

Columns: TypeAlias = NDArray[np.floating[Any]]


class Quartiles(Struct, frozen=True, kw_only=True):
    """Least, lower quartile, median, upper quartile and greatest; NaN for no values."""

    least: float = math.nan
    lower: float = math.nan
    median: float = math.nan
    upper: float = math.nan
    greatest: float = math.nan


class WorkloadFacts(Struct, frozen=True, kw_only=True):
    """Figures of a workload.

    Attributes:
        jobs, evals: how many.
        types: jobs of each type.
        hacking: hacking jobs of each type.
        load: GPU-seconds handed in over GPU-seconds there are until the last submission; NaN
            where all jobs come at once.
        span_s: time of the last submission.
        gpus, duration_s, evals_per_job: spread over the jobs.
        estimate_ratio: estimate over duration, over the jobs that have one.
        peak: progress at the true peak, over hacking jobs.
        decline: highest minus last true score, over hacking jobs, in score units.
        sigma: standard deviation of observed minus true scores.
        reports_lost, reports_repeated: shares of the evaluations.
    """

    jobs: int
    evals: int
    types: dict[str, int]
    hacking: dict[str, int]
    load: float
    span_s: float
    gpus: Quartiles
    duration_s: Quartiles
    evals_per_job: Quartiles
    estimate_ratio: Quartiles
    peak: Quartiles
    decline: Quartiles
    sigma: float
    reports_lost: float
    reports_repeated: float


def describe(workload: Workload, *, gpus: int) -> WorkloadFacts:
    """Return the figures of a workload that is meant for a cluster of ``gpus``."""
    span = float(workload.submit_s[-1]) if len(workload) else 0.0
    work = float((workload.gpus * workload.duration_s).sum())
    errors = workload.scores - workload.true_scores
    known = errors[np.isfinite(errors)]
    lost, repeated = _delivery_shares(workload)
    estimates = workload.estimated_s
    return WorkloadFacts(
        jobs=len(workload),
        evals=workload.evals,
        types=_by_type(workload, np.ones(len(workload), dtype=np.bool_)),
        hacking=_by_type(workload, workload.hacking),
        load=work / (gpus * span) if span > 0 else math.nan,
        span_s=span,
        gpus=_quartiles(workload.gpus.astype(np.float64)),
        duration_s=_quartiles(workload.duration_s),
        evals_per_job=_quartiles(np.diff(workload.bounds).astype(np.float64)),
        estimate_ratio=(
            Quartiles() if estimates is None else _quartiles(estimates / workload.duration_s)
        ),
        peak=_quartiles((workload.peak_s / workload.duration_s)[workload.hacking]),
        decline=_quartiles(declines(workload)[workload.hacking]),
        sigma=float(known.std()) if known.size else math.nan,
        reports_lost=lost,
        reports_repeated=repeated,
    )


def declines(workload: Workload) -> Columns:
    """Return each job's highest minus last true score; NaN for a job without evaluations."""
    fall = np.full(len(workload), np.nan)
    some = np.diff(workload.bounds) > 0
    if some.any():
        highest = np.maximum.reduceat(workload.true_scores, workload.bounds[:-1][some])
        fall[some] = highest - workload.true_scores[workload.bounds[1:][some] - 1]
    return fall


def _by_type(workload: Workload, chosen: NDArray[np.bool_]) -> dict[str, int]:
    """Return how many of the chosen jobs are of each type."""
    counts = np.bincount(workload.job_type[chosen], minlength=len(workload.job_types))
    return dict(zip(workload.job_types, counts.tolist(), strict=True))


def _delivery_shares(workload: Workload) -> tuple[float, float]:
    """Return the shares of evaluations whose report is lost, and that is repeated."""
    if workload.delivery_bounds is None or not workload.evals:
        return 0.0, 0.0
    copies = np.diff(workload.delivery_bounds)
    return float((copies == 0).mean()), float((copies > 1).mean())


def _quartiles(values: Columns) -> Quartiles:
    """Return the spread of the values that are numbers."""
    some = values[np.isfinite(values)]
    if not some.size:
        return Quartiles()
    places = np.quantile(some, [0.0, 0.25, 0.5, 0.75, 1.0]).tolist()
    return Quartiles(**dict(zip(Quartiles.__struct_fields__, places, strict=True)))
