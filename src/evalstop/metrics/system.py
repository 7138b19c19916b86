"""How well the cluster served its jobs.

Symbols, one entry a job: a submission, s first start, e end, g GPUs of the gang, G GPU-seconds
held, v service attained, D true duration, p service at the true peak, h the hacking label. Times
in seconds, GPU time in GPU-hours (1/3600 of a GPU-second). Jobs that never ended have no
completion time and are left out of it; their GPU time counts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from evalstop.core.job import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from evalstop.metrics.columns import JobColumns

__all__ = [
    "delivered_score_mean",
    "gpu_hours_hacking",
    "gpu_hours_lost_healthy",
    "gpu_hours_reclaimed",
    "gpu_hours_used",
    "gpu_hours_wasted",
    "gpu_shares",
    "jain_gpu_shares",
    "jain_index",
    "jain_tenants",
    "jct_completed_mean_s",
    "jct_mean_s",
    "jct_percentile_s",
    "makespan_s",
    "mean_slowdowns",
    "queue_delay_mean_s",
    "regret_mean",
    "slowdown_worst_tenant",
    "utilisation",
]

HOUR = 3600.0


def jct_mean_s(columns: JobColumns) -> float:
    """Return mean(e - a) over all jobs that ended, stopped ones included; NaN for none."""
    return _mean(columns.response_s)


def jct_completed_mean_s(columns: JobColumns) -> float:
    """Return mean(e - a) over the jobs that ran to their own end; NaN for none."""
    return _mean(columns.response_s[columns.ended(Outcome.COMPLETED)])


def jct_percentile_s(columns: JobColumns, *, percent: float) -> float:
    """Return a percentile of e - a over all jobs that ended, linear between ranks; NaN for none."""
    times = _finite(columns.response_s)
    return float(np.percentile(times, percent)) if times.size else math.nan


def makespan_s(columns: JobColumns) -> float:
    """Return max(e) - min(a); NaN if no job ended."""
    ends = _finite(columns.end_s)
    return float(ends.max() - columns.submit_s.min()) if ends.size else math.nan


def queue_delay_mean_s(columns: JobColumns) -> float:
    """Return mean(s - a) over the jobs that started; NaN for none.

    Waiting after a preemption is not in it (it is in the completion time).
    """
    return _mean(columns.first_start_s - columns.submit_s)


def utilisation(columns: JobColumns, *, gpus: int) -> float:
    """Return sum(G) / (gpus x makespan); NaN if no job ended."""
    span = makespan_s(columns)
    return float(columns.gpu_seconds.sum() / (gpus * span)) if span > 0 else math.nan


def gpu_hours_used(columns: JobColumns) -> float:
    """Return sum(G); 0 for no jobs."""
    return float(columns.gpu_seconds.sum()) / HOUR


def gpu_hours_wasted(columns: JobColumns) -> float:
    """Return sum over hacking jobs of G x max(0, v - p) / v: held after the true peak; 0 for none.

    With a rigid gang and no overheads this is g x max(0, v - p).
    """
    after = np.maximum(0.0, columns.service_s - columns.peak_s)
    share = np.divide(after, columns.service_s, out=np.zeros_like(after), where=after > 0)
    return float((columns.gpu_seconds * share)[columns.hacking].sum()) / HOUR


def gpu_hours_hacking(columns: JobColumns) -> float:
    """Return sum(G) over hacking jobs; 0 for none."""
    return float(columns.gpu_seconds[columns.hacking].sum()) / HOUR


def gpu_hours_lost_healthy(columns: JobColumns) -> float:
    """Return sum(G) over healthy jobs that were stopped, thrown away by wrong stops; 0 for none."""
    return float(columns.gpu_seconds[columns.stopped & ~columns.hacking].sum()) / HOUR


def gpu_hours_reclaimed(columns: JobColumns) -> float:
    """Return sum over stopped jobs of g x max(0, D - v), what they had still to run; 0 for none."""
    left = columns.gpus * np.maximum(0.0, columns.duration_s - columns.service_s)
    return float(left[columns.stopped].sum()) / HOUR


def mean_slowdowns(columns: JobColumns) -> NDArray[np.floating[Any]]:
    """Return each tenant's mean of (e - a) / D, shape (tenants with a job that ended,).

    D is the time the job would take alone to its own end, stopped or not, so that runs with and
    without early stopping divide by the same number.
    """
    slowdown = columns.response_s / columns.duration_s
    done = np.isfinite(slowdown)
    size = len(columns.tenants)
    counts = np.bincount(columns.tenant[done], minlength=size)
    sums = np.bincount(columns.tenant[done], weights=slowdown[done], minlength=size)
    means: NDArray[np.floating[Any]] = sums[counts > 0] / counts[counts > 0]
    return means


def jain_index(values: Sequence[float] | ArrayLike) -> float:
    """Return (sum x)^2 / (n sum x^2), in [1/n, 1]; NaN for no values, 1 if all are 0.

    Jain, Chiu, Hawe: A quantitative measure of fairness and discrimination (1984).
    """
    x = np.asarray(values, dtype=np.float64)
    if not x.size:
        return math.nan
    top = float(np.abs(x).max())
    if top == 0.0:
        return 1.0
    scaled = x / top  # the index does not depend on scale; squares of tiny values would vanish
    return float(scaled.sum() ** 2 / (x.size * (scaled**2).sum()))


def jain_tenants(columns: JobColumns) -> float:
    """Return the Jain index of the tenants' mean slowdowns; NaN if no job ended."""
    return jain_index(mean_slowdowns(columns))


def slowdown_worst_tenant(columns: JobColumns) -> float:
    """Return the highest of the tenants' mean slowdowns; NaN if no job ended."""
    means = mean_slowdowns(columns)
    return float(means.max()) if means.size else math.nan


def gpu_shares(columns: JobColumns) -> NDArray[np.floating[Any]]:
    """Return each tenant's sum(G) / sum(g (e - a)), shape (tenants with a job that ended,).

    That is the share it held of the GPUs it asked for, while its jobs were there: 1 if none of
    them ever waited. Unlike GPU time alone it does not depend on how much a tenant asks for.
    """
    asked = columns.gpus * columns.response_s
    done = asked > 0  # not for NaN
    size = len(columns.tenants)
    held = np.bincount(columns.tenant[done], weights=columns.gpu_seconds[done], minlength=size)
    total = np.bincount(columns.tenant[done], weights=asked[done], minlength=size)
    shares: NDArray[np.floating[Any]] = held[total > 0] / total[total > 0]
    return shares


def jain_gpu_shares(columns: JobColumns) -> float:
    """Return the Jain index of the tenants' GPU shares; NaN if no job ended."""
    return jain_index(gpu_shares(columns))


def delivered_score_mean(columns: JobColumns) -> float:
    """Return the mean true score of what tenants got; NaN without evaluations."""
    return _mean(columns.delivered_score)


def regret_mean(columns: JobColumns) -> float:
    """Return mean(best true score of the run - the one delivered); NaN without evaluations."""
    return _mean(columns.best_score - columns.delivered_score)


def _finite(values: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Return the entries that are numbers."""
    some: NDArray[np.floating[Any]] = values[np.isfinite(values)]
    return some


def _mean(values: NDArray[np.floating[Any]]) -> float:
    """Return the mean of the entries that are numbers; NaN for none."""
    some = _finite(values)
    return float(some.mean()) if some.size else math.nan
