"""No policy or detector can reach the hidden truth: not by attribute, closure, or import."""

import subprocess
import sys
from collections.abc import Mapping

import pytest

from evalstop.core.cluster import ClusterState
from evalstop.core.events import EvalReported, JobSubmitted, LossReported
from evalstop.core.job import JobSpec, JobView
from evalstop.schedulers.fifo import Fifo
from evalstop.sim.simulator import Simulator
from evalstop.workloads.job import SimJob, Workload

TRUTH = {
    "duration_s": 1234.0625,
    "peak_s": 617.03125,
    "true_score": 0.4242424242,
    "fails_at_s": 1111.0625,
}

WHITE_LIST = {
    "id",
    "tenant",
    "job_type",
    "gpus",
    "min_gpus",
    "max_gpus",
    "estimated_s",
    "labels",
    "submitted_at",
    "phase",
    "rate",
    "held_gpus",
    "attempt",
    "started_at",
    "first_started_at",
    "service_s",
    "gpu_seconds",
    "evals_seen",
    "last_eval_at",
    "losses_seen",
    "throughput",
    "efficiency",
}


def reachable(root):
    """Return every object that attributes, items, closures and defaults lead to from ``root``."""
    seen, found, todo = set(), [], [root]
    while todo:
        item = todo.pop()
        if id(item) in seen or isinstance(item, (type, type(sys))):
            continue
        seen.add(id(item))
        found.append(item)
        if not isinstance(item, (str, bytes, int, float)):
            todo.extend(contents(item))
    return found


def contents(item):
    if isinstance(item, Mapping):
        yield from item.keys()
        yield from item.values()
    elif isinstance(item, (list, tuple, set, frozenset)):
        yield from item
    yield from getattr(item, "__dict__", {}).values()
    yield from (cell.cell_contents for cell in getattr(item, "__closure__", None) or ())
    yield from getattr(item, "__defaults__", None) or ()
    for name in dir(item):
        value = getattr(item, name, None)
        if not name.startswith("__"):
            yield value
        owner = getattr(value, "__self__", None)
        if owner is not None and owner is not item:
            yield owner


class Spy:
    def __init__(self):
        self.base = Fifo()
        self.found = []

    def decide(self, event, view):
        self.found.extend(reachable(event))
        self.found.extend(reachable(view))
        return self.base.decide(event, view)


def hidden_job(losses=None):
    return SimJob(
        spec=JobSpec(id="j", job_type="rlhf", estimated_s=999.0),
        submit_s=0.0,
        duration_s=TRUTH["duration_s"],
        eval_offsets=[100.0, 200.0],
        eval_steps=[1, 2],
        scores=[0.1, 0.2],
        true_scores=[TRUTH["true_score"]] * 2,
        losses=losses,
        hacking=True,
        peak_s=TRUTH["peak_s"],
        fails_at_s=TRUTH["fails_at_s"],
    )


def test_nothing_a_policy_is_given_leads_to_the_truth():
    spy = Spy()
    workload = Workload.from_jobs([hidden_job(losses=[3.0, 2.0])])
    Simulator(workload, gpus=1, policy=spy).run()
    assert any(item == 0.2 for item in spy.found if isinstance(item, float))  # it can see scores
    assert not [item for item in spy.found if isinstance(item, (SimJob, Workload, Simulator))]
    assert not [item for item in spy.found if isinstance(item, ClusterState)]
    floats = {item for item in spy.found if isinstance(item, float)}
    # The time of the crash is a fact once it has happened: it is the event's own time.
    assert not floats & (set(TRUTH.values()) - {TRUTH["fails_at_s"]})
    assert not [item for item in spy.found if isinstance(item, str) and "hack" in item]


class Seer(Spy):
    """Policy that is shown what a job will report: scores and what comes with them, no truth."""

    def foresee(self, job, ahead, start, view):
        del job
        self.found.extend(reachable(ahead))
        self.found.extend(reachable(view))
        return start


def test_looking_ahead_shows_reports_and_no_truth():
    seer = Seer()
    Simulator(Workload.from_jobs([hidden_job()]), gpus=1, policy=seer).run()
    floats = {item for item in seer.found if isinstance(item, float)}
    assert {0.1, 0.2} <= floats
    assert not floats & (set(TRUTH.values()) - {TRUTH["fails_at_s"]})
    assert not [item for item in seer.found if isinstance(item, (SimJob, Workload, Simulator))]


def test_a_job_view_is_the_white_list_and_nothing_else():
    assert set(JobView.__struct_fields__) == WHITE_LIST


@pytest.mark.parametrize("kind", [EvalReported, LossReported, JobSubmitted, JobSpec, JobView])
def test_no_fact_has_a_place_for_the_truth(kind):
    fields = {name.lower() for name in kind.__struct_fields__}
    assert not {name for name in fields if "true" in name or "hack" in name or "peak" in name}


def test_policies_cannot_write_what_they_read():
    state = ClusterState(4)
    state.apply(JobSubmitted(time=0.0, job=JobSpec(id="a", labels={"x": "y"})))
    view, job, pool = state.view, state.view.jobs["a"], state.view.pools[""]
    for target in (view, job, pool):
        for name in target.__struct_fields__:
            with pytest.raises(AttributeError):
                setattr(target, name, 1)
            with pytest.raises(TypeError):
                object.__setattr__(target, name, 1)
    for mapping in (view.jobs, view.pools, job.labels):
        with pytest.raises(TypeError):
            mapping["b"] = 1


DECIDING = ["core", "detectors", "schedulers", "policies"]


def test_the_deciding_packages_load_neither_workloads_nor_simulator():
    script = (
        "import importlib, pkgutil, sys, evalstop\n"
        f"for package in {DECIDING!r}:\n"
        "    module = importlib.import_module(f'evalstop.{package}')\n"
        "    for info in pkgutil.walk_packages(module.__path__, module.__name__ + '.'):\n"
        "        importlib.import_module(info.name)\n"
        "print([name for name in sys.modules if name.startswith('evalstop.')"
        " and name.split('.')[1] not in " + repr({*DECIDING}) + "])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert result.stdout.strip() == "[]"
