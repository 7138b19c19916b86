"""The Ray backend on a real cluster: the contract of all backends, and what is Ray's own."""

from __future__ import annotations

import time
import uuid

import pytest

from conftest import GPUS_A_NODE
from evalstop.backends.ray import RayBackend
from evalstop.core.errors import BackendError
from evalstop.ports import Launch, Order, RunState
from evalstop.testing import BackendContract
from evalstop.testing.backend import eventually


class TestRayBackend(BackendContract):
    within_s = 300.0

    @pytest.fixture(autouse=True)
    def _cluster(self, cluster):
        self.address = cluster.dashboard
        self.made = []
        yield
        for backend in self.made:
            self.close(backend)

    def backend(self):
        self.made.append(RayBackend(self.address, namespace=f"t{uuid.uuid4().hex}"))
        return self.made[-1]

    def reopened(self, backend):
        return RayBackend(self.address, namespace=backend._namespace)


def run(backend, command, *, job="a", gpus=1, grace_s=0.0, **options):
    launch = Launch(command=command, options=options)
    order = Order(key="1.0", job=job, gpus=gpus, launch=launch, grace_s=grace_s)
    backend.start(order)
    return order


def reaches(backend, job, state, within_s=300.0):
    def found():
        return next((r for r in backend.listing().jobs if r.job == job), None)

    eventually(lambda: (r := found()) is not None and r.state is state, within_s)
    return found()


def test_a_job_asked_to_leave_is_given_its_grace_before_the_signal(backend, tmp_path):
    saved, leave = tmp_path / "saved", tmp_path / "leave"
    # A process that only leaves by itself: what a training loop that asks should_stop() does.
    script = f"while [ ! -e {leave} ]; do sleep 0.1; done; sleep 2; printf saved > {saved}"
    run(backend, ("sh", "-c", script), stop="ask")
    reaches(backend, "a", RunState.RUNNING)
    backend.stop(Order(key="2.0", job="a", grace_s=600.0))
    assert backend.listing().jobs[0].state is RunState.RELEASING
    leave.touch()
    found = reaches(backend, "a", RunState.RELEASED)
    assert saved.read_text() == "saved"
    assert not found.stopped
    assert found.exit_code == 0


def test_a_job_that_does_not_leave_within_its_grace_is_stopped(backend):
    run(backend, ("sleep", "3000"), stop="ask")
    reaches(backend, "a", RunState.RUNNING)
    backend.stop(Order(key="2.0", job="a", grace_s=1.0))
    assert backend.listing().jobs[0].state is RunState.RELEASING
    assert reaches(backend, "a", RunState.RELEASED).stopped


def test_a_gang_larger_than_a_node_holds_a_placement_group_and_waits_for_all_of_it(backend):
    run(backend, ("sleep", "3000"), job="small", gpus=1)
    reaches(backend, "small", RunState.RUNNING)
    script = "import os, time; print(len(os.environ['EVALSTOP_PLACEMENT_GROUP'])); time.sleep(3000)"
    run(backend, ("python", "-c", script), job="gang", gpus=2 * GPUS_A_NODE)
    time.sleep(5)
    groups = backend._state.list_placement_groups(address=backend._address)
    assert {group.state for group in groups} <= {"PENDING"}
    backend.stop(Order(key="2.0", job="small"))
    reaches(backend, "small", RunState.RELEASED)

    def created():
        found = backend._state.list_placement_groups(address=backend._address)
        return any(group.state == "CREATED" for group in found)

    eventually(created, 300.0)
    backend.stop(Order(key="3.0", job="gang"))
    reaches(backend, "gang", RunState.RELEASED)
    eventually(lambda: not created(), 300.0)


def test_a_job_that_waits_for_gpus_is_queued_and_runs_when_they_are_released(backend):
    run(backend, ("sleep", "3000"), job="a", gpus=GPUS_A_NODE)
    run(backend, ("sleep", "3000"), job="b", gpus=GPUS_A_NODE)
    reaches(backend, "a", RunState.RUNNING)
    reaches(backend, "b", RunState.RUNNING)
    run(backend, ("sleep", "3000"), job="c", gpus=GPUS_A_NODE)
    assert reaches(backend, "c", RunState.QUEUED).gpus == GPUS_A_NODE
    backend.stop(Order(key="2.0", job="a"))
    reaches(backend, "a", RunState.RELEASED)
    reaches(backend, "c", RunState.RUNNING)


def test_the_environment_and_the_working_directory_reach_the_job(backend, tmp_path):
    out = tmp_path / "out"
    launch = Launch(
        command=("sh", "-c", f"echo $EVALSTOP_JOB_ID $(pwd) > {out}"),
        cwd=str(tmp_path),
        environment={"EVALSTOP_JOB_ID": "it is; a"},
    )
    backend.start(Order(key="1.0", job="it is; a", gpus=1, launch=launch))
    reaches(backend, "it is; a", RunState.RELEASED)
    assert out.read_text().split() == ["it", "is;", "a", str(tmp_path)]


def test_a_lost_node_takes_its_gpus_and_its_jobs_with_it(cluster, backend):
    node = cluster.add_node(num_cpus=1, num_gpus=8, object_store_memory=100 * 2**20)
    eventually(lambda: backend.listing().gpus == 2 * GPUS_A_NODE + 8, 300.0)
    run(backend, ("sleep", "3000"), gpus=8)
    reaches(backend, "a", RunState.RUNNING)
    cluster.remove_node(node)
    eventually(lambda: backend.listing().gpus == 2 * GPUS_A_NODE, 300.0)
    found = reaches(backend, "a", RunState.RELEASED, within_s=300.0)
    assert not found.stopped
    assert found.exit_code != 0


def test_an_ended_job_without_proof_is_quarantined(backend, monkeypatch):
    now = 0.0
    late = RayBackend(
        backend._address,
        namespace=backend._namespace,
        release_timeout_s=10.0,
        monotonic=lambda: now,
    )
    run(late, ("true",))
    actor = type("Actor", (), {"name": f"x{late._newest()['a'].submission_id}", "job_id": "1"})
    monkeypatch.setattr(late._state, "list_actors", lambda **_: [actor])
    total = late.listing().gpus
    reaches(late, "a", RunState.RELEASING)
    now = 11.0
    listing = late.listing()
    assert listing.jobs[0].state is RunState.QUARANTINED
    assert listing.gpus == total - 1
    assert len(listing.quarantined) == 1
    monkeypatch.undo()
    reaches(late, "a", RunState.RELEASED)
    assert late.listing().gpus == total


def test_a_cluster_that_does_not_answer_is_told_as_such():
    with pytest.raises(BackendError, match="no Ray dashboard answers"):
        RayBackend("http://127.0.0.1:9")


def test_a_job_without_a_command_is_refused(backend):
    with pytest.raises(BackendError, match="needs a command"):
        backend.start(Order(key="1.0", job="a", gpus=1))
