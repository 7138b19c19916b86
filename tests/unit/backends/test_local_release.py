"""A GPU is free only on proof, whatever the job did to its processes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from evalstop.backends.local import LocalBackend, supervisor
from evalstop.core.errors import BackendError
from evalstop.ports import Launch, Order, RunState
from evalstop.testing.backend import eventually

ESCAPE = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(300)
    os._exit(0)
time.sleep(float(sys.argv[2]))
"""


def report(backend, job="a"):
    return next(found for found in backend.listing().jobs if found.job == job)


def start(backend, *command, job="a", gpus=1, **launch):
    backend.start(
        Order(key=f"1.{job}", job=job, gpus=gpus, launch=Launch(command=command, **launch))
    )


def pid_in(path):
    eventually(lambda: path.exists() and path.read_text() != "", 180.0)
    return int(path.read_text())


def _not_free_while_it_lives(backend, process):
    """The state comes first: what has ended by the time of the second question frees its GPU."""
    state = report(backend).state
    assert state is RunState.RELEASING or supervisor.start_ticks(process) is None


@pytest.fixture
def backend(tmp_path):
    return LocalBackend(tmp_path / "runs", ["0", "1"])


def test_a_process_that_left_the_group_is_found_and_killed_before_the_gpu_is_free(
    backend, tmp_path
):
    start(backend, sys.executable, "-c", ESCAPE, str(tmp_path / "pid"), "300")
    escaped = pid_in(tmp_path / "pid")
    backend.stop(Order(key="2.0", job="a", grace_s=1.0))
    _not_free_while_it_lives(backend, escaped)  # it ignores SIGTERM
    eventually(lambda: report(backend).state is RunState.RELEASED, 180.0)
    assert supervisor.start_ticks(escaped) is None


def test_what_a_job_leaves_behind_when_it_ends_by_itself_is_cleared_away(backend, tmp_path):
    start(backend, sys.executable, "-c", ESCAPE, str(tmp_path / "pid"), "0.3")
    escaped = pid_in(tmp_path / "pid")
    eventually(lambda: report(backend).state is not RunState.RUNNING, 180.0)
    _not_free_while_it_lives(backend, escaped)
    with contextlib.suppress(ProcessLookupError):  # what is left over gets some seconds
        os.kill(escaped, signal.SIGKILL)
    eventually(lambda: report(backend).state is RunState.RELEASED, 180.0)
    assert report(backend).exit_code == 0


def test_a_killed_supervisor_is_replaced_and_the_orphans_still_end(backend, tmp_path):
    start(backend, sys.executable, "-c", ESCAPE, str(tmp_path / "pid"), "300")
    escaped = pid_in(tmp_path / "pid")
    run = backend._runs["a"]
    main = run.process()
    keeper = int(Path(f"/proc/{main}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.kill(keeper, signal.SIGKILL)
    assert report(backend).state is RunState.RUNNING
    backend.stop(Order(key="2.0", job="a", grace_s=0.2))
    eventually(lambda: report(backend).state is RunState.RELEASED, 180.0)
    assert report(backend).exit_code is None
    assert supervisor.start_ticks(escaped) is None
    assert supervisor.start_ticks(main) is None


def test_a_supervisor_killed_after_the_stop_was_asked_for_is_replaced_too(backend, tmp_path):
    start(backend, sys.executable, "-c", ESCAPE, str(tmp_path / "pid"), "300")
    escaped = pid_in(tmp_path / "pid")
    main = backend._runs["a"].process()
    keeper = int(Path(f"/proc/{main}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.kill(keeper, signal.SIGSTOP)  # it cannot act on the stop any more
    backend.stop(Order(key="2.0", job="a", grace_s=0.2))
    os.kill(keeper, signal.SIGKILL)
    eventually(lambda: report(backend).state is RunState.RELEASED, 180.0)
    assert supervisor.start_ticks(escaped) is None
    assert supervisor.start_ticks(main) is None


def test_memory_above_the_floor_keeps_a_gpu_and_ends_in_quarantine_until_it_falls(tmp_path):
    used = {"0": 900.0, "1": 0.0}
    backend = LocalBackend(
        tmp_path, ["0", "1"], memory_in_use=used.__getitem__, release_timeout_s=3.0
    )
    start(backend, "true")
    eventually(lambda: report(backend).state is RunState.QUARANTINED, 180.0)
    listing = backend.listing()
    assert (listing.gpus, listing.quarantined) == (1, ("0",))
    with pytest.raises(BackendError, match="asks for 2 GPUs, 1 are free"):
        start(backend, "true", job="b", gpus=2)
    used["0"] = 10.0
    assert report(backend).state is RunState.RELEASED
    assert backend.listing().gpus == 2


def test_two_supervisors_never_run_one_job(backend, tmp_path):
    mark = tmp_path / "started"
    start(backend, "sh", "-c", f"echo x >> {mark}; sleep 300")
    for _ in range(3):
        backend._supervise(backend._runs["a"])
    eventually(lambda: mark.exists() and mark.read_text() == "x\n", 180.0)
    backend.stop(Order(key="2.0", job="a", grace_s=1.0))
    eventually(lambda: report(backend).state is RunState.RELEASED, 180.0)
    backend._supervise(backend._runs["a"])
    time.sleep(0.2)
    assert mark.read_text() == "x\n"


def test_a_start_that_a_kill_cut_off_waits_to_be_sent_again_however_long_nobody_was_there(
    backend, tmp_path, monkeypatch
):
    monkeypatch.setattr(LocalBackend, "_supervise", lambda *_: None)  # killed before it began
    start(backend, "true")
    later = supervisor.boot_seconds() + 3600.0
    monkeypatch.setattr("evalstop.backends.local.backend.boot_seconds", lambda: later)
    reopened = LocalBackend(tmp_path / "runs", ["0", "1"])
    assert report(reopened).state is RunState.QUEUED
    later += 61.0
    eventually(lambda: report(reopened).state is RunState.RELEASED, 180.0)
    assert report(reopened).exit_code is None, "nobody sent it again"


def test_a_job_sees_its_own_devices_and_its_output_is_kept(backend):
    start(backend, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES $COLOUR", environment={"COLOUR": "red"})
    eventually(lambda: report(backend).state is RunState.RELEASED, 180.0)
    assert (backend.run_folder("a", 1) / "output.log").read_text() == "0 red\n"


@pytest.mark.parametrize(
    "launch",
    [
        {"command": ("/no/such/program", "--flag")},
        {"command": ("true",), "cwd": "/no/such/folder"},
        {"command": ("tr\0ue",)},
        {"command": ("true",), "environment": {"A=B": "x"}},
    ],
    ids=["no program", "no folder", "a NUL", "no variable"],
)
def test_what_cannot_be_run_says_why_and_tells_no_secret(backend, tmp_path, launch):
    launch["environment"] = {"WANDB_API_KEY": "hush"} | launch.get("environment", {})
    start(backend, *launch.pop("command"), **launch)
    eventually(lambda: report(backend).state is RunState.RELEASED, 180.0)
    assert report(backend).exit_code == 127
    (output,) = (tmp_path / "runs").glob("a/*/output.log")
    assert output.read_text().startswith("evalstop: cannot run ")
    assert "hush" not in output.read_text()
    assert "Traceback" not in output.read_text()


def test_a_job_that_names_no_folder_has_one_of_its_own_and_keeps_it(backend, tmp_path):
    script = "pwd; ls; touch made-$1 order.json exit.json"
    for attempt in (1, 2):
        launch = Launch(command=("sh", "-c", script, "sh", str(attempt)))
        key = f"{attempt}.a"
        backend.start(Order(key=key, job="a", gpus=1, launch=launch, attempt=attempt))
        eventually(lambda: report(backend).state is RunState.RELEASED, 180.0)
        assert report(backend).attempt == attempt
    first, second = (
        (backend.run_folder("a", attempt) / "output.log").read_text().split() for attempt in (1, 2)
    )
    assert first == [str(tmp_path / "runs/a/place/work")]
    assert second == [*first, "exit.json", "made-1", "order.json"]
    reopened = LocalBackend(tmp_path / "runs", ["0", "1"])
    assert report(reopened).attempt == 2


def test_nobody_else_may_read_what_a_job_was_started_with(backend, tmp_path):
    start(backend, "true", environment={"WANDB_API_KEY": "hush"})
    eventually(lambda: report(backend).state is RunState.RELEASED, 180.0)
    holding = [
        path
        for path in (tmp_path / "runs").rglob("*")
        if path.is_file() and b"hush" in path.read_bytes()
    ]
    assert holding
    for path in holding:
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_command_that_does_not_exist_fails_with_127_and_says_why(backend):
    start(backend, "/no/such/program")
    eventually(lambda: report(backend).state is RunState.RELEASED, 180.0)
    assert report(backend).exit_code == 127
    assert "No such file" in (backend.run_folder("a", 1) / "output.log").read_text()


@pytest.mark.parametrize("job", ["../../etc", "a/b", "ü 1", "x" * 60])
def test_a_jobs_name_cannot_leave_the_folder(backend, tmp_path, job):
    start(backend, "true", job=job)
    eventually(lambda: report(backend, job).state is RunState.RELEASED, 180.0)
    assert backend.run_folder(job, 1).resolve().parent.parent == tmp_path / "runs"


@pytest.mark.parametrize("job", ["", ".", ".."])
def test_names_that_are_folders_are_refused(backend, job):
    with pytest.raises(BackendError, match="cannot be called"):
        start(backend, "true", job=job)


def test_the_save_signal_reaches_the_first_process(backend, tmp_path):
    mark = tmp_path / "saved"
    script = f"trap 'touch {mark}' USR1; echo ready; while :; do sleep 0.05; done"
    start(backend, "sh", "-c", script, save_signal="SIGUSR1")
    log = backend.run_folder("a", 1) / "output.log"
    eventually(lambda: log.exists() and log.read_text() == "ready\n", 180.0)
    backend.request_save(Order(key="2.0", job="a"))
    eventually(mark.exists, 180.0)
    backend.stop(Order(key="3.0", job="a", grace_s=1.0))
    eventually(lambda: report(backend).state is RunState.RELEASED, 180.0)
