"""Jobs that cannot be are refused before anything is simulated, by name, field and value."""

import math
import re

import pytest

from evalstop.core.errors import InputError
from evalstop.core.job import JobSpec
from evalstop.workloads.job import SimJob, Workload

SPEC = {"min_gpus", "max_gpus", "estimated_s", "gpus"}


def job(name="a", **fields):
    spec = {key: fields.pop(key) for key in SPEC & fields.keys()}
    fields = {"submit_s": 0.0, "duration_s": 10.0} | fields
    return SimJob(spec=JobSpec(id=name, **({"gpus": 2} | spec)), **fields)


def evaluated(name="a", **fields):
    """Return a job with two evaluations."""
    columns = {
        "eval_offsets": [1.0, 2.0],
        "eval_steps": [1, 2],
        "scores": [0.5, 0.6],
        "true_scores": [0.5, 0.6],
    }
    return job(name, **(columns | fields))


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"submit_s": math.nan}, "job 'a': submit_s must be a finite number, got nan"),
        ({"submit_s": math.inf}, "job 'a': submit_s must be a finite number, got inf"),
        ({"duration_s": math.inf}, "job 'a': duration_s must be a finite number, got inf"),
        ({"fails_at_s": -1.0}, "job 'a': fails_at_s must be at least 0, or not known, got -1.0"),
        ({"estimated_s": -5.0}, "job 'a': estimated_s must be at least 0, or not known, got -5.0"),
        ({"noise_scale": -1.0}, "job 'a': noise_scale must be at least 0, or not known, got -1.0"),
        ({"min_gpus": 3}, "job 'a': min_gpus must be from 1 to gpus, got 3"),
        ({"min_gpus": -1}, "job 'a': min_gpus must be from 1 to gpus, got -1"),
        ({"max_gpus": 1}, "job 'a': max_gpus must be at least gpus, got 1"),
    ],
)
def test_a_job_that_cannot_be_is_refused(fields, complaint):
    with pytest.raises(InputError, match=re.escape(complaint)):
        Workload.from_jobs([job(**fields)])


@pytest.mark.parametrize(
    "name", ["eval_steps", "scores", "true_scores", "stderrs", "proxies", "losses", "replicates"]
)
def test_evaluations_of_one_job_never_become_anothers(name):
    """One list too long, another too short: the columns would fit, one job off."""
    entries = [[0.5], [0.5], [0.5]] if name == "replicates" else [1, 2, 3]
    long, short = evaluated("a", **{name: entries}), evaluated("b", **{name: entries[:1]})
    with pytest.raises(InputError, match=f"job 'a': {name} must have an entry for each of its 2"):
        Workload.from_jobs([long, short])


@pytest.mark.parametrize("offsets", [[-1.0, 2.0], [math.nan, 2.0], [-math.inf, 0.0]])
def test_nothing_is_evaluated_before_it_began(offsets):
    with pytest.raises(InputError, match=r"eval_offsets .* must be at least 0"):
        Workload.from_jobs([job("first"), evaluated(eval_offsets=offsets)])


@pytest.mark.parametrize("delay", [-3.0, math.nan, math.inf])
def test_reports_arrive_after_their_evaluation_or_never(delay):
    with pytest.raises(InputError, match="deliveries must be finite delays of at least 0"):
        Workload.from_jobs([evaluated(deliveries=[[0.0], [delay]])])


def test_two_jobs_have_two_names():
    with pytest.raises(InputError, match="but 'b' comes twice"):
        Workload.from_jobs([job("a"), job("b"), job("b")])


def test_a_job_at_the_edge_is_a_job():
    edge = job(min_gpus=2, max_gpus=2, estimated_s=0.0, fails_at_s=0.0, submit_s=-5.0)
    assert len(Workload.from_jobs([edge, evaluated("b", eval_offsets=[0.0, 0.0])])) == 2
