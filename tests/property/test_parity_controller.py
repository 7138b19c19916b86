"""The controller and replay decide as the simulation did: one kernel, three drivers.

The script: a simulation's own facts, told to a live controller one by one on a clock that says
their times. It fires its timers itself, writes its log to a store, and may be restarted anywhere.
"""

import csv
import math
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parity_jobs import curve_of, job_of

from evalstop.config.rules import parse_rule
from evalstop.config.schedulers import parse_scheduler
from evalstop.core.codec import decode_action, encode
from evalstop.core.events import CapacityChanged, TimerFired
from evalstop.core.job import JobSpec
from evalstop.policies.evalstop import EvalStop
from evalstop.policies.guard import Chain
from evalstop.policies.guards import Backed, Budget, Observe, OperatorDesk, Protect, Warn
from evalstop.schedulers.fifo import Fifo
from evalstop.service.controller import Controller
from evalstop.sim.costs import ExecutionCosts
from evalstop.sim.simulator import Simulator
from evalstop.store.memory import MemoryStore
from evalstop.traces.replay import replay
from evalstop.workloads.job import SimJob, Workload

GPUS = 8

SCHEDULERS = [
    "fifo",
    "fifo-backfill",
    "sjf-est",
    "srtf-est",
    "srsf-est",
    "loss-aware:epoch_s=17.03",
    "tiresias:limits=100/400",
    "pollux:interval_s=7.01",
]

RULES = ["paper", "default:alpha=0.05", "rlhf=stop-at:fraction=0.6;*=loss-plateau:patience=2"]

GUARDS = {
    "none": lambda: None,
    "observe": Observe,
    "budget": lambda: Chain([OperatorDesk(), Protect(tenants=["t1"]), Budget(stops=1, per_s=90.0)]),
    "warn": lambda: Chain([OperatorDesk(), Warn(window_s=9.07)]),
    "backed": lambda: Backed(limit_s=6.03),
}

COSTS = [
    ExecutionCosts(),
    ExecutionCosts(start_s=3, restart_s=5, preempt_s=2, stop_s=4, release_s=6),
]


class ScriptedClock:
    def __init__(self):
        self.time = 0.0

    def now(self):
        return self.time

    def monotonic(self):
        return self.time


class Script:
    """What would carry out: it only notes what it is told."""

    def __init__(self):
        self.orders = []

    def resume(self, controller):
        pass

    def do(self, key, action):
        del key
        self.orders.append(action)

    def heard(self, event):
        pass

    def close(self):
        pass


def workload_of(seed):
    random = np.random.default_rng(seed)
    made = []
    for index in range(int(random.integers(1, 20))):
        evals = int(random.integers(0, 12))
        duration = float(random.uniform(1, 200))
        peak = 0.4 if random.random() < 0.5 else 1.0
        curve = curve_of(random, evals, peak)
        gpus = int(random.integers(1, GPUS + 1))
        elastic = index % 4 == 3
        made.append(
            job_of(
                index,
                curve,
                peak=peak,
                duration=duration,
                gpus=gpus,
                min_gpus=max(1, gpus // 2) if elastic else None,
                max_gpus=gpus if elastic else None,
                estimated_s=None if index % 7 == 0 else duration,
                submit_s=float(random.uniform(0, 300)),
                deliveries=[
                    random.uniform(0, 30, int(random.choice([0, 1, 1, 1, 2]))).tolist()
                    for _ in range(evals)
                ],
            )
        )
    return Workload.from_jobs(made)


def simulated(workload, policy, costs):
    story = []
    Simulator(
        workload,
        gpus=GPUS,
        policy=policy,
        costs=costs,
        observer=lambda event, actions: story.append((event, tuple(actions))),
    ).run()
    return story


class Unaware:
    """Base that is not told how the GPUs came to be there: a simulation has them from the start."""

    def __init__(self, base):
        self.base = base

    def decide(self, event, view):
        return () if isinstance(event, CapacityChanged) else self.base.decide(event, view)


class Live:
    """A controller that is told a script; what it wrote is read back from its store."""

    def __init__(self, policy):
        self.store, self.clock, self.carried_out = MemoryStore(), ScriptedClock(), Script()
        self.start(policy)
        self.tell(CapacityChanged(time=0.0, gpus=GPUS))

    def start(self, policy):
        self.controller = Controller(
            store=self.store, policy=policy, clock=self.clock, carry_out=self.carried_out
        )
        # Its own clock adds what has passed to where it began, which rounds.
        self.controller._clock = self.clock

    def tell(self, event):
        """Tell one fact, or let a timer fire that is due; return what was written.

        What comes first at one time is the script's to say: so facts come just before timers of
        their time, and timers fire one a turn.
        """
        written = self.controller.sequence
        self.clock.time = event.time
        if not isinstance(event, TimerFired):
            self.clock.time = math.nextafter(event.time, -math.inf)
            self.controller.ask(lambda _: [event])
        with mock.patch("evalstop.service.controller.MOST_A_TURN", 1):
            self.controller.settle()
        (entry,) = self.store.read(after=written)
        return entry


@given(
    seed=st.integers(0, 10_000),
    chosen=st.tuples(
        st.sampled_from(SCHEDULERS), st.sampled_from(RULES), st.sampled_from(sorted(GUARDS))
    ),
    costs=st.sampled_from(COSTS),
    cut=st.floats(0, 1),
)
def test_a_controller_that_is_told_a_simulation_decides_the_same_through_a_restart(
    seed, chosen, costs, cut
):
    scheduler, rule, guard = chosen

    def policy():
        base = Unaware(parse_scheduler(scheduler))
        return EvalStop(base=base, rules=parse_rule(rule), guard=GUARDS[guard]())

    story = simulated(workload_of(seed), policy(), costs)
    live = Live(policy())
    restart = int(cut * len(story))
    for index, (event, actions) in enumerate(story):
        if index == restart:
            live.start(policy())  # a new process: it knows the log and the time, nothing else
            assert live.controller.changed_decisions == 0
        entry = live.tell(event)
        assert encode(entry.event) == encode(event)
        assert entry.actions == tuple(decode_action(encode(action)) for action in actions)
        live.controller.kernel.state.check()
    decided = [action for _, actions in story for action in actions]
    assert list(map(encode, live.carried_out.orders)) == list(map(encode, decided))


@pytest.mark.parametrize("rule", ["paper", "default:alpha=0.05", "patience:k=2", "cusum:drift=0.5"])
def test_replay_of_a_simulated_curve_stops_at_the_same_evaluation(rule, tmp_path):
    """Alone on its GPUs a job is what a recorded run is: the same curve under the same rule."""
    random = np.random.default_rng(17)
    jobs, rows = [], []
    for index in range(60):
        evals = int(random.integers(2, 20))
        peak = float(random.uniform(0.2, 1.2))
        share = np.arange(1, evals + 1) / (evals + 1)  # none at the end: that one stops nothing
        scores = np.minimum(share, 2 * peak - share) + random.normal(0, 0.05, evals)
        scores[random.random(evals) < 0.05] = np.nan
        job_type = ["rlhf", "dpo", "lora"][index % 3]
        jobs.append(
            SimJob(
                spec=JobSpec(id=f"run-{index}", job_type=job_type),
                submit_s=0.0,
                duration_s=100.0,
                eval_offsets=(share * 100.0).tolist(),
                eval_steps=[10 * (i + 1) for i in range(evals)],
                scores=scores.tolist(),
                true_scores=scores.tolist(),
                stderrs=[0.05] * evals,
            )
        )
        rows += [
            (f"run-{index}", 10 * (i + 1), repr(float(score)), 0.05, job_type)
            for i, score in enumerate(scores)
        ]
    workload = Workload.from_jobs(jobs)
    log = Simulator(workload, gpus=60, policy=EvalStop(base=Fifo(), rules=parse_rule(rule))).run()
    path = tmp_path / "runs.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("trace_id", "step", "score", "stderr", "job_type"), *rows])
    report = replay(path, parse_rule(rule), direction="max")
    by_run = {result.trace_id: result for result in report.results}
    stopped = {f"run-{i}": at for i, at in enumerate(log.stop_eval) if at >= 0}
    fired = {run: result.stop_step // 10 - 1 for run, result in by_run.items() if result.fired}
    assert stopped == fired
    assert 0 < len(stopped) < 60
    for run, at in stopped.items():
        curve = jobs[int(run.removeprefix("run-"))]
        kept = curve.scores[log.kept_eval[jobs.index(curve)]]
        assert kept == by_run[run].best_score_at_stop == np.nanmax(curve.scores[: at + 1])
