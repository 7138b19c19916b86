"""What a finished run left behind, one entry a job: the input of every metric.

The driver fills in what happened (`job_columns`); what was hidden from the policies (label, true
peak, true scores) is added here from the workload, once, vectorised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evalstop.core.errors import InputError
from evalstop.core.job import Outcome

if TYPE_CHECKING:
    from evalstop.workloads.job import Workload

__all__ = ["OUTCOME_CODES", "UNFINISHED", "JobColumns", "job_columns"]

Floats: TypeAlias = NDArray[np.floating[Any]]
Integers: TypeAlias = NDArray[np.integer[Any]]
Flags: TypeAlias = NDArray[np.bool_]

OUTCOME_CODES = {outcome: code for code, outcome in enumerate(Outcome)}
"""How `JobColumns.outcome` writes an `Outcome`."""

UNFINISHED = -1
"""`JobColumns.outcome` of a job that had not ended when the run was cut off."""


class JobColumns(Struct, frozen=True, kw_only=True, eq=False):
    """One run, one entry a job, in order of submission. Times in seconds.

    Attributes:
        submit_s, gpus, duration_s, peak_s, hacking: as in `evalstop.workloads.job.SimJob`.
        first_start_s: time of the first start; NaN if it never started.
        end_s: time the job was gone and its GPUs free; NaN if it never ended.
        outcome: `OUTCOME_CODES`, or `UNFINISHED`.
        gpu_seconds: GPU-seconds held, overheads and releasing included.
        service_s: service attained, in seconds on the submitted gang.
        stop_eval: index of the evaluation whose arrival stopped the job; -1 if none did (not
            stopped, or stopped by something else than an evaluation).
        peak_evals: evaluations made up to the true peak, at most all of them.
        delivered_score: true score of the checkpoint that the tenant gets; NaN without one.
        best_score: highest true score over all of the run's checkpoints; NaN without one.
        tenant, tenants: each job's index into the names, and the names.
        job_type, job_types: likewise.
    """

    submit_s: Floats
    first_start_s: Floats
    end_s: Floats
    outcome: Integers
    gpus: Integers
    gpu_seconds: Floats
    service_s: Floats
    duration_s: Floats
    peak_s: Floats
    hacking: Flags
    stop_eval: Integers
    peak_evals: Integers
    delivered_score: Floats
    best_score: Floats
    tenant: Integers
    job_type: Integers
    tenants: tuple[str, ...]
    job_types: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse columns of different lengths.

        Raises:
            InputError: naming the column.
        """
        for name in self.__struct_fields__[:-2]:
            if len(getattr(self, name)) != len(self.submit_s):
                message = (
                    f"{name} must have {len(self.submit_s)} entries, got {len(getattr(self, name))}"
                )
                raise InputError(message)

    def __len__(self) -> int:
        """Return the number of jobs."""
        return len(self.submit_s)

    def ended(self, outcome: Outcome) -> Flags:
        """Return which jobs ended so, shape (jobs,)."""
        ended: Flags = self.outcome == OUTCOME_CODES[outcome]
        return ended

    @property
    def stopped(self) -> Flags:
        """Which jobs a policy stopped, shape (jobs,)."""
        return self.ended(Outcome.STOPPED_BY_POLICY)

    @property
    def response_s(self) -> Floats:
        """Job completion times: end - submission, NaN for a job that never ended."""
        return self.end_s - self.submit_s


def job_columns(
    workload: Workload,
    *,
    first_start_s: Floats,
    end_s: Floats,
    outcome: Integers,
    gpu_seconds: Floats,
    service_s: Floats,
    stop_eval: Integers,
    kept_eval: Integers,
) -> JobColumns:
    """Join what happened with what was hidden.

    Args:
        workload: the jobs, in the order of the other columns.
        first_start_s: see `JobColumns`.
        end_s: see `JobColumns`.
        outcome: see `JobColumns`.
        gpu_seconds: see `JobColumns`.
        service_s: see `JobColumns`.
        stop_eval: see `JobColumns`.
        kept_eval: index of the evaluation whose checkpoint a stopped job's tenant gets; -1: none
            was named. A job that ran to its end delivers its last checkpoint, any other job the
            last one it made.
    """
    made = _evals_made(workload, service_s)
    stopped = np.asarray(outcome) == OUTCOME_CODES[Outcome.STOPPED_BY_POLICY]
    delivered = np.where(stopped & (np.asarray(kept_eval) >= 0), kept_eval, made - 1)
    return JobColumns(
        submit_s=workload.submit_s,
        first_start_s=np.asarray(first_start_s),
        end_s=np.asarray(end_s),
        outcome=np.asarray(outcome),
        gpus=workload.gpus,
        gpu_seconds=np.asarray(gpu_seconds),
        service_s=np.asarray(service_s),
        duration_s=workload.duration_s,
        peak_s=workload.peak_s,
        hacking=workload.hacking,
        stop_eval=np.asarray(stop_eval),
        peak_evals=_evals_made(workload, workload.peak_s),
        delivered_score=_score_at(workload, delivered),
        best_score=_best_scores(workload),
        tenant=workload.tenant,
        job_type=workload.job_type,
        tenants=workload.tenants,
        job_types=workload.job_types,
    )


def _evals_made(workload: Workload, service_s: Floats) -> Integers:
    """Return how many evaluations each job makes within a service, shape (jobs,).

    The tolerance, 1e-9 of the service, forgives what adding up pieces of service loses.
    """
    counts = np.diff(workload.bounds)
    limit = np.repeat(np.asarray(service_s) * (1 + 1e-9), counts)
    within = np.concatenate([[0], np.cumsum(workload.eval_offsets <= limit)])
    made: Integers = within[workload.bounds[1:]] - within[workload.bounds[:-1]]
    return made


def _score_at(workload: Workload, index: Integers) -> Floats:
    """Return the true score of one evaluation of each job; NaN where the index is -1."""
    scores = np.full(len(workload), np.nan)
    some = index >= 0
    scores[some] = workload.true_scores[workload.bounds[:-1][some] + index[some]]
    return scores


def _best_scores(workload: Workload) -> Floats:
    """Return each job's highest true score; NaN for a job without evaluations."""
    best = np.full(len(workload), np.nan)
    some = np.diff(workload.bounds) > 0
    if some.any():
        best[some] = np.fmax.reduceat(workload.true_scores, workload.bounds[:-1][some])
    return best
