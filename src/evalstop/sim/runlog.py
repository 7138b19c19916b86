"""The record of a run: one row a job, in flat arrays."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

from evalstop.metrics.columns import OUTCOME_CODES, UNFINISHED, JobColumns, job_columns

if TYPE_CHECKING:
    from evalstop.core.job import Outcome
    from evalstop.workloads.job import Workload

__all__ = ["RunLog"]

_NAN = float("nan")


class RunLog:
    """What happened to each job, by its index in the workload.

    Attributes:
        submits, starts, evals, preemptions, resizes, ends: facts of each kind so far.
        extra_evals: evaluations asked for beside those the jobs make.
    """

    def __init__(self, jobs: int) -> None:
        self.first_start_s = array("d", [_NAN]) * jobs
        self.end_s = array("d", [_NAN]) * jobs
        self.outcome = array("b", [UNFINISHED]) * jobs
        self.gpu_seconds = array("d", [0.0]) * jobs
        self.service_s = array("d", [0.0]) * jobs
        self.stop_eval = array("i", [-1]) * jobs
        self.kept_eval = array("i", [-1]) * jobs
        self.submits = self.starts = self.evals = self.preemptions = self.resizes = self.ends = 0
        self.extra_evals = 0

    @property
    def events(self) -> int:
        """Facts that happened: each submission, start, evaluation, preemption and end once."""
        return self.submits + self.starts + self.evals + self.preemptions + self.ends

    def end(
        self, index: int, time: float, outcome: Outcome, gpu_seconds: float, service_s: float
    ) -> None:
        """Close one job's row."""
        self.end_s[index] = time
        self.outcome[index] = OUTCOME_CODES[outcome]
        self.gpu_seconds[index] = gpu_seconds
        self.service_s[index] = service_s
        self.ends += 1

    def columns(self, workload: Workload) -> JobColumns:
        """Join the record with the hidden truth, for `evalstop.metrics`."""
        return job_columns(
            workload,
            first_start_s=np.frombuffer(self.first_start_s),
            end_s=np.frombuffer(self.end_s),
            outcome=np.frombuffer(self.outcome, dtype=np.int8),
            gpu_seconds=np.frombuffer(self.gpu_seconds),
            service_s=np.frombuffer(self.service_s),
            stop_eval=np.frombuffer(self.stop_eval, dtype=np.intc),
            kept_eval=np.frombuffer(self.kept_eval, dtype=np.intc),
        )
