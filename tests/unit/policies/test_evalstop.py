import pytest

from evalstop.core.actions import (
    Advise,
    Preempt,
    RequestEval,
    RequestSave,
    Start,
    Stop,
    WakeAt,
)
from evalstop.core.cluster import ClusterState
from evalstop.core.events import (
    EvalReported,
    JobEnded,
    JobPreempted,
    JobStarted,
    JobSubmitted,
    LossReported,
    OperatorCommanded,
    TimerFired,
)
from evalstop.core.job import JobSpec
from evalstop.core.kernel import Kernel
from evalstop.core.points import EvalPoint, State
from evalstop.detectors.consecutive import ConsecutiveDecline
from evalstop.policies.baselines import LossPlateau, StopAt
from evalstop.policies.evalstop import EvalStop
from evalstop.policies.guard import Chain
from evalstop.policies.guards import (
    Backed,
    Budget,
    Confirmed,
    Observe,
    OperatorDesk,
    Protect,
    Warn,
)
from evalstop.schedulers.fifo import Fifo
from evalstop.schedulers.shortest import SrtfEst


class Cluster:
    """A kernel driven by hand: starts come true at once, nothing else does."""

    def __init__(self, guard=None, rules=None, base=None):
        rules = rules or ConsecutiveDecline(k=2)
        self.policy = EvalStop(base=base or Fifo(), rules=rules, guard=guard)
        self.kernel = Kernel(ClusterState(8), self.policy)
        self.now = 0.0

    def tell(self, event):
        actions = list(self.kernel.handle(event))
        for action in list(actions):
            if isinstance(action, Start):
                actions += self.tell(JobStarted(time=self.now, job=action.job, gpus=action.gpus))
        self.kernel.state.check()
        return actions

    def submit(self, name="a", **fields):
        spec = JobSpec(id=name, **({"job_type": "rlhf"} | fields))
        return self.tell(JobSubmitted(time=self.now, job=spec))

    def report(self, *scores, name="a", start=1, checkpoint="c", after=10.0):
        actions = []
        for step, score in enumerate(scores, start=start):
            self.now += after
            point = EvalPoint(
                step=step, score=score, checkpoint=checkpoint and f"{checkpoint}{step}"
            )
            actions += self.tell(EvalReported(time=self.now, job=name, point=point))
        return actions

    def fire(self, timer):
        self.now = max(self.now, timer.time)
        return self.tell(TimerFired(time=self.now, token=timer.token))

    def order(self, command, job="a", **fields):
        return self.tell(
            OperatorCommanded(time=self.now, command=command, actor="ann", job=job, **fields)
        )


def stops(actions):
    return [action.job for action in actions if isinstance(action, Stop)]


def test_a_stop_names_rule_verdict_and_the_best_checkpoint():
    cluster = Cluster()
    cluster.submit()
    (stop,) = cluster.report(0.5, 0.9, 0.8, 0.7)
    assert (stop.job, stop.best_step, stop.best_checkpoint) == ("a", 2, "c2")
    assert stop.rule == "ConsecutiveDecline(k=2)"
    assert (stop.verdict.statistic, stop.verdict.threshold) == (2, 2)


def test_the_stop_keeps_the_best_saved_checkpoint_where_the_best_was_never_saved():
    cluster = Cluster()
    cluster.submit()
    cluster.report(0.5)
    cluster.report(0.9, start=2, checkpoint=None)
    (stop,) = cluster.report(0.8, 0.7, start=3)
    assert (stop.best_step, stop.best_checkpoint) == (3, "c3")


def test_rules_apply_by_job_type():
    rules = {"rlhf": ConsecutiveDecline(k=1), "dpo": ConsecutiveDecline(k=3)}
    cluster = Cluster(rules=rules)
    for name, job_type in [("r", "grpo"), ("d", "dpo"), ("l", "lora")]:
        cluster.submit(name, job_type=job_type)
    assert stops(cluster.report(0.9, 0.8, name="r")) == ["r"]
    assert stops(cluster.report(0.9, 0.8, 0.7, name="d")) == []
    assert stops(cluster.report(0.6, name="d", start=4)) == ["d"]
    assert stops(cluster.report(0.9, 0.8, 0.7, 0.6, 0.5, name="l")) == []


def test_guardrail_metrics_are_not_the_primary_metric():
    cluster = Cluster()
    cluster.submit()
    cluster.report(0.9)
    for step, score in [(1, 0.9), (2, 0.5), (3, 0.4)]:
        event = EvalReported(
            time=cluster.now, job="a", metric="safety", point=EvalPoint(step=step, score=score)
        )
        assert not stops(cluster.tell(event))


def test_a_report_after_the_end_of_its_job_is_nobodys():
    cluster = Cluster()
    cluster.submit()
    cluster.report(0.9, 0.8)
    cluster.tell(JobEnded(time=cluster.now, job="a"))
    assert cluster.report(0.7, 0.6, start=3) == []
    assert not cluster.policy.watches


def test_an_alarm_during_a_preemption_is_carried_out_when_it_is_over():
    cluster = Cluster(base=SrtfEst())
    cluster.submit("a", gpus=8, estimated_s=1000.0)
    cluster.report(0.9, 0.8)
    (preempt,) = [a for a in cluster.submit("b", gpus=8, estimated_s=1.0) if isinstance(a, Preempt)]
    assert preempt.job == "a"
    assert stops(cluster.report(0.7, start=3)) == []
    assert stops(cluster.tell(JobPreempted(time=cluster.now, job="a"))) == ["a"]


def test_a_rule_that_raises_leaves_its_job_running_and_visibly_unwatched():
    class Broken:
        def start(self):
            return None

        def step(self, _state, _point):
            raise ZeroDivisionError

    cluster = Cluster(rules={"rlhf": Broken(), "dpo": ConsecutiveDecline(k=1)})
    cluster.submit("a")
    cluster.submit("b", job_type="dpo")
    assert cluster.report(0.9, 0.1) == []
    watch = cluster.policy.watches["a"]
    assert watch.unwatched.startswith("ZeroDivisionError")
    assert watch.verdict.state is State.BLIND
    assert stops(cluster.report(0.9, 0.1, name="b")) == ["b"]


def test_stop_at_stops_at_its_share_of_the_estimate_and_never_without_one():
    cluster = Cluster(rules=StopAt(fraction=0.5))
    cluster.submit("a", estimated_s=100.0)
    cluster.submit("b")
    assert stops(cluster.report(0.1, 0.2, 0.3, 0.4)) == []
    assert stops(cluster.report(0.5, start=5)) == ["a"]
    assert stops(cluster.report(*[0.1] * 20, name="b")) == []


def test_loss_plateau_reads_losses_alone():
    cluster = Cluster(rules=LossPlateau(patience=2, min_delta=0.1))
    cluster.submit()
    cluster.report(0.9, 0.1)
    answers = [
        stops(cluster.tell(LossReported(time=cluster.now, job="a", step=step, loss=loss)))
        for step, loss in enumerate([1.0, 0.8, float("nan"), 0.79, 0.78])
    ]
    assert answers == [[], [], [], [], ["a"]]


FALLING = (0.5, 0.9, 0.8, 0.7)


def test_observe_says_once_what_it_would_have_stopped_and_stops_nothing():
    cluster = Cluster(Observe())
    cluster.submit()
    (advice,) = cluster.report(*FALLING, 0.6, 0.5)
    assert isinstance(advice, Advise)
    assert advice.action.best_checkpoint == "c2"
    cluster.report(0.95, start=7)
    assert len(cluster.report(0.6, 0.5, start=8)) == 1  # a new alarm is told again


def test_a_warned_job_is_stopped_when_its_window_closes():
    cluster = Cluster(Warn(window_s=60.0))
    cluster.submit()
    advice, timer = cluster.report(*FALLING)
    assert isinstance(advice, Advise)
    assert timer == WakeAt(time=cluster.now + 60.0, token="warn:a")
    assert cluster.report(0.6, start=5) == []
    (stop,) = cluster.fire(timer)
    assert (stop.job, stop.verdict.statistic) == ("a", 3)


def test_a_recovery_within_the_window_withdraws_the_stop():
    cluster = Cluster(Warn(window_s=60.0))
    cluster.submit()
    _, timer = cluster.report(*FALLING)
    cluster.report(0.95, start=5)
    assert cluster.fire(timer) == []


@pytest.mark.parametrize("command", ["approve", "stop"])
def test_an_operator_need_not_wait_for_the_window(command):
    cluster = Cluster(Chain([OperatorDesk(), Warn(window_s=60.0)]))
    cluster.submit()
    _, timer = cluster.report(*FALLING)
    (stop,) = cluster.order(command)
    assert (stop.author, stop.best_checkpoint) == ("ann", "c2")
    cluster.tell(JobEnded(time=cluster.now, job="a"))
    assert cluster.fire(timer) == []


def test_an_operator_can_stop_a_job_without_an_alarm_but_not_approve_one():
    cluster = Cluster(OperatorDesk())
    cluster.submit()
    assert cluster.order("approve") == []
    assert stops(cluster.order("stop")) == ["a"]
    assert cluster.order("stop", job="ghost") == []


def test_a_snooze_holds_stops_until_its_time():
    cluster = Cluster(OperatorDesk())
    cluster.submit()
    cluster.order("snooze", until=50.0)
    assert stops(cluster.report(*FALLING)) == []
    assert stops(cluster.report(0.6, start=5)) == ["a"]


def test_nothing_is_stopped_while_frozen():
    cluster = Cluster(OperatorDesk())
    cluster.submit()
    cluster.order("freeze", job="")
    assert stops(cluster.report(*FALLING)) == []
    cluster.order("unfreeze", job="")
    assert stops(cluster.report(0.6, start=5)) == ["a"]


def test_a_budget_is_a_tenants_and_refills_with_time():
    cluster = Cluster(Budget(stops=1, per_s=100.0))
    for name, tenant in [("a", "x"), ("b", "x"), ("c", "y")]:
        cluster.submit(name, tenant=tenant)
    assert stops(cluster.report(*FALLING, name="a")) == ["a"]
    assert stops(cluster.report(*FALLING, name="b")) == []
    assert stops(cluster.report(*FALLING, name="c")) == ["c"]
    cluster.now += 100.0
    assert stops(cluster.report(0.6, name="b", start=5)) == ["b"]


def test_a_stop_over_the_budget_is_told_once():
    cluster = Cluster(Budget(stops=0))
    cluster.submit()
    (advice,) = cluster.report(*FALLING)
    assert isinstance(advice, Advise)
    assert "budget: 0 stops a tenant" in advice.note
    assert cluster.report(0.6, start=5) == []


def test_a_log_of_observe_mode_spends_no_budget_of_enforce_mode():
    """Each alarm of a watched job was a stop to the budget: ten, and nothing was stopped."""
    budget = Budget(stops=2, per_s=1e9)
    cluster = Cluster(Chain([budget, Observe()]))
    for name in ("a", "b", "c"):
        cluster.submit(name)
        cluster.report(*FALLING, 0.6, 0.5, 0.4, 0.3, name=name)
        cluster.tell(JobEnded(time=cluster.now, job=name))
    cluster.policy.guard = budget  # the settings say enforce now
    cluster.submit("d")
    assert stops(cluster.report(*FALLING, name="d")) == ["d"]


PROTECTED = [
    ({"labels": {"evalstop": "off"}}, {}),
    ({"tenant": "vip"}, {"tenants": ["vip"]}),
    ({}, {"until": {"a": 1000.0}}),
    ({"tenant": "x"}, {"until": {"x": 1000.0}}),
]


@pytest.mark.parametrize(("job", "settings"), PROTECTED)
def test_protected_jobs_are_stopped_by_people_only(job, settings):
    cluster = Cluster(Chain([OperatorDesk(), Protect(**settings)]))
    cluster.submit(**job)
    assert stops(cluster.report(*FALLING)) == []
    assert stops(cluster.order("stop")) == ["a"]


def test_an_exemption_ends_at_its_time():
    cluster = Cluster(Protect(until={"a": 45.0}))
    cluster.submit()
    assert stops(cluster.report(*FALLING)) == []
    assert stops(cluster.report(0.6, start=5)) == ["a"]


def test_an_unbacked_stop_asks_for_a_save_and_waits_for_it():
    cluster = Cluster(Backed(limit_s=60.0))
    cluster.submit()
    save, timer = cluster.report(*FALLING, checkpoint=None)
    assert save == RequestSave(job="a")
    assert cluster.report(0.6, start=5, checkpoint=None) == []
    assert stops(cluster.report(0.5, start=6)) == ["a"]
    assert cluster.fire(timer) == []


def test_an_unbacked_stop_is_not_put_off_for_ever():
    cluster = Cluster(Backed(limit_s=60.0))
    cluster.submit()
    _, timer = cluster.report(*FALLING, checkpoint=None)
    assert stops(cluster.fire(timer)) == ["a"]


def test_a_stop_waits_for_a_confirming_evaluation():
    cluster = Cluster(Confirmed(limit_s=60.0))
    cluster.submit()
    request, _ = cluster.report(*FALLING)
    assert request == RequestEval(job="a", steps=(2, 4))
    assert stops(cluster.report(0.6, start=5)) == []  # one of the two that were asked for
    assert stops(cluster.report(0.5, start=6)) == ["a"]


def test_a_confirming_evaluation_can_clear_a_job():
    cluster = Cluster(Confirmed(limit_s=60.0))
    cluster.submit()
    _, timer = cluster.report(*FALLING)
    point = EvalPoint(step=4, score=1.1, eval_id="confirm", checkpoint="c4")
    assert cluster.tell(EvalReported(time=cluster.now, job="a", point=point)) == []
    assert cluster.fire(timer) == []


def test_without_a_confirming_evaluation_the_alarm_counts_at_the_limit():
    cluster = Cluster(Confirmed(limit_s=60.0))
    cluster.submit()
    _, timer = cluster.report(*FALLING)
    assert stops(cluster.fire(timer)) == ["a"]


def test_guards_in_a_chain_screen_what_the_ones_before_let_go():
    cluster = Cluster(Chain([Warn(window_s=60.0), Budget(stops=0)]))
    cluster.submit()
    _, timer = cluster.report(*FALLING)
    assert stops(cluster.fire(timer)) == []


def test_a_held_stop_does_not_keep_the_base_from_placing_the_job_again():
    cluster = Cluster(Observe(), base=SrtfEst())
    cluster.submit("a", gpus=8, estimated_s=1000.0)
    cluster.report(0.9, 0.8)
    cluster.submit("b", gpus=8, estimated_s=1.0)
    cluster.report(0.7, start=3)
    cluster.tell(JobPreempted(time=cluster.now, job="a"))
    cluster.tell(JobEnded(time=cluster.now, job="b"))
    assert cluster.kernel.state.view.jobs["a"].held_gpus == 8


@pytest.mark.parametrize(
    "make",
    [
        lambda: Warn(window_s=-1),
        lambda: Budget(stops=-1),
        lambda: Budget(stops=1, per_s=0),
        lambda: Backed(limit_s=float("nan")),
    ],
)
def test_impossible_settings_are_refused(make):
    with pytest.raises(ValueError, match="must be"):
        make()
