"""Node types: a job goes where it should end first, and each part sees its own GPUs alone."""

import math

import pytest

from evalstop import schedulers
from evalstop.config.schedulers import SCHEDULERS, parse_scheduler
from evalstop.core.actions import Start
from evalstop.core.errors import SpecError
from evalstop.core.events import JobStarted
from evalstop.core.job import JobSpec
from evalstop.schedulers.fifo import Fifo
from evalstop.schedulers.partitioned import Partitioned
from evalstop.sim.simulator import Simulator
from evalstop.workloads.generate import generate
from evalstop.workloads.job import SimJob, Workload
from evalstop.workloads.scenario import Elasticity, Scenario

FAST_SLOW = {"fast": 2.0, "slow": 1.0}


def jobs(*rows):
    """Rows of submission, duration and GPUs; estimates are right."""
    return Workload.from_jobs(
        [
            SimJob(
                spec=JobSpec(id=str(i), gpus=gpus, estimated_s=duration),
                submit_s=submit,
                duration_s=duration,
            )
            for i, (submit, duration, gpus) in enumerate(rows)
        ]
    )


def run(workload, gpus, speeds, base=Fifo):
    placed, starts = {}, []

    def watch(event, actions):
        if isinstance(event, JobStarted):
            placed[event.job] = event.pool
        starts.extend(action for action in actions if isinstance(action, Start))
        simulator.kernel.state.check()

    simulator = Simulator(
        workload,
        gpus=gpus,
        speeds=speeds,
        policy=Partitioned(base=base, speeds=speeds),
        observer=watch,
    )
    return simulator.run(), placed


def test_a_job_takes_half_as_long_on_gpus_that_are_twice_as_fast():
    log, placed = run(jobs((0.0, 100.0, 1)), {"fast": 1, "slow": 1}, FAST_SLOW)
    assert placed == {"0": "fast"}
    assert log.end_s[0] == pytest.approx(50.0)
    assert log.service_s[0] == pytest.approx(100.0)
    assert log.gpu_seconds[0] == pytest.approx(50.0)


def test_jobs_go_where_they_should_end_first():
    """Fast would end 0 at 50, then 1 at 100; slow ends 1 at 100 too: the first of equal types."""
    four = jobs((0.0, 100.0, 1), (0.0, 100.0, 1), (0.0, 100.0, 1), (0.0, 10.0, 1))
    log, placed = run(four, {"fast": 1, "slow": 1}, FAST_SLOW)
    assert placed == {"0": "fast", "1": "fast", "2": "slow", "3": "fast"}
    assert list(log.end_s) == pytest.approx([50.0, 100.0, 100.0, 105.0])


def test_a_gang_goes_only_where_it_fits():
    log, placed = run(jobs((0.0, 100.0, 4)), {"fast": 2, "slow": 4}, FAST_SLOW)
    assert placed == {"0": "slow"}
    assert log.end_s[0] == pytest.approx(100.0)


def test_the_view_knows_attained_service_at_the_speed_of_the_node():
    seen = []

    class Watching(Fifo):
        def decide(self, event, view):
            if event.time >= 30.0 and "0" in view.jobs:
                seen.append(view.jobs["0"].attained_s(view.now))
            return super().decide(event, view)

    run(jobs((0.0, 100.0, 1), (30.0, 10.0, 1)), {"fast": 2}, {"fast": 2.0}, base=Watching)
    assert seen[0] == pytest.approx(60.0)


@pytest.mark.parametrize("name", [name for name in SCHEDULERS if name != "native"])
def test_every_scheduler_ends_every_job_on_two_types_and_no_gang_spans_them(name):
    scenario = Scenario(jobs=60, gpus=24, elasticity=Elasticity(share=0.5, stretch=2))
    workload = generate(scenario, 3)
    log, placed = run(
        workload, {"fast": 8, "slow": 16}, FAST_SLOW, base=lambda: parse_scheduler(name)
    )
    assert log.ends == 60
    assert set(placed.values()) == {"fast", "slow"}


@pytest.mark.parametrize("name", ["fifo", "srtf-est", "tiresias", "loss-aware", "pollux"])
def test_one_type_of_speed_one_is_the_plain_cluster_event_for_event(name):
    workload = generate(Scenario(jobs=80, gpus=16), 5)
    plain = Simulator(workload, gpus=16, policy=parse_scheduler(name)).run()
    typed = Simulator(
        workload,
        gpus={"only": 16},
        speeds={"only": 1.0},
        policy=parse_scheduler(name, speeds={"only": 1.0}),
    ).run()
    assert list(typed.end_s) == list(plain.end_s)
    assert typed.events == plain.events


def test_an_event_of_a_job_that_nobody_sent_anywhere_is_left_alone():
    workload = jobs((0.0, 10.0, 1))
    simulator = Simulator(
        workload, gpus={"odd": 1}, policy=Partitioned(base=Fifo, speeds={"fast": 1.0})
    )
    assert simulator.run().ends == 0


@pytest.mark.parametrize("speeds", [{}, {"fast": 0.0}])
def test_node_types_need_a_speed(speeds):
    with pytest.raises(SpecError, match="every node type needs a speed above 0"):
        Partitioned(base=Fifo, speeds=speeds)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, "2", None])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: schedulers.Partitioned(base=schedulers.Fifo, speeds={"a": 1.0, "b": x}),
        lambda x: schedulers.LossAware(epoch_s=x),
        lambda x: schedulers.LossAware(decay=x),
        lambda x: schedulers.Pollux(interval_s=x),
        lambda x: schedulers.Pollux(sync=x),
        lambda x: schedulers.Pollux(gain=x),
    ],
)
def test_settings_of_schedulers_are_finite_numbers(make, value):
    with pytest.raises(SpecError, match="got"):
        make(value)
