"""The simulator against answers that independent public simulators agree on.

Traces and figures: 64 interchangeable GPUs, no evals, no overheads; strict FIFO as AccaSim,
Tiresias (count) and Lucid (random) give it; preemptive SRSF as Tiresias gives it.
"""

import csv
from pathlib import Path

import numpy as np
import pytest

from evalstop.core.job import JobSpec
from evalstop.schedulers.fifo import Fifo
from evalstop.schedulers.shortest import SrsfEst
from evalstop.schedulers.tiresias import Tiresias
from evalstop.sim.simulator import Simulator
from evalstop.workloads.job import SimJob, Workload

pytestmark = pytest.mark.no_cover  # what runs here is measured in small elsewhere

FOLDER = Path(__file__).parent


def read_trace(jobs: int, scale: float = 1.0) -> Workload:
    with (FOLDER / f"trace_{jobs}.csv").open() as file:
        return Workload.from_jobs(
            [
                SimJob(
                    spec=JobSpec(
                        id=row["job_id"],
                        gpus=int(row["num_gpu"]),
                        estimated_s=scale * float(row["duration"]),
                    ),
                    submit_s=scale * float(row["submit_time"]),
                    duration_s=scale * float(row["duration"]),
                )
                for row in csv.DictReader(file)
            ]
        )


def columns(workload, policy, gpus=64):
    return Simulator(workload, gpus=gpus, policy=policy).run().columns(workload)


FIFO = [
    (200, 15_651.025, 144_845, 0.720),
    (1_000, 13_615.858, 522_171, 0.866),
    (5_000, 18_807.721, 2_591_784, 0.895),
    (20_000, 19_774.031, 10_100_167, 0.911),
]


@pytest.mark.parametrize(("jobs", "jct", "makespan", "utilisation"), FIFO)
def test_strict_fifo_is_exact_to_the_digit(jobs, jct, makespan, utilisation):
    ran = columns(read_trace(jobs), Fifo())
    assert round(float(ran.response_s.mean()), 3) == jct
    assert ran.end_s.max() == makespan
    assert round(float(ran.gpu_seconds.sum() / 64 / makespan), 3) == utilisation


SRSF = [(200, 12_511.2), (1_000, 12_206.2), (5_000, 13_199.9), (20_000, 13_077.0)]


@pytest.mark.parametrize(("jobs", "jct"), SRSF)
def test_preemptive_shortest_remaining_service_is_exact(jobs, jct):
    ran = columns(read_trace(jobs), SrsfEst())
    assert round(float(ran.response_s.mean()), 1) == jct


@pytest.mark.parametrize("policy", [Fifo, SrsfEst])
def test_scaling_all_times_scales_completion_times(policy):
    plain = columns(read_trace(1_000), policy())
    doubled = columns(read_trace(1_000, scale=2.0), policy())
    np.testing.assert_array_equal(doubled.response_s, 2.0 * plain.response_s)


def test_one_more_gpu_never_hurts_the_wait_of_one_gpu_jobs_under_fifo():
    trace = read_trace(1_000)
    singles = [job for job in trace if job.spec.gpus == 1]
    workload = Workload.from_jobs(singles)
    waits = [
        float((ran.first_start_s - ran.submit_s).mean())
        for ran in (columns(workload, Fifo(), gpus) for gpus in range(8, 20))
    ]
    assert waits == sorted(waits, reverse=True)
    assert waits[0] > waits[-1]


TIRESIAS = [
    (200, 13_400.7, 13_248.25),
    (1_000, 12_673.7, 12_594.877),
    (5_000, 14_423.4, 14_476.044),
    (20_000, 14_815.3, 14_925.01865),
]
"""Jobs, mean JCT of Tiresias's own simulator (dlas-gpu), and ours.

Theirs has three queues (it ships three limits and uses two), and in each those who run come
before those who wait. Ours differs by -1.1 % to +0.7 %: theirs looks for the demotion of a job
on g GPUs at (limit - seconds) / g instead of (limit - GPU-seconds) / g, so that it comes late,
at whatever event is next. With that formula in place of the exact one, a plain event loop gives
13,400.740, 12,673.668 and 14,423.381: their figures to the digit (measured 2026-11).
"""


@pytest.mark.parametrize(("jobs", "published", "exact"), TIRESIAS)
def test_least_attained_service_is_within_two_percent_of_tiresias(jobs, published, exact):
    ran = columns(read_trace(jobs), Tiresias())
    ours = float(ran.response_s.mean())
    assert ours == pytest.approx(published, rel=0.02)
    assert ours == pytest.approx(exact, rel=1e-9)
