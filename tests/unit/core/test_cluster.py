import re
from typing import get_args

import pytest

from evalstop.core.actions import (
    Advise,
    Preempt,
    RequestEval,
    RequestSave,
    Resize,
    Start,
    Stop,
    WakeAt,
)
from evalstop.core.cluster import ClusterState
from evalstop.core.errors import IllegalActionError, IllegalEventError
from evalstop.core.events import (
    CapacityChanged,
    CheckpointSaved,
    EvalReported,
    Event,
    JobEnded,
    JobPreempted,
    JobResized,
    JobStarted,
    JobSubmitted,
    LossReported,
    OperatorCommanded,
    TimerFired,
)
from evalstop.core.job import JobSpec, Outcome, Phase
from evalstop.core.points import EvalPoint


def test_every_kind_of_fact_is_folded():
    assert set(ClusterState.FOLDS) == set(get_args(Event))


@pytest.fixture
def state():
    cluster = ClusterState(8)
    yield cluster
    cluster.check()


def submit(state, name="a", time=0.0, **fields):
    state.apply(JobSubmitted(time=time, job=JobSpec(id=name, **({"gpus": 2} | fields))))
    return state.view.jobs[name]


def run(state, name="a", time=0.0, **fields):
    job = submit(state, name, time, **fields)
    state.promise(Start(job=name, gpus=job.gpus))
    state.apply(JobStarted(time=time, job=name, gpus=job.gpus))
    return job


def test_a_promised_start_takes_its_gpus_at_once(state):
    job = submit(state)
    state.promise(Start(job="a", gpus=2))
    assert (job.phase, job.held_gpus, state.view.free_gpus) == (Phase.STARTING, 2, 6)


def test_gpus_of_a_stopped_job_are_free_only_when_its_end_is_a_fact(state):
    job = run(state)
    state.promise(Stop(job="a"))
    assert (job.phase, state.view.free_gpus) == (Phase.RELEASING, 6)
    state.apply(JobEnded(time=5.0, job="a", outcome=Outcome.STOPPED_BY_POLICY))
    assert (state.view.free_gpus, dict(state.view.jobs)) == (8, {})
    assert state.ended == {"a": Outcome.STOPPED_BY_POLICY}


def test_a_job_may_end_by_itself_between_decision_and_kill(state):
    run(state)
    state.promise(Stop(job="a"))
    state.apply(JobEnded(time=1.0, job="a", outcome=Outcome.COMPLETED))
    assert state.ended["a"] is Outcome.COMPLETED


def test_attained_service_survives_preemption(state):
    job = run(state)
    state.promise(Preempt(job="a"))
    state.apply(JobPreempted(time=4.0, job="a"))
    assert (job.phase, job.service_s, job.gpu_seconds) == (Phase.WAITING, 4.0, 8.0)
    assert (job.attained_s(100.0), job.attained_gpu_s(100.0)) == (4.0, 8.0)
    state.promise(Start(job="a", gpus=2))
    state.apply(JobStarted(time=10.0, job="a", gpus=2))
    assert (job.attained_s(13.0), job.attained_gpu_s(13.0), job.attempt) == (7.0, 14.0, 2)
    assert job.first_started_at == 0.0


def test_remaining_service_is_never_negative_and_infinite_without_an_estimate(state):
    assert run(state, "a", estimated_s=3.0).remaining_s(10.0) == 0.0
    assert run(state, "b").remaining_s(10.0) == float("inf")


def test_a_growing_job_holds_its_new_gpus_from_the_promise_on(state):
    job = run(state, min_gpus=1, max_gpus=8)
    state.promise(Resize(job="a", gpus=6))
    assert state.view.free_gpus == 2
    state.check()
    state.apply(JobResized(time=1.0, job="a", gpus=6, service_s=0.5))
    assert (job.held_gpus, state.view.free_gpus, job.service_s) == (6, 2, 0.5)


def test_a_shrinking_job_frees_gpus_when_the_resize_is_a_fact(state):
    job = run(state, gpus=6, min_gpus=1, max_gpus=8)
    state.promise(Resize(job="a", gpus=2))
    assert state.view.free_gpus == 2
    state.apply(JobResized(time=1.0, job="a", gpus=2))
    assert (job.held_gpus, state.view.free_gpus) == (2, 6)


def test_a_resize_that_never_came_true_gives_back_what_it_was_promised(state):
    run(state, min_gpus=1, max_gpus=8)
    state.promise(Resize(job="a", gpus=6))
    state.apply(JobEnded(time=1.0, job="a"))
    assert state.view.free_gpus == 8


def test_quarantined_gpus_leave_the_capacity(state):
    run(state)
    state.apply(JobEnded(time=1.0, job="a"))
    state.apply(CapacityChanged(time=1.0, gpus=6))
    assert (state.view.total_gpus, state.view.free_gpus) == (6, 6)


def test_interchangeable_gpus_are_one_pool(state):
    pools = state.view.pools
    assert list(pools) == [""]
    run(state)
    state.apply(CapacityChanged(time=1.0, gpus=7))
    assert (pools[""].name, pools[""].total, pools[""].free) == ("", 7, 5)


def test_a_node_type_may_come_later(state):
    run(state)
    state.apply(CapacityChanged(time=1.0, gpus=4, pool="b200"))
    held = {name: (pool.total, pool.free) for name, pool in state.view.pools.items()}
    assert held == {"": (8, 6), "b200": (4, 4)}
    submit(state, "b", time=1.0)
    state.promise(Start(job="b", gpus=2, pool="b200"))
    state.apply(JobEnded(time=2.0, job="a"))
    held = {name: pool.free for name, pool in state.view.pools.items()}
    assert held == {"": 8, "b200": 2}
    assert (state.view.total_gpus, state.view.free_gpus) == (12, 10)
    submit(state, "c", time=2.0, gpus=9)
    with pytest.raises(IllegalActionError, match="8 GPUs are free in pool ''"):
        state.promise(Start(job="c", gpus=9))


def test_node_types_keep_their_own_gpus():
    state = ClusterState({"h100": 8, "a100": 4})
    submit(state)
    state.promise(Start(job="a", gpus=2, pool="a100"))
    state.apply(JobStarted(time=0.0, job="a", gpus=2, pool="a100"))
    assert {pool.name: pool.free for pool in state.view.pools.values()} == {"h100": 8, "a100": 2}
    state.apply(JobEnded(time=1.0, job="a"))
    assert state.view.pools["a100"].free == 4
    state.apply(CapacityChanged(time=2.0, gpus=16, pool="b200"))
    assert state.view.total_gpus == 28
    state.check()


def test_facts_about_a_job_that_has_ended_are_taken_in_silence(state):
    run(state)
    state.apply(JobEnded(time=1.0, job="a"))
    state.apply(EvalReported(time=2.0, job="a", point=EvalPoint(step=1, score=0.5)))
    state.apply(LossReported(time=2.0, job="a", step=1, loss=0.5))
    state.apply(CheckpointSaved(time=2.0, job="a", step=1, checkpoint="c"))


def test_reports_are_counted(state):
    job = run(state)
    state.apply(EvalReported(time=2.0, job="a", point=EvalPoint(step=1, score=0.5)))
    state.apply(LossReported(time=3.0, job="a", step=1, loss=1, throughput=9.0, efficiency=0.5))
    state.apply(CheckpointSaved(time=3.0, job="a", step=1, checkpoint="c"))
    state.apply(TimerFired(time=3.5))
    assert (job.evals_seen, job.last_eval_at, job.losses_seen) == (1, 2.0, 1)
    assert (job.throughput, job.efficiency) == (9.0, 0.5)


def test_a_stopped_job_comes_back_only_after_an_undo(state):
    run(state)
    state.promise(Stop(job="a"))
    state.apply(JobEnded(time=1.0, job="a", outcome=Outcome.STOPPED_BY_POLICY))
    with pytest.raises(IllegalEventError, match="known already"):
        submit(state, time=2.0)
    state.apply(OperatorCommanded(time=3.0, command="undo", actor="ann", job="a"))
    assert submit(state, time=4.0).phase is Phase.WAITING


def test_a_job_started_by_another_scheduler_takes_its_gpus(state):
    job = submit(state)
    state.apply(JobStarted(time=1.0, job="a", gpus=4))
    assert (job.phase, job.held_gpus, state.view.free_gpus) == (Phase.RUNNING, 4, 4)


def test_a_gang_that_came_up_larger_than_ordered_is_counted_as_it_is(state):
    job = submit(state)
    state.promise(Start(job="a", gpus=2))
    state.apply(JobStarted(time=1.0, job="a", gpus=3))
    assert (job.held_gpus, state.view.free_gpus) == (3, 5)


def test_a_job_stopped_while_it_starts_stays_on_its_way_out(state):
    job = submit(state)
    state.promise(Start(job="a", gpus=2))
    state.promise(Stop(job="a"))
    state.apply(JobStarted(time=1.0, job="a", gpus=2))
    assert job.phase is Phase.RELEASING


def test_a_job_preempted_from_outside_while_it_is_stopped_stays_on_its_way_out(state):
    job = run(state)
    state.promise(Stop(job="a"))
    state.apply(JobPreempted(time=1.0, job="a"))
    assert (job.phase, state.view.free_gpus) == (Phase.RELEASING, 8)


ILLEGAL_EVENTS = [
    (JobStarted(time=1.0, job="ghost", gpus=1), "no job 'ghost'"),
    (EvalReported(time=1.0, job="ghost", point=EvalPoint(step=1)), "was ever submitted"),
    (LossReported(time=1.0, job="ghost", step=1, loss=1.0), "was ever submitted"),
    (CheckpointSaved(time=1.0, job="ghost", step=1, checkpoint="c"), "was ever submitted"),
    (JobPreempted(time=1.0, job="waits"), "cannot follow"),
    (JobStarted(time=1.0, job="runs", gpus=2), "cannot follow"),
    (JobEnded(time=1.0, job="ghost"), "no job 'ghost'"),
    (JobSubmitted(time=1.0, job=JobSpec(id="waits")), "known already"),
    (JobSubmitted(time=1.0, job=JobSpec(id="new", gpus=0)), "at least 1 GPU"),
    (TimerFired(time=-1.0), "time went back"),
    (TimerFired(time=float("nan")), "time went back"),
]


@pytest.mark.parametrize(("event", "why"), ILLEGAL_EVENTS)
def test_an_illegal_event_fails_loudly(state, event, why):
    submit(state, "waits")
    run(state, "runs")
    with pytest.raises(IllegalEventError, match=why):
        state.apply(event)


ILLEGAL_ACTIONS = [
    (Start(job="ghost", gpus=2), "only a waiting job"),
    (Start(job="runs", gpus=2), "only a waiting job"),
    (Start(job="waits", gpus=3), "runs on 2 to 2 GPUs"),
    (Start(job="big", gpus=7), "6 GPUs are free"),
    (Start(job="waits", gpus=2, pool="moon"), "0 GPUs are free in pool 'moon'"),
    (Stop(job="ghost"), "only a waiting, starting or running"),
    (Preempt(job="waits"), "only a running job"),
    (Resize(job="waits", gpus=2), "only a running job"),
    (Resize(job="runs", gpus=3), "runs on 2 to 2"),
    (RequestEval(job="ghost"), "no such job"),
    (RequestSave(job="ghost"), "no such job"),
    (Advise(job="ghost", action=Stop(job="ghost")), "no such job"),
]


@pytest.mark.parametrize(("action", "why"), ILLEGAL_ACTIONS)
def test_an_impossible_action_is_refused_with_the_jobs_story(state, action, why):
    submit(state, "waits")
    submit(state, "big", gpus=7)
    run(state, "runs")
    with pytest.raises(IllegalActionError, match=re.escape(why)):
        state.promise(action)


def test_an_elastic_job_cannot_grow_beyond_the_free_gpus(state):
    run(state, "a", gpus=4, min_gpus=1, max_gpus=8)
    run(state, "b", gpus=2)
    with pytest.raises(IllegalActionError, match="2 GPUs are free"):
        state.promise(Resize(job="a", gpus=8))


def test_a_job_cannot_be_stopped_twice(state):
    run(state)
    state.promise(Stop(job="a"))
    with pytest.raises(IllegalActionError, match="the job's story"):
        state.promise(Stop(job="a"))


def test_a_timer_needs_no_job(state):
    state.promise(WakeAt(time=3.0))


def test_a_lost_gpu_is_noticed():
    state = ClusterState(8)
    job = run(state)
    import msgspec

    msgspec.structs.force_setattr(job, "held_gpus", 1)
    with pytest.raises(IllegalEventError, match="not conserved"):
        state.check()
