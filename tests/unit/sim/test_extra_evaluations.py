"""Evaluations that a policy asks for: fresh scores of checkpoints that exist, late, and counted."""

import math

import pytest

from evalstop.config.rules import parse_rule
from evalstop.core.actions import RequestEval
from evalstop.core.events import EvalReported, JobStarted, JobSubmitted
from evalstop.core.job import JobSpec, Outcome
from evalstop.metrics.columns import OUTCOME_CODES
from evalstop.policies.evalstop import EvalStop
from evalstop.policies.guards import Confirmed
from evalstop.schedulers.fifo import Fifo
from evalstop.sim.costs import ExecutionCosts
from evalstop.sim.simulator import Simulator
from evalstop.workloads.job import SimJob, Workload

NAN = math.nan


class Curious:
    """FIFO that asks for these steps when the evaluation of step ``at`` arrives."""

    def __init__(self, at, steps):
        self.base, self.at, self.steps = Fifo(), at, steps

    def decide(self, event, view):
        actions = list(self.base.decide(event, view))
        if (
            isinstance(event, EvalReported)
            and event.point.step == self.at
            and event.point.eval_id is None
        ):
            actions.append(RequestEval(job=event.job, steps=self.steps))
        return actions


def job(scores, **changes):
    count = len(scores)
    truth = {
        "spec": JobSpec(id="a", job_type="rlhf"),
        "submit_s": 0.0,
        "duration_s": 10.0 * count,
        "eval_offsets": [10.0 * (i + 1) for i in range(count)],
        "eval_steps": [100 * (i + 1) for i in range(count)],
        "scores": scores,
        "true_scores": scores,
        "stderrs": [0.01] * count,
        "replicates": [[score + 0.5, NAN] for score in scores],
    }
    return SimJob(**(truth | changes))


def heard(policy, one, **options):
    events = []
    simulator = Simulator(
        Workload.from_jobs([one]),
        gpus=1,
        policy=policy,
        observer=lambda event, _: events.append(event),
        **options,
    )
    log = simulator.run()
    return log, [event for event in events if isinstance(event, EvalReported)], events


@pytest.mark.parametrize(
    ("steps", "expected"),
    [((100,), [(100, 0.6)]), ((), [(200, 0.7)]), ((100, 200), [(100, 0.6), (200, 0.7)])],
)
def test_the_checkpoints_asked_for_are_evaluated_again_after_a_while(steps, expected):
    costs = ExecutionCosts(extra_eval_s=4.0)
    log, reports, _ = heard(Curious(200, steps), job([0.1, 0.2, 0.3]), costs=costs)
    extra = [report for report in reports if report.point.eval_id is not None]
    assert [(r.point.step, pytest.approx(r.point.score)) for r in extra] == expected
    assert {(r.time, r.point.stderr, r.point.eval_id) for r in extra} == {(24.0, 0.01, "extra-1")}
    assert log.extra_evals == len(expected)
    assert log.evals == 3


def test_no_more_come_than_there_are_and_none_of_checkpoints_not_yet_made():
    for steps in ((300,), (150,)):
        assert heard(Curious(200, steps), job([0.1, 0.2, 0.3]))[0].extra_evals == 0
    twice = Curious(200, (100, 100))
    assert heard(twice, job([0.1, 0.2, 0.3]))[0].extra_evals == 1  # the second is NaN


def test_a_job_that_cannot_be_evaluated_again_is_not():
    log, reports, _ = heard(Curious(200, (100,)), job([0.1, 0.2, 0.3], replicates=None))
    assert log.extra_evals == 0
    assert len(reports) == 3


def test_a_report_that_comes_after_the_end_is_heard_by_nobody():
    costs = ExecutionCosts(extra_eval_s=1000.0)
    log, reports, events = heard(Curious(200, (100,)), job([0.1, 0.2, 0.3]), costs=costs)
    assert log.extra_evals == 1
    assert all(report.point.eval_id is None for report in reports)
    assert isinstance(events[0], JobSubmitted)
    assert isinstance(events[1], JobStarted)


@pytest.mark.parametrize(("again", "outcome"), [(0.5, "COMPLETED"), (0.9, "STOPPED_BY_POLICY")])
def test_a_confirming_evaluation_of_the_best_withdraws_a_stop_or_lets_it_pass(again, outcome):
    """The best score was luck: evaluated again it is 0.5, pooled 0.7, and nothing has declined."""
    scores = [0.6, 0.9, 0.75, 0.74, 0.78, 0.78]
    replicates = [[again if score == 0.9 else score] for score in scores]
    one = job(scores, replicates=replicates, stderrs=[0.05] * 6)
    policy = EvalStop(
        base=Fifo(), rules=parse_rule("drop:g=2,k=2"), guard=Confirmed(limit_s=1000.0)
    )
    log, reports, _ = heard(policy, one, costs=ExecutionCosts(extra_eval_s=5.0))
    assert [r.point.step for r in reports if r.point.eval_id] == [200, 400]
    assert log.outcome[0] == OUTCOME_CODES[Outcome[outcome]]
    assert log.stop_eval[0] == (-1 if outcome == "COMPLETED" else 3)
