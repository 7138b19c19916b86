"""A simulation that tells quiet evaluations in bulk is the one that tells each in its turn.

Every policy here is run twice: once as it is, and once where it foresees nothing, so that each
evaluation of each job is an event of its own in the order of all. What must be the same: the
record of the run; every event but evaluations without an answer, in the same order; what each was
answered; and all that may be seen of the event's job at that moment.
"""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evalstop.config.rules import RULES, parse_rule
from evalstop.config.schedulers import SCHEDULERS, parse_scheduler
from evalstop.core.actions import Preempt, RequestEval, Stop, WakeAt
from evalstop.core.codec import encode
from evalstop.core.events import EvalReported, JobEnded, JobSubmitted, TimerFired
from evalstop.core.job import JobSpec, Phase
from evalstop.detectors.consecutive import ConsecutiveDecline
from evalstop.detectors.patience import Patience
from evalstop.detectors.scan import Scan
from evalstop.metrics.summary import summarise
from evalstop.policies.deprioritise import Deprioritise
from evalstop.policies.evalstop import EvalStop
from evalstop.policies.guard import Chain
from evalstop.policies.guards import Budget, Confirmed, Observe, OperatorDesk, Protect, Warn
from evalstop.schedulers.fifo import Fifo
from evalstop.sim.costs import ExecutionCosts
from evalstop.sim.simulator import Simulator
from evalstop.workloads.job import SimJob, Workload

GPUS = 8
TYPES = {"slow": 0.5, "fast": 2.0}

BASES = sorted(set(SCHEDULERS) - {"native"})

RULE_SPECS = [
    *sorted(set(RULES) - {"none"}),
    "paper",
    "none",
    "consecutive:k=1",
    "consecutive:k=3",
    "scan:alpha=0.2",
]

GUARDS = {
    "none": lambda: None,
    "observe": Observe,
    "chain": lambda: Chain([OperatorDesk(), Protect(tenants=["t1"]), Budget(stops=1, per_s=50.0)]),
    "warn": lambda: Warn(window_s=4.0),
    "confirmed": lambda: Confirmed(limit_s=5.0),
}

COSTS = [
    ExecutionCosts(),
    ExecutionCosts(start_s=3, restart_s=5, preempt_s=2, stop_s=4, release_s=6),
    ExecutionCosts(start_s=1, preempt_s=1, extra_eval_s=2),
]


class Meddler(Fifo):
    """FIFO that also preempts, stops and asks for evaluations, and wakes up to do so again."""

    def __init__(self, seed):
        super().__init__()
        self.random = np.random.default_rng(seed)

    def decide(self, event, view):
        actions = list(super().decide(event, view))
        if isinstance(event, EvalReported):
            return actions
        if isinstance(event, JobSubmitted):
            actions.append(WakeAt(time=event.time + float(self.random.integers(0, 9)), token="x"))
        if not isinstance(event, (JobSubmitted, JobEnded, TimerFired)):
            return actions
        running = [job.id for job in view.jobs.values() if job.phase is Phase.RUNNING]
        for name in running:
            match int(self.random.integers(0, 12)):
                case 0:
                    actions.append(Preempt(job=name))
                case 1:
                    actions.append(Stop(job=name, best_step=1))
                case 2 | 3:
                    actions.append(RequestEval(job=name))
                case 4:
                    actions.append(RequestEval(job=name, steps=(1, 2)))
        return actions


class Recorder:
    """Pass everything on and note down what the promise says must be the same."""

    def __init__(self, policy, notes):
        self.policy, self.notes = policy, notes

    def decide(self, event, view):
        actions = list(self.policy.decide(event, view))
        if actions or not isinstance(event, EvalReported) or event.point.eval_id is not None:
            name = getattr(event, "job", "")
            job = view.jobs.get(name if isinstance(name, str) else name.id)
            self.notes.append((encode(event), [encode(action) for action in actions], repr(job)))
        return actions


class FarSighted(Recorder):
    """The same for a policy that foresees."""

    def __init__(self, policy, notes):
        super().__init__(policy, notes)
        self.in_bulk = 0

    def foresee(self, job, ahead, start, view):
        return self.policy.foresee(job, ahead, start, view)

    def take_in(self, job, ahead, start, stop):
        self.in_bulk += stop - start
        self.policy.take_in(job, ahead, start, stop)


def workload_of(seed, jobs, *, whole, losses=False, late=False):
    """Return jobs of up to 14 evaluations; ``whole``: at whole seconds, so that many coincide."""
    random = np.random.default_rng(seed)
    grid = np.round if whole else np.asarray
    made = []
    for index in range(jobs):
        evals = int(random.integers(0, 15))
        duration = float(grid(random.uniform(1, 30)))
        share = np.sort(random.random(evals)) if index % 5 else np.arange(1, evals + 1) / 15
        offsets = np.clip(grid(share * duration), 0.0, duration)
        peak = random.uniform(0.2, 1.0) if random.random() < 0.6 else 1.0
        scores = np.minimum(share, 2 * peak - share) + random.normal(0, 0.05, evals)
        scores = np.round(scores, 1 if random.random() < 0.3 else 6)
        scores[random.random(evals) < (0.1 if index % 4 == 1 else 0.0)] = np.nan
        steps = np.arange(1, evals + 1)
        if index % 6 == 2:
            steps = np.maximum(1, steps + random.integers(-2, 3, evals))  # repeats, out of order
        gpus = int(random.integers(1, GPUS // 2 + 1))
        made.append(
            SimJob(
                spec=JobSpec(
                    id=f"j{index}",
                    tenant=f"t{index % 3}",
                    job_type=["rlhf", "dpo", "lora"][index % 3],
                    gpus=gpus,
                    min_gpus=1 if index % 3 == 1 else None,
                    max_gpus=GPUS // 2 if index % 3 == 1 else None,
                    estimated_s=None if index % 7 == 0 else duration * random.uniform(0.5, 2),
                ),
                submit_s=float(grid(random.uniform(0, 60))),
                duration_s=duration,
                eval_offsets=offsets.tolist(),
                eval_steps=steps.tolist(),
                scores=scores.tolist(),
                true_scores=scores.tolist(),
                stderrs=None if index % 5 == 3 else [0.05] * evals,
                proxies=None if index % 2 else (share + random.normal(0, 0.1, evals)).tolist(),
                losses=(1.0 - 0.5 * share).tolist() if losses else None,
                deliveries=[
                    random.integers(0, 9, random.integers(0, 3)).astype(float).tolist()
                    for _ in range(evals)
                ]
                if late and index % 2
                else None,
                replicates=(scores[:, None] + random.normal(0, 0.05, (evals, 2))).tolist(),
                hacking=peak < 1.0,
                peak_s=peak * duration,
                fails_at_s=duration / 2 if index % 11 == 5 else None,
                noise_scale=2.0 if index % 3 == 1 else None,
                sync_share=0.02 if index % 3 == 1 else 0.0,
            )
        )
    return Workload.from_jobs(made)


def ran(workload, policy, wrap, *, costs=None, typed=False):
    """Return what must be the same, and how many evaluations were told in bulk."""
    notes = []
    recorder = wrap(policy, notes)
    simulator = Simulator(
        workload,
        gpus=dict.fromkeys(TYPES, GPUS // 2) if typed else GPUS,
        speeds=TYPES if typed else None,
        policy=recorder,
        costs=costs,
    )
    log = simulator.run()
    simulator.kernel.state.check()
    columns = log.columns(workload)
    record = {name: getattr(log, name) for name in vars(log)} | {"events": log.events}
    figures = repr(summarise([columns], gpus=GPUS)) if len(workload) else ""
    return (notes, repr(record), figures), getattr(recorder, "in_bulk", 0)


def assert_the_same(workload, make, *, costs=None, typed=False):
    told, in_bulk = ran(workload, make(), FarSighted, costs=costs, typed=typed)
    alone, _ = ran(workload, make(), Recorder, costs=costs, typed=typed)
    for one, other in zip(told[0], alone[0], strict=False):
        assert one == other
    assert told == alone
    return in_bulk


settings = {
    "seed": st.integers(0, 100_000),
    "jobs": st.integers(1, 25),
    "whole": st.booleans(),
    "costs": st.sampled_from(COSTS),
}


@given(
    setting=st.fixed_dictionaries(settings),
    base=st.sampled_from(BASES),
    rule=st.sampled_from(RULE_SPECS),
    typed=st.booleans(),
)
def test_every_scheduler_and_rule(setting, base, rule, typed):
    workload = workload_of(setting["seed"], setting["jobs"], whole=setting["whole"])

    def make():
        speeds = TYPES if typed else None
        return EvalStop(base=parse_scheduler(base, speeds=speeds), rules=parse_rule(rule))

    assert_the_same(workload, make, costs=setting["costs"], typed=typed)


@given(setting=st.fixed_dictionaries(settings), rule=st.sampled_from(RULE_SPECS))
@example(setting={"seed": 4, "jobs": 25, "whole": True, "costs": COSTS[0]}, rule="paper")
def test_jobs_that_are_preempted_stopped_and_evaluated_again_at_any_moment(setting, rule):
    workload = workload_of(setting["seed"], setting["jobs"], whole=setting["whole"])

    def make():
        base = Meddler(setting["seed"])
        return EvalStop(base=base, rules=parse_rule(rule))

    assert_the_same(workload, make, costs=setting["costs"])


@given(
    setting=st.fixed_dictionaries(settings), base=st.sampled_from(["fifo", "srtf-est", "pollux"])
)
def test_nested_rules(setting, base):
    workload = workload_of(setting["seed"], setting["jobs"], whole=setting["whole"])

    def make():
        inner = EvalStop(base=parse_scheduler(base), rules=Scan(alpha=0.2))
        middle = EvalStop(base=inner, rules={"rlhf": ConsecutiveDecline(k=3)})
        return EvalStop(base=middle, rules={"dpo": Patience(k=3), "rlhf": ConsecutiveDecline(k=2)})

    assert_the_same(workload, make, costs=setting["costs"])


@given(
    setting=st.fixed_dictionaries(settings),
    base=st.sampled_from(["fifo", "srtf-est", "loss-aware"]),
    rule=st.sampled_from(["paper", "loss-plateau:patience=2", "stop-at:fraction=0.6"]),
    guard=st.sampled_from(sorted(GUARDS)),
    losses=st.booleans(),
    late=st.booleans(),
)
def test_guards_judges_losses_and_reports_that_are_late_lost_or_repeated(  # noqa: PLR0917 -- hypothesis draws them
    setting, base, rule, guard, losses, late
):
    workload = workload_of(
        setting["seed"], setting["jobs"], whole=setting["whole"], losses=losses, late=late
    )

    def make():
        return EvalStop(base=parse_scheduler(base), rules=parse_rule(rule), guard=GUARDS[guard]())

    in_bulk = assert_the_same(workload, make, costs=setting["costs"])
    told_apart = workload.losses is not None or workload.delivery_bounds is not None
    if guard != "none" or told_apart or rule != "paper":
        assert in_bulk == 0


@given(setting=st.fixed_dictionaries(settings))
def test_a_policy_that_promises_nothing_is_told_each(setting):
    workload = workload_of(setting["seed"], setting["jobs"], whole=setting["whole"])

    class Cautious(EvalStop):
        """A subclass that decides otherwise inherits no promise."""

        def decide(self, event, view):
            return super().decide(event, view)

    for make in (
        lambda: Cautious(base=Fifo(), rules=ConsecutiveDecline(k=2)),
        lambda: EvalStop(
            base=Deprioritise(base=Fifo(), rules=ConsecutiveDecline(k=2)), rules=Patience(k=4)
        ),
    ):
        assert assert_the_same(workload, make) == 0


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("rule", ["paper", "scan"])
def test_most_evaluations_are_told_in_bulk(rule, whole):
    workload = workload_of(3, 200, whole=whole)
    in_bulk = assert_the_same(
        workload, lambda: EvalStop(base=parse_scheduler("srtf-est"), rules=parse_rule(rule))
    )
    assert in_bulk > 0.5 * workload.evals


def test_the_workloads_hold_what_is_claimed():
    workload = workload_of(1, 200, whole=True)
    times = np.concatenate([job.submit_s + np.asarray(job.eval_offsets) for job in workload])
    assert len(np.unique(times)) < 0.2 * len(times)
    assert any(math.isnan(score) for job in workload for score in job.scores)
    assert any(sorted(set(job.eval_steps)) != job.eval_steps for job in workload)
    assert any(job.fails_at_s for job in workload)
