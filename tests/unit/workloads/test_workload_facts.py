"""What a workload turned out to be, counted by hand and against what was asked for."""

import math

import msgspec
import pytest

from evalstop.core.job import JobSpec
from evalstop.workloads.facts import describe
from evalstop.workloads.generate import generate
from evalstop.workloads.job import SimJob, Workload
from evalstop.workloads.scenario import Deliveries, Durations
from evalstop.workloads.scenarios import PAPER


def job(name, submit_s, **changes):
    truth = {
        "spec": JobSpec(id=name, job_type="rlhf", gpus=2, estimated_s=150.0),
        "submit_s": submit_s,
        "duration_s": 100.0,
        "eval_offsets": [25.0, 50.0, 75.0, 100.0],
        "eval_steps": [1, 2, 3, 4],
        "scores": [0.3, 0.5, 0.9, 0.4],
        "true_scores": [0.2, 0.6, 0.8, 0.5],
        "hacking": True,
        "peak_s": 60.0,
    }
    return SimJob(**(truth | changes))


def test_facts_of_two_jobs_added_up_by_hand():
    healthy = JobSpec(id="b", job_type="dpo", gpus=4)
    second = job(
        "b", 50.0, spec=healthy, hacking=False, peak_s=100.0, eval_offsets=[], eval_steps=[],
        scores=[], true_scores=[],
    )  # fmt: skip
    facts = describe(Workload.from_jobs([job("a", 0.0), second]), gpus=8)
    assert (facts.jobs, facts.evals) == (2, 4)
    assert facts.types == {"rlhf": 1, "dpo": 1}
    assert facts.hacking == {"rlhf": 1, "dpo": 0}
    assert facts.load == pytest.approx((200 + 400) / (8 * 50))
    assert facts.gpus.median == 3.0
    assert facts.peak.median == pytest.approx(0.6)
    assert facts.decline.median == pytest.approx(0.3)
    assert facts.estimate_ratio.greatest == pytest.approx(1.5)
    assert facts.sigma == pytest.approx(0.1)
    assert (facts.reports_lost, facts.reports_repeated) == (0.0, 0.0)


def test_facts_of_nothing_are_nan_and_zero():
    facts = describe(Workload.from_jobs([]), gpus=8)
    assert (facts.jobs, facts.evals) == (0, 0)
    assert math.isnan(facts.load)
    assert math.isnan(facts.sigma)
    assert math.isnan(facts.duration_s.median)


def test_lost_and_repeated_reports_show():
    plan = Deliveries(lost=0.2, repeated=0.5)
    facts = describe(
        generate(msgspec.structs.replace(PAPER, deliveries=plan, jobs=500), 0), gpus=64
    )
    assert facts.reports_lost == pytest.approx(0.2, abs=0.03)
    assert facts.reports_repeated == pytest.approx(0.4, abs=0.03)


def test_without_estimates_their_spread_is_nan():
    scenario = msgspec.structs.replace(PAPER, durations=Durations(estimated=False))
    assert math.isnan(describe(generate(scenario, 0), gpus=64).estimate_ratio.median)
