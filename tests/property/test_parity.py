"""The same decisions whoever drives: simulate == replay of its log == replay from any restart.

CI fails if this file is skipped. The controller's side of the parity is in
`test_parity_controller.py`.
"""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parity_jobs import curve_of, job_of

from evalstop.core.cluster import ClusterState
from evalstop.core.codec import decode_action, decode_event, encode
from evalstop.core.events import EvalReported, JobEnded
from evalstop.core.job import JobSpec, Outcome
from evalstop.core.kernel import Kernel
from evalstop.detectors.consecutive import ConsecutiveDecline
from evalstop.detectors.never import Never
from evalstop.detectors.scan import Scan
from evalstop.policies.baselines import LossPlateau, StopAt
from evalstop.policies.evalstop import EvalStop
from evalstop.policies.guard import Chain
from evalstop.policies.guards import Budget, Observe, OperatorDesk, Protect, Warn
from evalstop.schedulers.backfill import FifoBackfill
from evalstop.schedulers.fifo import Fifo
from evalstop.schedulers.loss_aware import LossAware
from evalstop.schedulers.pollux import Pollux
from evalstop.schedulers.shortest import SjfEst, SrsfEst, SrtfEst
from evalstop.schedulers.tiresias import Tiresias
from evalstop.sim.costs import ExecutionCosts
from evalstop.sim.simulator import Simulator
from evalstop.workloads.job import SimJob, Workload

GPUS = 8

BASES = [
    Fifo,
    FifoBackfill,
    SjfEst,
    SrtfEst,
    SrsfEst,
    partial(LossAware, epoch_s=20.0),
    partial(Tiresias, limits=(100.0, 400.0), promote=2.0),
    partial(Pollux, interval_s=7.0),
]

RULES = [
    {"rlhf": ConsecutiveDecline(k=2), "dpo": ConsecutiveDecline(k=3)},
    {"*": Scan(alpha=0.05)},
    {"rlhf": StopAt(fraction=0.6), "*": LossPlateau(patience=2)},
]

GUARDS = [
    lambda: None,
    Observe,
    lambda: Chain([OperatorDesk(), Protect(tenants=["t1"]), Budget(stops=1, per_s=500.0)]),
    lambda: Chain([OperatorDesk(), Warn(window_s=20.0)]),
]


def workload_of(seed: int, jobs: int) -> Workload:
    random = np.random.default_rng(seed)
    made = []
    for index in range(jobs):
        evals = int(random.integers(0, 12))
        duration = float(random.integers(1, 200))
        peak = 0.4 if random.random() < 0.5 else 1.0
        made.append(
            job_of(
                index,
                curve_of(random, evals, peak),
                peak=peak,
                duration=duration,
                gpus=int(random.integers(1, GPUS + 1)),
                estimated_s=None if index % 7 == 0 else duration * float(random.uniform(0.5, 2)),
                submit_s=float(random.integers(0, 300)),
                deliveries=[
                    [] if random.random() < 0.1 else [float(random.integers(0, 30))]
                    for _ in range(evals)
                ]
                if index % 2
                else [[0.0]] * evals,
            )
        )
    return Workload.from_jobs(made)


def policy_of(base, rules, guard):
    return EvalStop(base=base(), rules=rules, guard=guard())


def simulate(workload, policy, costs=None):
    """Return the log as lines of JSON, and check the cluster after every event."""
    lines = []
    simulator = Simulator(
        workload,
        gpus=GPUS,
        policy=policy,
        costs=costs,
        observer=lambda event, actions: (
            lines.append((encode(event), [encode(action) for action in actions])),
            simulator.kernel.state.check(),
        ),
    )
    log = simulator.run()
    return lines, log, simulator


settings = {
    "seed": st.integers(0, 10_000),
    "jobs": st.integers(1, 25),
    "base": st.sampled_from(BASES),
    "rules": st.sampled_from(RULES),
    "guard": st.sampled_from(GUARDS),
    "costs": st.sampled_from(
        [
            ExecutionCosts(),
            ExecutionCosts(start_s=3, restart_s=5, preempt_s=2, stop_s=4, release_s=6),
        ]
    ),
}


@given(setting=st.fixed_dictionaries(settings), cut=st.floats(0, 1))
def test_replay_of_the_log_answers_as_the_simulation_did_from_any_restart(setting, cut):
    costs = setting["costs"]
    seed, jobs = setting["seed"], setting["jobs"]
    base, rules, guard = setting["base"], setting["rules"], setting["guard"]
    lines, _, _ = simulate(workload_of(seed, jobs), policy_of(base, rules, guard), costs)
    restart = int(cut * len(lines))
    kernel = Kernel(ClusterState(GPUS), policy_of(base, rules, guard))
    for line, _ in lines[:restart]:
        kernel.handle(decode_event(line))
    # A restarted process knows the log and nothing else.
    kernel = Kernel(ClusterState(GPUS), policy_of(base, rules, guard))
    for index, (line, answers) in enumerate(lines):
        actions = kernel.handle(decode_event(line))
        if index >= restart:
            assert [encode(action) for action in actions] == answers
            assert [decode_action(answer) for answer in answers] == list(actions)
        kernel.state.check()


@given(setting=st.fixed_dictionaries(settings))
def test_every_job_ends_time_never_goes_back_and_all_gpus_come_home(setting):
    costs = setting["costs"]
    seed, jobs = setting["seed"], setting["jobs"]
    base, rules, guard = setting["base"], setting["rules"], setting["guard"]
    workload = workload_of(seed, jobs)
    lines, log, simulator = simulate(workload, policy_of(base, rules, guard), costs)
    times = [decode_event(line).time for line, _ in lines]
    assert times == sorted(times)
    ended = [
        decode_event(line).job for line, _ in lines if isinstance(decode_event(line), JobEnded)
    ]
    assert sorted(ended) == sorted(f"j{index}" for index in range(jobs))
    assert log.ends == jobs
    view = simulator.kernel.state.view
    assert view.free_gpus == view.total_gpus == GPUS
    ran = log.columns(workload)
    assert not np.isnan(ran.end_s).any()
    assert (ran.gpu_seconds >= ran.service_s * ran.gpus - 1e-6).all()


@given(seed=settings["seed"], jobs=settings["jobs"], base=settings["base"])
def test_the_same_seed_gives_the_same_bytes(seed, jobs, base):
    first, _, _ = simulate(workload_of(seed, jobs), policy_of(base, RULES[0], GUARDS[0]))
    again, _, _ = simulate(workload_of(seed, jobs), policy_of(base, RULES[0], GUARDS[0]))
    assert first == again


@given(seed=settings["seed"], jobs=settings["jobs"], base=settings["base"])
def test_a_rule_that_never_fires_equals_its_base_event_for_event(seed, jobs, base):
    workload = workload_of(seed, jobs)
    wrapped, _, _ = simulate(workload, EvalStop(base=base(), rules=Never()))
    bare, _, _ = simulate(workload, base())
    assert wrapped == bare


@given(seed=settings["seed"], jobs=settings["jobs"], base=settings["base"])
def test_observe_changes_nothing_for_the_backend(seed, jobs, base):
    workload = workload_of(seed, jobs)
    observed, _, _ = simulate(workload, policy_of(base, RULES[0], Observe))
    bare, _, _ = simulate(workload, base())
    assert [event for event, _ in observed] == [event for event, _ in bare]


@pytest.mark.parametrize("base", BASES)
def test_nested_evalstops_stop_a_job_once(base):
    workload = workload_of(7, 25)
    nested = EvalStop(
        base=EvalStop(base=base(), rules=ConsecutiveDecline(k=2)), rules=ConsecutiveDecline(k=2)
    )
    lines, log, _ = simulate(workload, nested)
    plain, _, _ = simulate(workload, EvalStop(base=base(), rules=ConsecutiveDecline(k=2)))
    assert [event for event, _ in lines] == [event for event, _ in plain]
    assert log.columns(workload).stopped.any()


def test_an_evaluation_at_completion_stops_nothing():
    job = SimJob(
        spec=JobSpec(id="j", job_type="rlhf"),
        submit_s=0.0,
        duration_s=4.0,
        eval_offsets=[1.0, 2.0, 3.0, 4.0],
        eval_steps=[1, 2, 3, 4],
        scores=[0.5, 0.9, 0.8, 0.7],
        true_scores=[0.5, 0.9, 0.8, 0.7],
        hacking=True,
        peak_s=2.0,
    )
    workload = Workload.from_jobs([job])
    lines, log, _ = simulate(workload, EvalStop(base=Fifo(), rules=ConsecutiveDecline(k=2)))
    events = [decode_event(line) for line, _ in lines]
    assert sum(isinstance(event, EvalReported) for event in events) == 4
    assert events[-1].outcome is Outcome.COMPLETED
    assert log.end_s[0] == 4.0
    assert log.stop_eval[0] == -1


def test_a_stop_frees_the_gpus_for_who_waits_and_names_the_best_checkpoint():
    falling = SimJob(
        spec=JobSpec(id="falls", job_type="rlhf", gpus=GPUS),
        submit_s=0.0,
        duration_s=10.0,
        eval_offsets=[2.0, 4.0, 6.0, 8.0, 10.0],
        eval_steps=[20, 40, 60, 80, 100],
        scores=[0.5, 0.9, 0.8, 0.7, 0.6],
        true_scores=[0.5, 0.9, 0.8, 0.7, 0.6],
        hacking=True,
        peak_s=4.0,
    )
    waiting = SimJob(spec=JobSpec(id="waits", gpus=GPUS), submit_s=1.0, duration_s=5.0)
    workload = Workload.from_jobs([falling, waiting])
    costs = ExecutionCosts(stop_s=0.5, release_s=0.25)
    _, log, _ = simulate(workload, EvalStop(base=Fifo(), rules=ConsecutiveDecline(k=2)), costs)
    assert list(log.end_s) == [8.75, 14.0]
    assert list(log.first_start_s) == [0.0, 8.75]
    assert log.stop_eval[0] == 3
    assert log.kept_eval[0] == 1
    assert log.gpu_seconds[0] == 8.75 * GPUS
