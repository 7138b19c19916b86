"""Backlogs longer than a small test's, and settings and events that are out of the ordinary."""

import numpy as np
import pytest

from evalstop.config.schedulers import parse_scheduler
from evalstop.core.actions import Start
from evalstop.core.cluster import ClusterState
from evalstop.core.errors import SpecError
from evalstop.core.events import CapacityChanged, JobPreempted, JobStarted, JobSubmitted
from evalstop.core.job import JobSpec, Phase
from evalstop.core.kernel import Kernel
from evalstop.schedulers.backfill import FifoBackfill
from evalstop.sim.simulator import Simulator
from evalstop.workloads.job import SimJob, Workload


class EasyByScanning:
    """EASY backfilling that looks at every job at every event: slow, and plainly right."""

    def decide(self, event, view):
        del event
        now, free = view.now, view.free_gpus
        waiting = [one for one in view.jobs.values() if one.phase is Phase.WAITING]
        ends = sorted(
            (now + one.remaining_s(now), one.held_gpus)
            for one in view.jobs.values()
            if one.phase in {Phase.STARTING, Phase.RUNNING}
        )
        starts = []
        while waiting and waiting[0].gpus <= free:
            head = waiting.pop(0)
            free -= head.gpus
            ends = sorted([*ends, (now + head.remaining_s(now), head.gpus)])
            starts.append(Start(job=head.id, gpus=head.gpus))
        if not waiting:
            return starts
        shadow, spare = float("inf"), free
        for end, gpus in ends:
            spare += gpus
            if spare >= waiting[0].gpus:
                shadow, spare = end, spare - waiting[0].gpus
                break
        for one in waiting[1:]:
            ends_in_time = now + one.remaining_s(now) <= shadow
            if one.gpus <= free and (ends_in_time or one.gpus <= spare):
                free -= one.gpus
                spare -= 0 if ends_in_time else one.gpus
                starts.append(Start(job=one.id, gpus=one.gpus))
        return starts


def test_backfilling_finds_in_a_long_queue_what_a_scan_finds():
    random = np.random.default_rng(3)
    workload = Workload.from_jobs(
        [
            SimJob(
                spec=JobSpec(
                    id=f"j{i}", gpus=int(random.choice([1, 2, 4, 8])), estimated_s=duration
                ),
                submit_s=float(random.uniform(0, 1_000)),
                duration_s=duration,
            )
            for i, duration in enumerate(random.uniform(1, 200, 400).tolist())
        ]
    )
    quick, slow = (
        Simulator(workload, gpus=8, policy=policy).run()
        for policy in (FifoBackfill(), EasyByScanning())
    )
    np.testing.assert_allclose(quick.end_s, slow.end_s)


@pytest.mark.parametrize(
    "spec",
    ["loss-aware:epoch_s=0", "loss-aware:decay=2", "pollux:sync=-1", "tiresias:promote=-1"],
)
def test_settings_out_of_range_are_refused(spec):
    with pytest.raises(SpecError, match=spec.partition(":")[0]):
        parse_scheduler(spec)


@pytest.mark.parametrize(
    "spec", ["fifo", "fifo-backfill", "sjf-est", "srtf-est", "loss-aware", "tiresias", "pollux"]
)
def test_a_job_preempted_from_outside_waits_again_and_starts_when_there_is_room(spec):
    kernel = Kernel(ClusterState(2), parse_scheduler(spec))
    spec_of = JobSpec(id="job", gpus=2, estimated_s=10.0)
    assert kernel.handle(JobSubmitted(time=0.0, job=spec_of))
    kernel.handle(JobStarted(time=0.0, job="job", gpus=2))
    kernel.handle(CapacityChanged(time=100.0, gpus=3))
    kernel.handle(CapacityChanged(time=200.0, gpus=1))
    kernel.handle(JobPreempted(time=300.0, job="job"))
    back = [*kernel.handle(CapacityChanged(time=400.0, gpus=2))]
    assert [action for action in back if isinstance(action, Start)] == [Start(job="job", gpus=2)]


def test_native_places_nothing():
    kernel = Kernel(ClusterState(2), parse_scheduler("native"))
    assert not kernel.handle(JobSubmitted(time=0.0, job=JobSpec(id="job", gpus=1)))
