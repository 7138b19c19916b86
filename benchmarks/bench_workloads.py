"""Size and speed of workloads: 1,000,000 jobs of 20 evaluations, made, read and summarised.

    python benchmarks/bench_workloads.py

Bounds: what the project asks of a million simulated jobs (1.5 GiB and two minutes in all) leaves
to the workload. Measured on one core of a shared machine, CPython 3.11, numpy 2, seed 0: 2.7 CPU s
and 0.62 GiB to make, 5.2 s to read, 0.2 s to summarise; the bounds leave two to three times that.
CPU seconds, so that a busy machine does not decide.
"""

from __future__ import annotations

import resource
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from evalstop.core.job import Outcome
from evalstop.metrics.columns import OUTCOME_CODES, job_columns
from evalstop.metrics.summary import summarise
from evalstop.workloads.generate import generate
from evalstop.workloads.scenarios import CONFORMANCE

if TYPE_CHECKING:
    from evalstop.workloads.job import Workload

JOBS, GPUS = 1_000_000, 10_000
MAKE_S, READ_S, SUMMARISE_S = 9.0, 15.0, 1.0
GIB = 1.0


def main() -> int:
    """Print the figures; return 1 if a bound is not held."""
    held = True

    started = time.process_time()
    workload = generate(replace(CONFORMANCE, jobs=JOBS, gpus=GPUS), 0)
    spent = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    held &= report("make", spent, MAKE_S)
    print(f"peak memory: {peak:.2f} GiB (bound {GIB}), {workload.evals:,} evaluations")
    held &= peak <= GIB

    started = time.process_time()
    evals = sum(len(job.scores) for job in workload)
    held &= report("read as objects", time.process_time() - started, READ_S)
    held &= evals == workload.evals

    columns = all_completed(workload)
    started = time.process_time()
    summarise([columns], gpus=GPUS)
    held &= report("summarise", time.process_time() - started, SUMMARISE_S)
    return 0 if held else 1


def report(what: str, spent: float, bound: float) -> bool:
    """Print one figure; return whether it holds."""
    rate = JOBS / spent
    print(f"{what} {JOBS:,} jobs: {spent:.2f} CPU s (bound {bound}), {rate:,.0f} jobs/s")
    return spent <= bound


def all_completed(workload: Workload):  # noqa: ANN201 -- a script
    """Return the record of a cluster where nothing ever waits."""
    jobs = len(workload)
    return job_columns(
        workload,
        first_start_s=workload.submit_s,
        end_s=workload.submit_s + workload.duration_s,
        outcome=np.full(jobs, OUTCOME_CODES[Outcome.COMPLETED]),
        gpu_seconds=workload.gpus * workload.duration_s,
        service_s=workload.duration_s,
        stop_eval=np.full(jobs, -1),
        kept_eval=np.full(jobs, -1),
    )


if __name__ == "__main__":
    sys.exit(main())
