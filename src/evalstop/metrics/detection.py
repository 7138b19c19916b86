"""Early stopping judged as detection: positives are hacking jobs, alarms are policy stops.

With hidden label h and stop s, each a flag a job:

    tp = |h and s|   fp = |not h and s|   fn = |h and not s|   tn = |not h and not s|

Any stop of a hacking job is a tp; those before its true peak are also counted as early stops. A
hacking job that crashes before it is stopped is a fn. `fpr` counts every non-hacking job,
`fpr_rlhf` the healthy RLHF jobs only.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from evalstop.metrics.columns import JobColumns

__all__ = [
    "Confusion",
    "confusion",
    "count_early_stops",
    "count_stops",
    "detection_delays",
]

RLHF = "rlhf"


class Confusion(Struct, frozen=True, kw_only=True):
    """Counts of right and wrong stops, and the rates that follow; an undefined rate is NaN."""

    tp: int = 0
    fp: int = 0
    fn: int = 0
    tn: int = 0

    def __add__(self, other: Confusion) -> Confusion:
        """Return the pooled counts."""
        return Confusion(
            tp=self.tp + other.tp,
            fp=self.fp + other.fp,
            fn=self.fn + other.fn,
            tn=self.tn + other.tn,
        )

    @property
    def precision(self) -> float:
        """Return tp / (tp + fp); NaN if nothing was stopped."""
        return _ratio(self.tp, self.tp + self.fp)

    @property
    def recall(self) -> float:
        """Return tp / (tp + fn); NaN if nothing was hacking."""
        return _ratio(self.tp, self.tp + self.fn)

    @property
    def fpr(self) -> float:
        """Return fp / (fp + tn); NaN if everything was hacking."""
        return _ratio(self.fp, self.fp + self.tn)

    @property
    def f1(self) -> float:
        """Return 2 tp / (2 tp + fp + fn); NaN if nothing was hacking and nothing stopped."""
        return _ratio(2 * self.tp, 2 * self.tp + self.fp + self.fn)

    @property
    def base_rate(self) -> float:
        """Return the hacking share, (tp + fn) / all; NaN without jobs."""
        return _ratio(self.tp + self.fn, self.tp + self.fp + self.fn + self.tn)


def confusion(
    hacking: Sequence[bool] | NDArray[Any], stopped: Sequence[bool] | NDArray[Any]
) -> Confusion:
    """Return the counts; all 0 for no jobs."""
    positive, alarmed = np.asarray(hacking, dtype=np.bool_), np.asarray(stopped, dtype=np.bool_)
    return Confusion(
        tp=int((positive & alarmed).sum()),
        fp=int((~positive & alarmed).sum()),
        fn=int((positive & ~alarmed).sum()),
        tn=int((~positive & ~alarmed).sum()),
    )


def count_stops(columns: JobColumns, *, job_type: str | None = None) -> Confusion:
    """Return the counts over all jobs, or over those of one type.

    ``count_stops(columns, job_type="rlhf").fpr`` is `fpr_rlhf`.
    """
    some = slice(None) if job_type is None else _of_type(columns, job_type)
    return confusion(columns.hacking[some], columns.stopped[some])


def count_early_stops(columns: JobColumns) -> int:
    """Return |hacking and stopped at a service below peak_s|: 0 if nothing was stopped."""
    return int((columns.hacking & columns.stopped & _before_peak(columns)).sum())


def detection_delays(columns: JobColumns) -> NDArray[np.floating[Any]]:
    """Return evaluations from the true peak to the stop, one for each rightly stopped job.

    delay = stop_eval + 1 - peak_evals: evaluations made after the peak, the one that raised the
    alarm included. Early stops, and stops that no evaluation raised, have no delay and are left
    out; empty if none is left.
    """
    some = columns.hacking & columns.stopped & ~_before_peak(columns) & (columns.stop_eval >= 0)
    delays = columns.stop_eval[some] + 1 - columns.peak_evals[some]
    after_peak: NDArray[np.floating[Any]] = np.maximum(delays, 0).astype(np.float64)
    return after_peak


def _before_peak(columns: JobColumns) -> NDArray[np.bool_]:
    """Return which jobs attained less service than their true peak needs."""
    before: NDArray[np.bool_] = columns.service_s < columns.peak_s * (1 - 1e-9)
    return before


def _of_type(columns: JobColumns, job_type: str) -> NDArray[np.bool_]:
    """Return which jobs are of a type."""
    if job_type not in columns.job_types:
        return np.zeros(len(columns), dtype=np.bool_)
    chosen: NDArray[np.bool_] = columns.job_type == columns.job_types.index(job_type)
    return chosen


def _ratio(part: int, whole: int) -> float:
    """Return part / whole; NaN for nothing."""
    return part / whole if whole else math.nan
