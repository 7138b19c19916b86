"""A declining job runs on, behind everyone else, and never in anyone's way."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalstop.core.events import EvalReported, JobEnded, JobPreempted, JobStarted
from evalstop.core.job import JobSpec, Outcome
from evalstop.detectors.consecutive import ConsecutiveDecline
from evalstop.metrics.columns import OUTCOME_CODES
from evalstop.policies.deprioritise import Deprioritise
from evalstop.schedulers.fifo import Fifo
from evalstop.schedulers.shortest import SjfEst, SrtfEst
from evalstop.schedulers.tiresias import Tiresias
from evalstop.sim.costs import ExecutionCosts
from evalstop.sim.simulator import Simulator
from evalstop.workloads.job import SimJob, Workload

RULES = {"*": ConsecutiveDecline(k=2)}


def job(name, submit, duration, scores=(), gpus=1):
    count = len(scores)
    return SimJob(
        spec=JobSpec(id=name, gpus=gpus, estimated_s=float(duration)),
        submit_s=float(submit),
        duration_s=float(duration),
        eval_offsets=[duration * (i + 1) / count for i in range(count)],
        eval_steps=list(range(1, count + 1)),
        scores=list(scores),
        true_scores=list(scores),
    )


def story(jobs, gpus, base):
    events = []
    policy = Deprioritise(base=base, rules=RULES)
    Simulator(
        Workload.from_jobs(jobs), gpus=gpus, policy=policy, observer=lambda e, _: events.append(e)
    ).run()
    return [
        (event.time, type(event).__name__, event.job)
        for event in events
        if isinstance(event, (JobStarted, JobPreempted, JobEnded))
    ]


@pytest.mark.parametrize("base", [SjfEst, SrtfEst, Fifo])
def test_it_gives_way_to_whoever_waits_and_takes_what_is_left(base):
    declining = job("declining", 0, 100, scores=[5, 4, 3, 2, 1, 0, 0, 0, 0, 0])
    seen = story([declining, job("other", 50, 20)], 1, base())
    assert seen == [
        (0.0, "JobStarted", "declining"),  # marked at 30, and nobody waits
        (50.0, "JobPreempted", "declining"),
        (50.0, "JobStarted", "other"),
        (70.0, "JobEnded", "other"),
        (70.0, "JobStarted", "declining"),
        (120.0, "JobEnded", "declining"),
    ]


@pytest.mark.parametrize("base", [SjfEst, SrtfEst, Fifo, Tiresias])
@given(seed=st.integers(0, 2**32 - 1), costly=st.booleans())
def test_every_job_runs_to_its_end(base, seed, costly):
    random = np.random.default_rng(seed)
    jobs = [
        job(
            f"j{i}",
            random.integers(0, 200),
            float(random.integers(1, 100)),
            scores=list(random.random(int(random.integers(0, 8)))),
            gpus=int(random.choice([1, 2, 4])),
        )
        for i in range(15)
    ]
    costs = ExecutionCosts(start_s=1.0, preempt_s=2.0, release_s=3.0) if costly else None
    simulator = Simulator(
        Workload.from_jobs(jobs),
        gpus=4,
        policy=Deprioritise(base=base(), rules=RULES),
        costs=costs,
        observer=lambda event, _: (
            simulator.kernel.state.check() if isinstance(event, EvalReported) else None
        ),
    )
    assert set(simulator.run().outcome) == {OUTCOME_CODES[Outcome.COMPLETED]}
