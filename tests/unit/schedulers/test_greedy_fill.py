"""The fill of SRTF-Est and SRSF-Est, beside one that walks every job at every event."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stories import story

from evalstop.core.actions import Preempt, Start
from evalstop.core.cluster import ClusterState
from evalstop.core.events import (
    CapacityChanged,
    JobEnded,
    JobPreempted,
    JobStarted,
    JobSubmitted,
)
from evalstop.core.job import JobSpec, Phase
from evalstop.core.kernel import Kernel
from evalstop.schedulers.shortest import SrsfEst, SrtfEst
from evalstop.sim.costs import ExecutionCosts
from evalstop.workloads.job import SimJob, Workload

COSTS = [
    None,
    ExecutionCosts(start_s=2.0, restart_s=5.0, preempt_s=3.5, stop_s=1.5, release_s=1.0),
    ExecutionCosts(preempt_s=4.0),
    ExecutionCosts(start_s=3.0, restart_s=3.0),
]


class WalksAll:
    """Sorts and walks all jobs: slow, and plainly right."""

    def __init__(self, *, weighs_gpus):
        self.weighs_gpus = weighs_gpus

    def decide(self, event, view):
        if type(event) not in {JobSubmitted, JobEnded, JobPreempted, CapacityChanged}:
            return ()
        keys = [
            (one.remaining_s(view.now) * (one.gpus if self.weighs_gpus else 1), number, one)
            for number, one in enumerate(view.jobs.values())
            if one.phase in {Phase.WAITING, Phase.RUNNING, Phase.PREEMPTING}
        ]
        free = view.free_gpus
        spare = free + sum(one.held_gpus for _, _, one in keys)
        preempts, starts = [], []
        for _, _, one in sorted(keys, key=lambda key: key[:2]):
            if one.gpus <= spare:
                spare -= one.gpus
                if one.phase is Phase.WAITING and one.gpus <= free:
                    free -= one.gpus
                    starts.append(Start(job=one.id, gpus=one.gpus))
            elif one.phase is Phase.RUNNING:
                preempts.insert(0, Preempt(job=one.id))
        return [*preempts, *starts]


@pytest.mark.parametrize("scheduler", [SrtfEst, SrsfEst])
@given(
    seed=st.integers(0, 2**32 - 1),
    jobs=st.integers(1, 60),
    whole=st.booleans(),
    span=st.sampled_from([10.0, 100.0, 500.0]),
    costs=st.sampled_from(COSTS),
    stops=st.booleans(),
)
def test_it_decides_as_a_walk_over_all_jobs_does(  # noqa: PLR0917 -- hypothesis draws them
    scheduler, seed, jobs, whole, span, costs, stops
):
    # On whole seconds many keys are equal, and exactly so: rounding plays no part.
    random = np.random.default_rng(seed)
    grid = np.round if whole else np.asarray
    made = []
    for index in range(jobs):
        duration = float(grid(random.uniform(1, random.choice([10, 100]))))
        share = np.sort(random.random(int(random.integers(0, 6))))
        scores = np.round(random.random(len(share)), 2).tolist()
        estimate = float(grid(1 + duration * random.choice([0.5, 1, 1, 2])))
        made.append(
            SimJob(
                spec=JobSpec(
                    id=f"j{index}",
                    gpus=int(random.choice([1, 1, 2, 3, 4, 8])),
                    estimated_s=None if random.random() < 0.1 else estimate,
                ),
                submit_s=float(grid(random.uniform(0, span))),
                duration_s=duration,
                eval_offsets=grid(share * duration).tolist(),
                eval_steps=list(range(len(share))),
                scores=scores,
                true_scores=scores,
                fails_at_s=float(grid(duration / 2)) if random.random() < 0.1 else None,
            )
        )
    workload = Workload.from_jobs(made)
    plain = WalksAll(weighs_gpus=scheduler.weighs_gpus)
    expected = story(workload, plain, costs=costs, stops=stops)
    for one, other in zip(
        story(workload, scheduler(), costs=costs, stops=stops), expected, strict=True
    ):
        assert one == other


class Outside:
    """A cluster on which others start and preempt as well, and whose size changes.

    What is ordered comes true at once, or later and out of order.
    """

    def __init__(self, policy, random):
        self.kernel = Kernel(ClusterState(8), policy)
        self.view = self.kernel.state.view
        self.random = random
        self.time = 0.0
        self.submitted = 0
        self.ordered = []
        self.told = []

    def tell(self, event):
        actions = [*self.kernel.handle(event)]
        self.kernel.state.check()
        self.told.append((event, actions))
        self.ordered += actions

    def carry_out(self, action):
        if type(action) is Start:
            self.tell(JobStarted(time=self.time, job=action.job, gpus=action.gpus))
        else:
            self.tell(JobPreempted(time=self.time, job=action.job))

    def named(self, *phases):
        names = [one.id for one in self.view.jobs.values() if one.phase in phases]
        return names[int(self.random.integers(len(names)))] if names else ""

    def step(self):
        draw = self.random.random()
        if self.ordered and draw < 0.8:
            at = 0 if draw < 0.6 else int(self.random.integers(len(self.ordered)))
            self.carry_out(self.ordered.pop(at))
            return
        self.time += float(self.random.integers(0, 4))
        if draw < 0.92:
            spec = JobSpec(
                id=f"j{self.submitted}",
                gpus=int(self.random.choice([1, 1, 2, 3, 4, 8])),
                estimated_s=float(self.random.integers(1, 40)),
            )
            self.submitted += 1
            self.tell(JobSubmitted(time=self.time, job=spec))
        elif draw < 0.97:
            name = self.named(Phase.RUNNING)
            if name:
                self.tell(JobEnded(time=self.time, job=name))
        elif draw < 0.98:
            gpus = int(self.random.integers(self.view.total_gpus - self.view.free_gpus, 13))
            self.tell(CapacityChanged(time=self.time, gpus=gpus))
        elif draw < 0.99:
            name = self.named(Phase.RUNNING)
            if name:
                self.tell(JobPreempted(time=self.time, job=name))
        else:
            name = self.named(Phase.WAITING)
            if name and self.view.jobs[name].gpus <= self.view.free_gpus:
                gpus = self.view.jobs[name].gpus
                self.tell(JobStarted(time=self.time, job=name, gpus=gpus))


@pytest.mark.parametrize("scheduler", [SrtfEst, SrsfEst])
@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(1, 200))
def test_it_does_so_where_others_start_and_preempt_too(scheduler, seed, steps):
    clusters = [
        Outside(policy, np.random.default_rng(seed))
        for policy in (scheduler(), WalksAll(weighs_gpus=scheduler.weighs_gpus))
    ]
    for _ in range(steps):
        for cluster in clusters:
            cluster.step()
        assert clusters[0].told[-1:] == clusters[1].told[-1:]
