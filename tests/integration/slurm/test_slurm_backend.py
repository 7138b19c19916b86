"""The Slurm backend against a real Slurm: two slurmd, eight fake GPUs each."""

from __future__ import annotations

import os
import pwd
import stat
import time

import msgspec
import pytest

from evalstop.backends.slurm import SlurmBackend, SlurmClient, Tenants
from evalstop.core.errors import BackendError
from evalstop.core.job import JobSpec
from evalstop.ports import CanAnnotate, CanHold, CanPreempt, CanSubmit, Launch, Order, RunState
from evalstop.testing import FakeClock
from evalstop.testing.backend import BackendContract, eventually

OPTED_IN = "--comment=evalstop:metric=acc,direction=max,job_type=rlhf"
SLEEP = "#!/bin/sh\nexec sleep 300\n"


@pytest.fixture
def client(slurm):
    return SlurmClient(environment=slurm.environment, time_limit_s=60)


@pytest.fixture
def backend(client):
    tenants = Tenants(
        own_user=pwd.getpwuid(os.getuid()).pw_name
    )  # as for jobs handed in through evalstop
    return without_old_jobs(SlurmBackend(client, tenants=tenants))


def without_old_jobs(backend):
    """Forget what earlier tests left in Slurm's memory."""
    for found in backend.listing().jobs:
        backend.forget(found.job)
    return backend


def report(backend, job):
    return next((found for found in backend.listing().jobs if found.job == job), None)


def reaches(backend, job, state, within_s=300.0):
    def there():
        found = report(backend, job)
        return found is not None and found.state is state

    eventually(there, within_s)
    return report(backend, job)


class Named:
    """The real backend, with the names of the contract suite in place of Slurm's numbers."""

    def __init__(self, client):
        self.client = client
        self.real = SlurmBackend(client, undo_window_s=0)
        self.ids = {}

    def reopened(self):
        other = Named(self.client)
        other.ids = self.ids
        return other

    def start(self, order):
        if order.job not in self.ids:
            job = JobSpec(
                id=order.job, gpus=order.gpus, labels={"metric": "acc", "direction": "max"}
            )
            launch = msgspec.structs.replace(order.launch, options={"output": "/dev/null"})
            self.ids[order.job] = self.real.submit(job, launch)

    def stop(self, order):
        if order.job in self.ids:
            number = self.ids[order.job]
            self.real.stop(Order(key=order.key, job=number, grace_s=order.grace_s))

    def forget(self, job):
        self.real.forget(self.ids[job])

    def listing(self):
        listing = self.real.listing()
        names = {number: name for name, number in self.ids.items()}
        jobs = tuple(
            type(job)(
                job=names[job.job],
                state=job.state,
                attempt=job.attempt,
                gpus=job.gpus,
                devices=job.devices,
                exit_code=job.exit_code,
            )
            for job in listing.jobs
            if job.job in names
        )
        return type(listing)(jobs=jobs, gpus=listing.gpus, quarantined=listing.quarantined)


class TestSlurmKeepsTheContract(BackendContract):
    within_s = 300.0

    @pytest.fixture(autouse=True)
    def _cluster(self, client):
        self.client = client

    def backend(self):
        return Named(self.client)

    def reopened(self, backend):
        return backend.reopened()


def test_it_has_the_capabilities_of_attach_mode(backend):
    assert isinstance(backend, CanSubmit)
    assert isinstance(backend, CanHold)
    assert isinstance(backend, CanAnnotate)
    assert not isinstance(backend, CanPreempt)
    with pytest.raises(BackendError, match="Slurm places jobs itself"):
        backend.start(Order(key="1.0", job="1"))


def test_only_jobs_that_opted_in_are_listed(slurm, backend):
    slurm.submit(SLEEP, "--gres=gpu:1")
    ours = slurm.submit(SLEEP, "--gres=gpu:h100:3", OPTED_IN, "--job-name=grpo")
    found = reaches(backend, ours, RunState.RUNNING)
    listing = backend.listing()
    assert [job.job for job in listing.jobs] == [ours]
    assert listing.gpus == 16
    assert len(found.devices) == found.gpus == 3
    assert found.spec.job_type == "rlhf"
    assert found.spec.tenant == "root"
    assert found.spec.labels["metric"] == "acc"
    assert found.spec.labels["direction"] == "max"
    assert found.spec.labels["name"] == "grpo"


def test_gpus_are_counted_however_they_were_asked_for(slurm, backend):
    asked = {
        slurm.submit(SLEEP, OPTED_IN, *options): gpus
        for options, gpus in [
            (["--gres=gpu:1"], 1),
            (["--gpus=h100:3"], 3),
            (["--gpus-per-node=2", "-N2"], 4),
            (["--gpus-per-task=1", "-n2"], 2),
        ]
    }
    waiting = {job.job: job.gpus for job in backend.listing().jobs}
    assert waiting == asked
    for job in asked:
        reaches(backend, job, RunState.RUNNING)
    assert {job.job: job.gpus for job in backend.listing().jobs} == asked
    devices = [name for job in backend.listing().jobs for name in job.devices]
    assert len(devices) == len(set(devices)) == 10


def test_both_listings_say_the_same(slurm, client):
    other = SlurmClient(environment=slurm.environment, listing="json")
    ours = slurm.submit(SLEEP, "--gres=gpu:h100:2", "-N2", OPTED_IN, "--job-name=a b|c")
    done = slurm.submit("#!/bin/sh\nexit 3\n", "--gres=gpu:1", OPTED_IN)
    slurm.await_state(done, "FAILED")
    slurm.await_state(ours, "RUNNING")
    text = {job.id: job for job in client.jobs()}
    as_json = {job.id: job for job in other.jobs()}
    assert {ours, done} <= text.keys()
    for job in (ours, done):
        assert text[job] == as_json[job]


def test_each_task_of_an_array_is_a_job(slurm, backend):
    array = slurm.submit(SLEEP, OPTED_IN, "--gres=gpu:2", "--array=1-2")
    names = {f"{array}_1", f"{array}_2"}
    assert {job.job for job in backend.listing().jobs} == names
    for name in names:
        reaches(backend, name, RunState.RUNNING)
    backend.stop(Order(key="1.0", job=f"{array}_2", grace_s=1.0))
    reaches(backend, f"{array}_2", RunState.RELEASED)
    assert report(backend, f"{array}_1").state is RunState.RUNNING


def test_a_stop_gives_the_gpus_to_a_waiting_job_and_says_why(slurm, backend, client):
    first = slurm.submit(SLEEP, OPTED_IN, "--gres=gpu:8")
    second = slurm.submit(SLEEP, OPTED_IN, "--gres=gpu:8")
    slurm.await_state(first, "RUNNING")
    slurm.await_state(second, "RUNNING")
    waiting = slurm.submit(SLEEP, OPTED_IN, "--gres=gpu:8")
    assert report(backend, waiting).state is RunState.QUEUED
    note = 'stopped: 3 declines, best 0.61 at step 15 "quoted" a=b'
    backend.stop(Order(key="7.0", job=first, note=note))
    reaches(backend, first, RunState.RELEASED)
    reaches(backend, waiting, RunState.RUNNING)
    assert report(backend, second).state is RunState.RUNNING
    record = next(job for job in client.jobs() if job.id == first)
    assert record.admin_comment == f"evalstop: stopped: {note}"
    assert backend.listing().gpus == 16


def test_a_job_may_save_within_its_grace(slurm, client):
    backend = SlurmBackend(client, undo_window_s=0)
    saved = slurm.folder / "jobs/saved-in-grace"
    ready = slurm.folder / "jobs/ready-to-save-in-grace"
    script = (
        f"#!/bin/bash\ntrap 'sleep 1; echo ok > {saved}; exit 0' TERM\ntouch {ready}\n"
        "while :; do sleep 0.1; done\n"
    )
    job = slurm.submit(script, OPTED_IN, "--gres=gpu:1")
    reaches(backend, job, RunState.RUNNING)
    eventually(ready.exists, 300)
    backend.stop(Order(key="1.0", job=job, grace_s=120.0))
    found = reaches(backend, job, RunState.RELEASED)
    assert saved.read_text() == "ok\n"
    assert found.exit_code == 0


def test_the_reversible_stop_frees_the_gpus_and_is_undone(slurm, client, backend):
    job = slurm.submit(SLEEP, OPTED_IN, "--gres=gpu:8", "--requeue")
    reaches(backend, job, RunState.RUNNING)
    backend.stop(Order(key="1.0", job=job, note="3 declines"))
    found = reaches(backend, job, RunState.RELEASED)
    assert (found.attempt, found.devices) == (1, ())
    assert "held" in found.reason
    again = SlurmBackend(client)
    reaches(again, job, RunState.RELEASED)  # known by what stands in Slurm's record
    again.forget(job)
    time.sleep(3)
    assert report(again, job) is None
    again.unhold(Order(key="2.0", job=job, note="by ann"))
    assert reaches(again, job, RunState.RUNNING, within_s=300).attempt == 2


def test_what_was_not_undone_in_time_is_cancelled(slurm, client):
    backend = SlurmBackend(client, undo_window_s=0.1)
    job = slurm.submit(SLEEP, OPTED_IN, "--gres=gpu:8", "--requeue")
    reaches(backend, job, RunState.RUNNING)
    backend.stop(Order(key="1.0", job=job))
    eventually(lambda: backend.listing() and slurm.state(job) == "CANCELLED", 300)


def test_a_save_is_asked_of_the_batch_script_alone(slurm, backend):
    saved = slurm.folder / "jobs/saved-on-signal"
    ready = slurm.folder / "jobs/ready-to-save-on-signal"
    trap = f"trap 'echo ok > {saved}' USR1"
    script = f"#!/bin/bash\n{trap}\ntouch {ready}\nwhile :; do sleep 0.1; done\n"
    job = slurm.submit(script, OPTED_IN + ",save_signal=USR1", "--gres=gpu:1")
    reaches(backend, job, RunState.RUNNING)
    eventually(ready.exists, 300)
    backend.request_save(Order(key="1.0", job=job))
    eventually(saved.exists, 300)
    assert report(backend, job).state is RunState.RUNNING


def test_submit_is_a_thin_sbatch(slurm, backend):
    out = slurm.folder / "jobs/told"
    launch = Launch(
        command=("sh", "-c", f'echo "$EVALSTOP_JOB_ID $NAME" > {out}; sleep 300'),
        cwd=str(slurm.folder / "jobs"),
        environment={"NAME": "it's; $(odd)"},
        checkpoints="runs/%j",
        options={"partition": "gpu", "time": "10"},
    )
    job = JobSpec(
        id="x",
        tenant="amber",
        job_type="dpo",
        gpus=2,
        labels={"metric": "eval/acc", "direction": "max", "rule": "scan:alpha=0.01,min_evals=4"},
    )
    number = backend.submit(job, launch)
    found = reaches(backend, number, RunState.RUNNING)
    eventually(lambda: out.exists() and out.read_text(), 300)
    assert out.read_text() == f"{number} it's; $(odd)\n"
    assert (found.spec.tenant, found.spec.job_type, found.gpus) == ("amber", "dpo", 2)
    assert found.spec.labels["rule"] == "scan:alpha=0.01,min_evals=4"
    assert found.launch.checkpoints == f"{slurm.folder}/jobs/runs/{number}"


def test_a_kill_of_the_controller_is_survived(slurm):
    clock = FakeClock()
    client = SlurmClient(
        environment=slurm.environment, time_limit_s=60.0, monotonic=clock.monotonic
    )
    backend = SlurmBackend(client)
    job = slurm.submit(SLEEP, OPTED_IN, "--gres=gpu:4")
    before = reaches(backend, job, RunState.RUNNING)
    slurm.await_saved(job)
    slurm.end_controller(kill=True)
    with pytest.raises(BackendError):
        backend.listing()
    with pytest.raises(BackendError, match="asked again in 1 s"):
        backend.listing()  # without asking: the controller is given time
    slurm.start_controller()

    def as_before():
        clock.advance(60.0)  # whatever pause there was
        try:
            return report(backend, job) == before
        except BackendError:
            return False

    eventually(as_before, 300)  # nodes sign on again one by one
    backend.stop(Order(key="1.0", job=job, grace_s=2.0))
    reaches(backend, job, RunState.RELEASED)


def test_a_stop_lost_with_the_controller_is_sent_again(slurm):
    backend = SlurmBackend(SlurmClient(environment=slurm.environment, time_limit_s=60.0))
    job = slurm.submit(SLEEP, OPTED_IN, "--gres=gpu:4")
    reaches(backend, job, RunState.RUNNING)
    slurm.end_controller()
    order = Order(key="1.0", job=job, grace_s=2.0)
    with pytest.raises(BackendError):
        backend.stop(order)
    slurm.start_controller()
    eventually(lambda: _taken(backend, order), 300)
    eventually(lambda: _is_released(backend, job), 300)


def _taken(backend, order):
    try:
        backend.stop(order)
    except BackendError:  # a controller that has just come back may not know its nodes yet
        return False
    return True


def _is_released(backend, job):
    try:
        found = report(backend, job)
    except BackendError:
        return False
    return found is not None and found.state is RunState.RELEASED


def test_reading_changes_nothing(slurm, tmp_path):
    """The spy of observe mode: every Slurm command that is run leaves its name behind."""
    log = tmp_path / "commands"
    for name in ("squeue", "scontrol", "scancel", "sbatch", "sinfo"):
        spy = tmp_path / name
        real = f'PATH="{slurm.environment["PATH"]}" exec {name} "$@"'
        note = f"""echo "$(echo {name} "$@" | tr '\\n' ' ')" >> {log}"""
        spy.write_text(f"#!/bin/sh\n{note}\n{real}\n")
        spy.chmod(spy.stat().st_mode | stat.S_IXUSR)
    environment = {
        **slurm.environment,
        "PATH": f"{tmp_path}{os.pathsep}{slurm.environment['PATH']}",
    }
    backend = without_old_jobs(SlurmBackend(SlurmClient(environment=environment)))
    job = slurm.submit(SLEEP, OPTED_IN, "--gres=gpu:8")
    next_job = slurm.submit(SLEEP, OPTED_IN, "--gres=gpu:8")
    reaches(backend, job, RunState.RUNNING)
    slurm.run("scancel", job)
    reaches(backend, job, RunState.RELEASED)
    reaches(backend, next_job, RunState.RUNNING)
    backend.forget(job)
    backend.listing()
    commands = log.read_text().rstrip("\n").split("\n")
    assert commands
    for line in commands:
        words = line.split()
        assert words[0] in {"squeue", "sinfo"} or line.startswith("scontrol -o -d show job")
