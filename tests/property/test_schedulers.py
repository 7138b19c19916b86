"""What every base scheduler owes: whole gangs, no GPU twice, no job left behind, no chance."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalstop.config.rules import parse_rule
from evalstop.config.schedulers import SCHEDULERS, parse_scheduler
from evalstop.core.actions import Resize, Start
from evalstop.core.codec import encode
from evalstop.core.events import JobStarted
from evalstop.core.job import JobSpec, Outcome, Phase
from evalstop.metrics.columns import OUTCOME_CODES
from evalstop.policies.evalstop import EvalStop
from evalstop.sim.costs import ExecutionCosts
from evalstop.sim.simulator import Simulator
from evalstop.workloads.job import SimJob, Workload

GPUS = 8

NAMES = [name for name in SCHEDULERS if name != "native"]
SPECS = [*NAMES, "tiresias:promote=2", "loss-aware:epoch_s=5", "pollux:interval_s=0,gain=0"]

GREEDY = ["sjf-est", "srtf-est", "srsf-est", "loss-aware", "tiresias", "pollux:interval_s=0"]
"""Those that promise to leave no GPU idle that a waiting gang fits on."""

COSTLY = ExecutionCosts(start_s=3.0, restart_s=5.0, preempt_s=2.0, stop_s=1.0, release_s=4.0)


@st.composite
def workloads(draw, sizes=("rigid", "elastic")):
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    can_resize = draw(st.sampled_from(sizes)) == "elastic"
    jobs = []
    for index in range(draw(st.integers(1, 25))):
        gpus = int(random.choice([1, 1, 2, 3, 4, 8]))
        duration = float(random.integers(1, 200))
        evals = int(random.integers(0, 8))
        estimate = duration * float(random.choice([0.3, 1.0, 1.0, 2.5]))
        jobs.append(
            SimJob(
                spec=JobSpec(
                    id=f"j{index}",
                    job_type="rlhf",
                    gpus=gpus,
                    estimated_s=None if random.random() < 0.2 else estimate,
                    min_gpus=max(1, gpus // 2) if can_resize else None,
                    max_gpus=min(GPUS, 2 * gpus) if can_resize else None,
                ),
                submit_s=float(random.integers(0, 300)),
                duration_s=duration,
                eval_offsets=[duration * (i + 1) / evals for i in range(evals)],
                eval_steps=list(range(1, evals + 1)),
                scores=list(random.random(evals)),
                true_scores=[0.0] * evals,
                losses=list(3.0 - random.random(evals)) if random.random() < 0.8 else None,
                noise_scale=float(random.uniform(0, 30)) if can_resize else None,
                sync_share=0.05 if can_resize else 0.0,
            )
        )
    return Workload.from_jobs(jobs)


def simulate(workload, policy, *, costs=None):
    """Run and return the record, and every event with its actions; check GPUs at each."""
    story = []

    def watch(event, actions):
        simulator.kernel.state.check()
        story.append((encode(event), [encode(action) for action in actions]))
        for action in actions:
            job = simulator.kernel.state.view.jobs[action.job] if hasattr(action, "job") else None
            if isinstance(action, (Start, Resize)):
                fewest, most = job.min_gpus or job.gpus, job.max_gpus or job.gpus
                assert fewest <= action.gpus <= most
        if isinstance(event, JobStarted):
            held = simulator.kernel.state.view.jobs[event.job].held_gpus
            assert held == event.gpus

    simulator = Simulator(workload, gpus=GPUS, policy=policy, costs=costs, observer=watch)
    return simulator.run(), story


@pytest.mark.parametrize("spec", SPECS)
@given(workload=workloads(), costs=st.sampled_from([None, COSTLY]))
def test_gangs_are_whole_and_every_job_ends(spec, workload, costs):
    log, _ = simulate(workload, parse_scheduler(spec), costs=costs)
    assert set(log.outcome) == {OUTCOME_CODES[Outcome.COMPLETED]}


@pytest.mark.parametrize("spec", SPECS)
@given(workload=workloads(), costs=st.sampled_from([None, COSTLY]))
def test_every_job_ends_when_others_are_stopped(spec, workload, costs):
    policy = EvalStop(base=parse_scheduler(spec), rules=parse_rule("consecutive:k=2"))
    log, _ = simulate(workload, policy, costs=costs)
    assert log.ends == len(workload)


@pytest.mark.parametrize("spec", SPECS)
@given(workload=workloads())
def test_a_rule_that_never_fires_changes_nothing(spec, workload):
    _, plain = simulate(workload, parse_scheduler(spec))
    _, wrapped = simulate(workload, EvalStop(base=parse_scheduler(spec), rules=parse_rule("none")))
    assert wrapped == plain


@pytest.mark.parametrize("spec", SPECS)
@given(workload=workloads())
def test_the_same_workload_gives_the_same_story(spec, workload):
    first = simulate(workload, parse_scheduler(spec))[1]
    assert simulate(workload, parse_scheduler(spec))[1] == first


@pytest.mark.parametrize("spec", SPECS)
@given(workload=workloads(sizes=["rigid"]))
def test_a_job_that_is_alone_runs_at_once_and_undisturbed(spec, workload):
    apart = msgspec.structs.replace(
        workload, submit_s=np.arange(len(workload), dtype=float) * 1_000.0
    )
    log, _ = simulate(apart, parse_scheduler(spec))
    np.testing.assert_allclose(log.first_start_s, apart.submit_s)
    np.testing.assert_allclose(np.asarray(log.end_s) - apart.submit_s, apart.duration_s)
    assert log.preemptions == 0


@pytest.mark.parametrize("spec", GREEDY)
@given(workload=workloads(sizes=["rigid"]))
def test_no_gpu_idles_that_a_waiting_gang_fits_on(spec, workload):
    idle_since = []

    def watch(event, _actions):
        view = simulator.kernel.state.view
        if idle_since and event.time > idle_since[-1]:
            pytest.fail(f"GPUs idled from {idle_since[-1]} to {event.time}")
        idle_since.clear()
        waiting = [job.gpus for job in view.jobs.values() if job.phase is Phase.WAITING]
        if waiting and min(waiting) <= view.free_gpus:
            idle_since.append(event.time)

    simulator = Simulator(workload, gpus=GPUS, policy=parse_scheduler(spec), observer=watch)
    simulator.run()


@given(workload=workloads(sizes=["rigid"]))
def test_backfilling_never_delays_the_first_job_that_has_to_wait(workload):
    exact = msgspec.structs.replace(workload, estimated_s=workload.duration_s)
    strict = simulate(exact, parse_scheduler("fifo"))[0]
    filled = simulate(exact, parse_scheduler("fifo-backfill"))[0]
    waits = np.flatnonzero(np.asarray(strict.first_start_s) > exact.submit_s)
    if waits.size:
        first = waits[0]
        assert filled.first_start_s[first] <= strict.first_start_s[first] + 1e-9


@given(workload=workloads(sizes=["rigid"]))
def test_without_estimates_backfilling_is_first_in_first_out(workload):
    blind = msgspec.structs.replace(workload, estimated_s=None)
    strict, filled = (
        simulate(blind, parse_scheduler(spec))[0] for spec in ("fifo", "fifo-backfill")
    )
    np.testing.assert_array_equal(strict.end_s, filled.end_s)
