"""R24: a GPU is in one place at every event, and free on proof only; R21: one publishes, all see.

The proof itself, process by process, is held by tests/unit/backends/test_local_release.py and the
contract of backends; that the sum holds over kills by tests/unit/service/test_kill_points.py.
"""

from __future__ import annotations

import os
import signal
import sys

import pytest
from rule_platform import eventually

from evalstop.backends.local.supervisor import start_ticks

FALLING = (0.5, 0.9, 0.8, 0.7)


def gpus_add_up(platform):
    gpus = platform.get("/cluster")["gpus"]
    return gpus["free"] + sum(gpus["held"].values()) == gpus["total"]


def alive(pid):
    return start_ticks(pid) is not None


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
time.sleep(1000)
"""


@pytest.mark.parametrize("grace_s", [0, 0.5])
def test_gpus_of_a_stopped_job_come_back_only_when_all_its_processes_are_gone(
    platform, job, tmp_path, grace_s
):
    """It ignores SIGTERM, and a child of it has left its process group."""
    pids = tmp_path / "pids"
    command = [sys.executable, "-c", STUBBORN, str(pids)]
    platform.submit(job, command=command, gpus=3, grace_s=grace_s)
    platform.until(job, "running")
    eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    processes = [int(pid) for pid in pids.read_text().split()]
    assert all(map(alive, processes))
    platform.report(job, *FALLING)
    while platform.get(f"/jobs/{job}")["phase"] != "ended":
        assert gpus_add_up(platform)
    assert not any(map(alive, processes))
    assert gpus_add_up(platform)
    assert platform.get(f"/jobs/{job}")["held_gpus"] == 0


def test_the_sum_holds_while_jobs_come_go_fail_and_are_stopped(platform, job):
    for index, command in enumerate((["true"], ["false"], ["sleep", "0.2"], ["sleep", "1000"])):
        platform.submit(f"{job}-{index}", command=command, gpus=index + 1)
        assert gpus_add_up(platform)
    platform.until(f"{job}-3", "running")
    platform.report(f"{job}-3", *FALLING)
    for index, outcome in enumerate(("completed", "failed", "completed", "stopped_by_policy")):
        assert platform.until(f"{job}-{index}", "ended")["outcome"] == outcome
        assert gpus_add_up(platform)


def test_a_job_that_is_killed_from_outside_gives_its_gpus_back(platform, job, tmp_path):
    pid = tmp_path / "pid"
    platform.submit(job, command=["sh", "-c", f"echo $$ > {pid}; exec sleep 1000"], gpus=2)
    platform.until(job, "running")
    eventually(lambda: pid.exists() and pid.read_text().strip())
    os.kill(int(pid.read_text()), signal.SIGKILL)
    assert platform.until(job, "ended")["outcome"] == "failed"
    assert gpus_add_up(platform)


def test_every_rank_that_asks_hears_the_same_stop(platform, job):
    """R21: the stop is the log's, published once; ranks read it, they do not judge.

    That four processes leave at one step: tests/extras/trl/test_ranks_and_signals.py.
    """
    platform.submit(job)
    platform.until(job, "running")
    platform.report(job, *FALLING)
    heard = {platform.report(job, 0.95, first=90 + rank)["stop"] for rank in range(4)}
    assert heard == {True}
    shown = platform.get(f"/jobs/{job}")["stop"]
    assert (shown["best_step"], shown["author"]) == (2, "policy")
    decisions = platform.http.get(f"/jobs/{job}/explain").json()["decisions"]
    assert [one["kind"] for one in decisions] == ["stop"]
