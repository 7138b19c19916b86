"""What EvalStop and its guards are made of is checked at once; a rule may fail at any time."""

import math

import pytest

from evalstop.config.rules import parse_rule
from evalstop.core.errors import InputError, SpecError
from evalstop.core.job import JobSpec
from evalstop.core.points import State, Verdict
from evalstop.detectors.consecutive import ConsecutiveDecline
from evalstop.policies.evalstop import EvalStop
from evalstop.policies.guard import Chain
from evalstop.policies.guards import Backed, Budget, Confirmed, Observe, Protect, Warn
from evalstop.policies.modes import ByMode, Mode
from evalstop.policies.rules import Rules
from evalstop.schedulers.fifo import Fifo
from evalstop.sim.simulator import Simulator
from evalstop.workloads.job import SimJob, Workload

FALLING = [0.5, 0.9, 0.8, 0.7, 0.6, 0.5]


def run(policy, job_type="rlhf"):
    """Run one job that declines; return when it ended of its ten seconds, and its watch."""
    seen = []
    job = SimJob(
        spec=JobSpec(id="j", job_type=job_type),
        submit_s=0.0,
        duration_s=10.0,
        eval_offsets=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        eval_steps=[1, 2, 3, 4, 5, 6],
        scores=FALLING,
        true_scores=FALLING,
    )
    log = Simulator(
        Workload.from_jobs([job]),
        gpus=1,
        policy=policy,
        observer=lambda _event, _actions: seen.append(policy.watches.get("j")),
    ).run()
    return log.end_s[0], next(watch for watch in reversed(seen) if watch is not None)


@pytest.mark.parametrize("key", ["rlhf", "RLHF", " Rlhf ", "grpo", "PPO", "*"])
@pytest.mark.parametrize("job_type", ["rlhf", "grpo", "RLOO"])
def test_a_map_of_rules_names_job_types_in_any_way_that_jobs_do(key, job_type):
    policy = EvalStop(base=Fifo(), rules={key: ConsecutiveDecline(k=2)})
    assert run(policy, job_type)[0] == 4.0


def test_a_job_type_has_one_rule():
    with pytest.raises(SpecError, match="'rlhf' twice"):
        Rules.of({"rlhf": ConsecutiveDecline(k=2), "grpo": ConsecutiveDecline(k=3)})


def test_job_types_are_names():
    with pytest.raises(SpecError, match="expected job types by name"):
        Rules.of({3: ConsecutiveDecline(k=2)})


@pytest.mark.parametrize(
    "rules", ["paper", None, 3, ConsecutiveDecline, {"rlhf": "paper"}], ids=repr
)
def test_what_is_no_rule_is_refused(rules):
    with pytest.raises(SpecError, match="expected a rule, such as parse_rule"):
        EvalStop(base=Fifo(), rules=rules)


@pytest.mark.parametrize("base", [None, "fifo", Fifo], ids=repr)
def test_what_is_no_policy_is_refused(base):
    with pytest.raises(SpecError, match="base must be a scheduler"):
        EvalStop(base=base, rules=parse_rule("paper"))


@pytest.mark.parametrize("guard", ["observe", [Observe()], Observe], ids=["name", "list", "class"])
def test_what_is_no_guard_is_refused(guard):
    with pytest.raises(SpecError, match="guard must be one guard"):
        EvalStop(base=Fifo(), rules=parse_rule("paper"), guard=guard)
    with pytest.raises(InputError, match="list of guards"):
        Chain([Observe(), guard])


class Failing:
    """Rule that fails in one of its methods."""

    def __init__(self, method):
        self.method = method

    def _fail_in(self, method):
        if method == self.method:
            raise RuntimeError(method)

    def start(self):
        self._fail_in("start")

    def step(self, state, point):
        del point
        self._fail_in("step")
        return state, Verdict()


class FailingJudge(Failing):
    """Likewise one that reads more than the curve."""

    start = step = None

    def begin(self):
        self._fail_in("begin")

    def judge(self, state, event, job, now):
        del event, job, now
        self._fail_in("judge")
        return state, Verdict()


@pytest.mark.parametrize(
    "rule", [Failing("start"), Failing("step"), FailingJudge("begin"), FailingJudge("judge")]
)
def test_a_rule_that_fails_leaves_its_job_running_and_says_so(rule):
    ended, watch = run(EvalStop(base=Fifo(), rules=rule))
    assert ended == 10.0
    assert watch.verdict.state is State.BLIND
    assert rule.method in watch.verdict.note
    assert rule.method in watch.unwatched


WRONG = [math.nan, math.inf, -1, "60", None]


@pytest.mark.parametrize("value", WRONG, ids=repr)
@pytest.mark.parametrize(
    "make",
    [
        lambda x: Warn(window_s=x),
        lambda x: Backed(limit_s=x),
        lambda x: Confirmed(limit_s=x),
        lambda x: Budget(stops=x),
        lambda x: Budget(stops=1, per_s=x),
    ],
)
def test_guards_count_in_finite_numbers(make, value):
    with pytest.raises(InputError, match=r"must be (>=?) 0"):
        make(value)


def test_a_budget_counts_whole_stops():
    with pytest.raises(InputError, match=r"whole number of stops, but got 1\.5"):
        Budget(stops=1.5)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tenants": "acme"}, "tenants must be a list of names"),
        ({"labels": "off"}, "labels must be a table"),
        ({"until": ["job-7"]}, "until must be a table"),
        ({"until": {"job-7": "tomorrow"}}, r"until\['job-7'\] must be a time in seconds"),
        ({"until": {"job-7": math.nan}}, r"until\['job-7'\] must be a time in seconds"),
    ],
)
def test_protection_is_of_named_jobs_and_tenants(fields, words):
    with pytest.raises(InputError, match=words):
        Protect(**fields)


def test_an_exemption_may_have_no_end():
    assert Protect(until={"job-7": math.inf})


@pytest.mark.parametrize("word", ["off", "Enforce", "", None, 1], ids=repr)
def test_there_are_three_modes(word):
    with pytest.raises(InputError, match="one of observe, advise, enforce"):
        ByMode(word)


@pytest.mark.parametrize(("word", "end"), [("observe", 10.0), ("advise", 10.0), ("enforce", 4.0)])
def test_a_mode_may_be_given_by_its_name(word, end):
    for mode in (word, Mode(word)):
        policy = EvalStop(base=Fifo(), rules=ConsecutiveDecline(k=2), guard=ByMode(mode))
        assert run(policy)[0] == end
