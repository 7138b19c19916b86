"""The fill over the queues of 2D-LAS, beside one that walks every job at every event."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stories import story

from evalstop.core.actions import Preempt, Start
from evalstop.core.job import JobSpec, Phase
from evalstop.schedulers.queued import QueueFill
from evalstop.schedulers.tiresias import Tiresias
from evalstop.sim.costs import ExecutionCosts
from evalstop.workloads.job import SimJob, Workload

COSTLY = ExecutionCosts(start_s=2.0, restart_s=5.0, preempt_s=3.5, stop_s=1.5, release_s=1.0)


class PlainFill(QueueFill):
    """Sorts and walks all jobs: slow, and plainly right."""

    def fill(self, view):
        waits = [(entry[:2], view.jobs[entry[2]]) for entry in self.waiting.live.values()]
        runs = [
            ((place.key, place.rank), view.jobs[place.job])
            for placed in self._running
            for place in placed.values()
        ]
        walk = [
            pair
            for pair in sorted(waits + runs, key=lambda pair: pair[0])
            if pair[1].phase in {Phase.WAITING, Phase.RUNNING, Phase.PREEMPTING}
        ]
        free = view.free_gpus
        spare = free + sum(one.held_gpus for _, one in walk)
        preempts, starts = [], []
        for _, one in walk:
            if one.gpus <= spare:
                spare -= one.gpus
                if one.phase is Phase.WAITING and one.gpus <= free:
                    free -= one.gpus
                    self.waiting.discard(one.id)
                    starts.append(Start(job=one.id, gpus=one.gpus))
            elif one.phase is Phase.RUNNING:
                preempts.insert(0, Preempt(job=one.id))
        self.settled = -1 if self._fits(free) else free
        if starts:
            self._started_at = view.now
        return [*preempts, *starts]

    def enter(self, entry, view):
        self.waiting.add(entry)
        return self.fill(view)

    def fill_freed(self, place, view):
        del place
        return self.fill(view)

    def demote_unnoticed(self, place, free):
        if self.waiting.lowest() > (place.key | 1) + 2:  # nobody whom it concerns: no fill comes
            self.settled = -1 if self._fits(free) else free
        return False


def story_of(workload, fill, *, limits, promote, costs, stops):
    base = Tiresias(limits=limits, promote=promote)
    base._fill = fill(queues=len(limits) + 1)
    return story(workload, base, costs=costs, stops=stops)


@pytest.mark.parametrize("promote", [0.0, 1.0])
@given(
    limits=st.sampled_from([(100.0, 300.0), (40.0, 41.0, 90.0, 300.0), (50.0,)]),
    seed=st.integers(0, 2**32 - 1),
    jobs=st.integers(1, 60),
    whole=st.booleans(),
    costs=st.sampled_from([None, COSTLY]),
    stops=st.booleans(),
)
def test_the_queues_are_filled_as_by_walking_every_job(
    promote, limits, seed, jobs, *, whole, costs, stops
):
    random = np.random.default_rng(seed)
    made = []
    for index in range(jobs):
        submit, duration = random.uniform(0, 50 * jobs), random.uniform(1, 400)
        duration = round(duration) if whole else duration
        evals = int(random.integers(0, 6))
        made.append(
            SimJob(
                spec=JobSpec(id=f"j{index}", gpus=int(random.choice([1, 1, 1, 2, 2, 3, 4, 8]))),
                submit_s=float(round(submit) if whole else submit),
                duration_s=float(duration),
                eval_offsets=[duration * (i + 1) / evals for i in range(evals)],
                eval_steps=list(range(1, evals + 1)),
                scores=list(random.random(evals)),
                true_scores=[0.0] * evals,
            )
        )
    workload = Workload.from_jobs(made)
    quick, plain = (
        story_of(workload, fill, limits=limits, promote=promote, costs=costs, stops=stops)
        for fill in (QueueFill, PlainFill)
    )
    assert quick == plain
