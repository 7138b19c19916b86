"""A job that is stopped before it came up may be gone when it would have."""

from evalstop.core.actions import Start, Stop, WakeAt
from evalstop.core.events import JobSubmitted, TimerFired
from evalstop.core.job import JobSpec, Outcome
from evalstop.metrics.columns import OUTCOME_CODES
from evalstop.sim.costs import ExecutionCosts
from evalstop.sim.simulator import Simulator
from evalstop.workloads.job import SimJob, Workload


class StopSoon:
    def decide(self, event, view):
        del view
        if isinstance(event, JobSubmitted) and event.job.id == "j":
            return [Start(job="j", gpus=1), WakeAt(time=1.0)]
        return [Stop(job="j")] if isinstance(event, TimerFired) else []


def test_a_start_that_comes_after_the_end_is_no_event():
    # The second job keeps the simulation going beyond the instant of the late start.
    jobs = [
        SimJob(spec=JobSpec(id="j"), submit_s=0.0, duration_s=9.0),
        SimJob(spec=JobSpec(id="k"), submit_s=40.0, duration_s=9.0),
    ]
    workload = Workload.from_jobs(jobs)
    costs = ExecutionCosts(start_s=30.0, stop_s=4.0, release_s=6.0)
    log = Simulator(workload, gpus=1, policy=StopSoon(), costs=costs).run()
    assert log.end_s[0] == 11.0
    assert log.outcome[0] == OUTCOME_CODES[Outcome.STOPPED_BY_POLICY]
    assert log.starts == 0
