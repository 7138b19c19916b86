"""Slurm's commands when they hang, fail and lie: a client never waits longer than its limit."""

from __future__ import annotations

import os
import random

import pytest

from evalstop.backends.local.supervisor import start_ticks
from evalstop.backends.slurm import SlurmBackend, SlurmClient
from evalstop.backends.slurm.client import checked
from evalstop.backends.slurm.records import END, FIELDS, SEPARATOR
from evalstop.core.errors import BackendError, InputError
from evalstop.ports import Order, RunState
from evalstop.testing import FakeClock
from evalstop.testing.backend import eventually


@pytest.fixture
def commands(tmp_path):
    """Write a shell script in place of each Slurm command; return how."""

    def write(**scripts):
        for name, script in scripts.items():
            path = tmp_path / name
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
        return {"PATH": f"{tmp_path}{os.pathsep}/usr/bin:/bin"}

    return write


def row(**values):
    fields = dict.fromkeys(FIELDS, "") | {"NumNodes": "1", "NumTasks": "1", "RestartCnt": "0"}
    fields |= {"Comment": "evalstop:metric=a,direction=max", "tres-per-node": "gres:gpu:4"}
    return SEPARATOR.join((fields | values).values()) + END + "\n"


def test_a_hanging_command_is_killed_with_its_children(commands, tmp_path):
    pid = tmp_path / "pid"
    environment = commands(squeue=f"sleep 600 & echo $! > {pid}; wait")
    with pytest.raises(BackendError, match=r"did not answer within 5 s"):
        SlurmClient(environment=environment, time_limit_s=5.0).jobs()
    child = int(pid.read_text())
    eventually(lambda: start_ticks(child) is None, 180)


def test_reads_pause_after_failures_twice_as_long_each_time(commands):
    clock = FakeClock()
    client = SlurmClient(
        environment=commands(squeue="echo no controller >&2; exit 1"), monotonic=clock.monotonic
    )
    for pause in (1, 2, 4, 8, 16, 32, 60, 60):
        with pytest.raises(BackendError, match="no controller"):
            client.jobs()
        with pytest.raises(BackendError, match=f"asked again in {pause} s"):
            client.nodes()
        clock.advance(pause)
    commands(squeue="exit 0")
    assert client.jobs() == []
    assert client.jobs() == []


def test_orders_do_not_wait_for_the_pause(commands, tmp_path):
    sent = tmp_path / "sent"
    environment = commands(squeue="exit 1", scancel=f"echo $1 >> {sent}")
    client = SlurmClient(environment=environment)
    with pytest.raises(BackendError):
        client.jobs()
    assert client.cancel("5")
    assert sent.read_text() == "5\n"


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("squeue", lambda client: client.jobs()),
        ("sinfo", lambda client: client.nodes()),
        ("scancel", lambda client: client.cancel("5")),
        ("scontrol", lambda client: client.requeue_hold("5")),
    ],
)
@pytest.mark.parametrize(
    "words",
    [
        "slurm_load_jobs error: Socket timed out on send/recv operation",
        "Unexpected message received for job 5",
    ],
)
def test_a_dropped_answer_is_asked_for_again_once(commands, tmp_path, name, ask, words):
    said = tmp_path / "said"
    dropped = f"echo x >> {said}; echo '{words}' >&2"
    environment = commands(**{name: f"if [ -e {said} ]; then exit 0; fi; {dropped}; exit 1"})
    ask(SlurmClient(environment=environment))
    commands(**{name: f"{dropped}; exit 1"})
    with pytest.raises(BackendError, match=words):
        ask(SlurmClient(environment=environment))
    assert said.read_text() == 3 * "x\n"


def test_a_job_is_handed_in_once_whatever_the_answer(commands, tmp_path):
    said = tmp_path / "said"
    script = f"echo x >> {said}; echo 'Socket timed out on send/recv operation' >&2; exit 1"
    with pytest.raises(BackendError, match="Socket timed out"):
        SlurmClient(environment=commands(sbatch=script)).submit("#!/bin/sh\n", [])
    assert said.read_text() == "x\n"


def test_a_missing_command_is_explained(tmp_path):
    client = SlurmClient(environment={"PATH": str(tmp_path)})
    with pytest.raises(BackendError, match="squeue cannot be run"):
        client.jobs()


def test_garbage_is_not_a_job(commands, tmp_path):
    (tmp_path / "garbage").write_bytes(random.Random(1).randbytes(5000))
    client = SlurmClient(environment=commands(squeue=f"cat {tmp_path}/garbage"))
    assert client.jobs() == []


@pytest.mark.parametrize(
    "words",
    [
        "scancel: error: Kill job error on job id 5: Invalid job id specified",
        "scancel: error: Kill job error on job id 5: Job/step already completing or completed",
        "Job has already finished for job 5",
    ],
)
def test_an_order_for_a_job_that_is_over_is_no_error(commands, words):
    client = SlurmClient(environment=commands(scancel=f"echo '{words}' >&2; exit 1"))
    assert client.cancel("5") is False


def test_another_refusal_is_an_error(commands):
    environment = commands(scancel="echo 'Access/permission denied' >&2; exit 1")
    with pytest.raises(BackendError, match="permission denied"):
        SlurmClient(environment=environment).cancel("5")


@pytest.mark.parametrize("job", ["", "-1", "1;id", "1 2", "--help", "1_", "a", "1\n", "../1"])
def test_only_a_job_id_gets_into_a_command(job):
    with pytest.raises(InputError, match="Slurm job id"):
        checked(job)


@pytest.mark.parametrize("name", ["", "usr1", "USR1; id", "-9", "9"])
def test_only_a_signal_gets_into_a_command(commands, name):
    with pytest.raises(InputError, match="name of a signal"):
        SlurmClient(environment=commands(scancel="exit 0")).signal("5", name)


class Cluster:
    """Slurm's commands as files whose content the test changes."""

    def __init__(self, commands, tmp_path):
        self.folder = tmp_path
        self.sent = tmp_path / "sent"
        self.sent.touch()
        record = f'echo "$(basename $0) $*" >> {self.sent}'
        self.environment = commands(
            squeue=f"cat {tmp_path}/jobs",
            sinfo=f"cat {tmp_path}/nodes",
            scancel=record,
            scontrol=(
                f'case "$*" in *show*) cat {tmp_path}/detail-$5 2>/dev/null && exit 0\n'
                f'[ -n "$5" ] || {{ cat {tmp_path}/detail-* ; exit 0; }}\n'
                "echo 'Invalid job id specified' >&2; exit 1;; "
                f"*) {record};; esac"
            ),
        )
        self.clock = FakeClock()
        client = SlurmClient(environment=self.environment, monotonic=self.clock.monotonic)
        self.backend = SlurmBackend(
            client, release_limit_s=60, now=self.clock.now, monotonic=self.clock.monotonic
        )
        self.nodes(n1="gpu:8(IDX:0-7)", n2="gpu:0(IDX:N/A)")

    def jobs(self, *rows):
        (self.folder / "jobs").write_text("".join(rows))

    def nodes(self, state="mixed", **used):
        lines = [SEPARATOR.join([name, "gpu:8", each, state]) + END for name, each in used.items()]
        (self.folder / "nodes").write_text("\n".join(lines))

    def detail(self, job, state="RUNNING", gres="", code="0:0", requeue=0):
        on = f" Nodes=n1 CPU_IDs=0 Mem=0 GRES={gres}" if gres else ""
        (self.folder / f"detail-{job}").write_text(
            f"JobId={job} JobState={state} Requeue={requeue} ExitCode={code}{on} Command=/x\n"
        )

    def report(self, job="5"):
        return next((found for found in self.backend.listing().jobs if found.job == job), None)

    def lines(self):
        return self.sent.read_text().splitlines()


@pytest.fixture
def cluster(commands, tmp_path):
    cluster = Cluster(commands, tmp_path)
    cluster.detail("5", gres="gpu:4(IDX:0-3)")
    cluster.jobs(row(JobArrayID="5", State="RUNNING", NodeList="n1"))
    assert cluster.report().state is RunState.RUNNING
    return cluster


def test_gpus_in_use_by_nobody_we_know_are_not_free(cluster):
    cluster.jobs(row(JobArrayID="5", State="CANCELLED", NodeList="n1"))
    cluster.detail("5", state="CANCELLED", code="0:15")
    assert cluster.report().state is RunState.RELEASING
    cluster.clock.advance(61)
    found = cluster.report()
    assert found.state is RunState.QUARANTINED
    assert found.devices == ("n1:gpu0", "n1:gpu1", "n1:gpu2", "n1:gpu3")
    listing = cluster.backend.listing()
    assert (listing.gpus, listing.quarantined) == (12, found.devices)
    cluster.nodes(n1="gpu:4(IDX:4-7)", n2="gpu:0")
    assert cluster.report().state is RunState.RELEASED
    assert cluster.backend.listing().gpus == 16


def test_gpus_that_another_job_was_given_are_free_of_ours(cluster):
    cluster.jobs(row(JobArrayID="5", State="CANCELLED", NodeList="n1"))
    cluster.detail("5", state="CANCELLED", code="0:15")
    assert cluster.report().state is RunState.RELEASING
    cluster.detail("6", gres="gpu:8(IDX:0-7)")
    assert cluster.report().state is RunState.RELEASED


def test_completing_is_not_released_whatever_the_node_says(cluster):
    cluster.jobs(row(JobArrayID="5", State="COMPLETING", NodeList="n1"))
    cluster.nodes(n1="gpu:0", n2="gpu:0")
    assert cluster.report().state is RunState.RELEASING


@pytest.mark.parametrize("state", ["down", "draining", "idle*"])
def test_a_node_out_of_service_proves_nothing(cluster, state):
    cluster.jobs(row(JobArrayID="5", State="NODE_FAIL", NodeList="n1"))
    cluster.nodes(n1="gpu:0", n2="gpu:0", state=state)
    assert cluster.report().state is RunState.RELEASING


def test_a_job_gone_from_slurms_memory_has_ended(cluster):
    cluster.jobs()
    (cluster.folder / "detail-5").unlink()
    cluster.nodes(n1="gpu:0", n2="gpu:0")
    found = cluster.report()
    assert found.state is RunState.RELEASED
    assert found.exit_code is None
    assert "gone" in found.reason


def test_a_job_missing_from_one_listing_has_not_ended(cluster):
    cluster.jobs()
    assert cluster.report().state is RunState.RUNNING


def test_a_stop_signals_waits_its_grace_and_cancels_once(cluster):
    order = Order(key="1.0", job="5", grace_s=10.0, note="line one\nline two")
    cluster.backend.stop(order)
    cluster.backend.stop(order)
    wanted = [
        "scontrol update JobId=5 AdminComment=evalstop: stopped: line one line two",
        "scancel --signal=TERM --full 5",
    ]
    assert cluster.lines() == wanted
    cluster.clock.advance(9)
    cluster.report()
    assert cluster.lines() == wanted
    cluster.clock.advance(2)
    cluster.report()
    cluster.report()
    cluster.backend.stop(order)
    assert cluster.lines() == [*wanted, "scancel 5"]


def test_a_job_that_goes_within_its_grace_is_not_cancelled(cluster):
    cluster.backend.stop(Order(key="1.0", job="5", grace_s=10.0))
    cluster.jobs(row(JobArrayID="5", State="COMPLETED", NodeList="n1"))
    cluster.detail("5", state="COMPLETED")
    cluster.nodes(n1="gpu:0", n2="gpu:0")
    cluster.clock.advance(20)
    found = cluster.report()
    assert (found.state, found.exit_code) == (RunState.RELEASED, 0)
    assert cluster.lines()[1:] == ["scancel --signal=TERM --full 5"]


def test_without_grace_it_is_cancelled_at_once(cluster):
    cluster.backend.stop(Order(key="1.0", job="5", grace_s=0.0))
    assert cluster.lines()[1:] == ["scancel 5"]


def test_a_site_that_forbids_admin_comments_does_not_stop_a_stop(cluster, commands, caplog):
    commands(scontrol="echo 'Access/permission denied' >&2; exit 1")
    cluster.backend.stop(Order(key="1.0", job="5", grace_s=0.0, note="why"))
    assert cluster.lines() == ["scancel 5"]
    assert "AdminComment could not be written" in caplog.text


def test_a_requeued_run_is_told_from_the_one_before(cluster):
    cluster.jobs(row(JobArrayID="5", State="PENDING", RestartCnt="1", Reason="BeginTime"))
    found = cluster.report()
    assert (found.state, found.attempt, found.devices) == (RunState.QUEUED, 1, ())
    cluster.detail("5", gres="gpu:4(IDX:4-7)")
    cluster.jobs(row(JobArrayID="5", State="RUNNING", RestartCnt="1", NodeList="n1"))
    found = cluster.report()
    assert (found.state, found.attempt) == (RunState.RUNNING, 2)
    assert found.devices == ("n1:gpu4", "n1:gpu5", "n1:gpu6", "n1:gpu7")


def test_a_job_cancelled_while_it_waited_never_ran(cluster):
    cluster.jobs(row(JobArrayID="8", State="PENDING"))
    assert cluster.report("8").attempt == 0
    cluster.detail("8", state="CANCELLED")
    cluster.jobs(row(JobArrayID="8", State="CANCELLED"))
    found = cluster.report("8")
    assert (found.state, found.attempt) == (RunState.RELEASED, 0)


def test_a_job_without_gpus_is_not_ours(cluster):
    cluster.jobs(row(JobArrayID="9", State="PENDING").replace("gres:gpu:4", ""))
    assert cluster.report("9") is None


def test_forgotten_jobs_come_back_only_under_a_new_life(cluster):
    cluster.nodes(n1="gpu:0", n2="gpu:0")
    cluster.jobs(row(JobArrayID="5", State="COMPLETED", NodeList="n1"))
    assert cluster.report().state is RunState.RELEASED
    cluster.backend.forget("5")
    assert cluster.report() is None
    cluster.jobs()
    assert cluster.report() is None
    cluster.jobs(row(JobArrayID="5", State="PENDING"))
    assert cluster.report().state is RunState.QUEUED


HELD = {"State": "PENDING", "Reason": "job requeued in held state", "RestartCnt": "1"}
STOPPED = {"admin_comment": "evalstop: stopped: why"}


@pytest.fixture
def requeueable(cluster):
    cluster.detail("5", gres="gpu:4(IDX:0-3)", requeue=1)
    cluster.backend._jobs.clear()
    assert cluster.report().state is RunState.RUNNING
    return cluster


def test_a_stop_is_reversible_where_the_job_may_be_requeued(requeueable):
    cluster = requeueable
    order = Order(key="1.0", job="5", note="why")
    cluster.backend.stop(order)
    cluster.backend.stop(order)
    assert cluster.lines() == [
        "scontrol update JobId=5 AdminComment=evalstop: stopped: why",
        "scontrol requeuehold 5",
    ]
    cluster.jobs(row(JobArrayID="5", State="COMPLETING", RestartCnt="1", NodeList="n1"))
    assert cluster.report().state is RunState.RELEASING
    cluster.jobs(row(JobArrayID="5", **HELD, **STOPPED))
    assert cluster.report().state is RunState.RELEASING  # the node still has its devices in use
    cluster.nodes(n1="gpu:0", n2="gpu:0")
    found = cluster.report()
    assert (found.state, found.attempt) == (RunState.RELEASED, 1)


def test_a_held_stop_is_known_after_a_restart_and_forgotten_once(requeueable):
    cluster = requeueable
    cluster.nodes(n1="gpu:0", n2="gpu:0")
    cluster.jobs(row(JobArrayID="5", **HELD, **STOPPED))
    cluster.backend._jobs.clear()
    assert cluster.report().state is RunState.RELEASED
    cluster.backend.forget("5")
    assert cluster.report() is None
    cluster.backend.unhold(Order(key="2.0", job="5", note="by ann"))
    assert cluster.lines() == [
        "scontrol update JobId=5 AdminComment=evalstop: undone: by ann",
        "scontrol release 5",
    ]
    cluster.jobs(row(JobArrayID="5", State="RUNNING", RestartCnt="1", NodeList="n1"))
    found = cluster.report()
    assert (found.state, found.attempt) == (RunState.RUNNING, 2)


def test_a_stop_sent_again_after_a_restart_finds_the_job_held(requeueable):
    cluster = requeueable
    cluster.jobs(row(JobArrayID="5", **HELD))  # the site allowed no AdminComment
    cluster.nodes(n1="gpu:0", n2="gpu:0")
    cluster.backend._jobs.clear()
    assert cluster.report().state is RunState.QUEUED
    cluster.backend.stop(Order(key="1.0", job="5"))
    assert cluster.report().state is RunState.RELEASED
    assert "scontrol requeuehold 5" not in cluster.lines()


ENDING = {"State": "COMPLETING", "RestartCnt": "1", "NodeList": "n1"}


@pytest.mark.parametrize("seen", [True, False], ids=["after a listing", "before any"])
@pytest.mark.parametrize("signed", [STOPPED, {}], ids=["signed", "no AdminComment"])
@pytest.mark.parametrize("grace_s", [0.0, 30.0])
def test_a_stop_sent_again_while_the_run_ends_sends_nothing(requeueable, seen, signed, grace_s):
    cluster = requeueable
    order = Order(key="1.0", job="5", note="why", grace_s=grace_s)
    cluster.jobs(row(JobArrayID="5", **ENDING, **signed))
    cluster.detail("5", state="COMPLETING", requeue=1)
    cluster.backend._jobs.clear()  # a controller after a restart
    if seen:
        assert cluster.report().state is RunState.RELEASING
    for _ in range(3):
        with pytest.raises(BackendError, match="being ended already"):
            cluster.backend.stop(order)
        cluster.clock.advance(60)
        assert cluster.report().state is RunState.RELEASING
    cluster.jobs(row(JobArrayID="5", **HELD, **signed))
    cluster.nodes(n1="gpu:0", n2="gpu:0")
    cluster.report()
    cluster.backend.stop(order)
    assert cluster.report().state is RunState.RELEASED
    assert not [line for line in cluster.lines() if "AdminComment" not in line]


def test_a_run_that_ends_for_good_while_a_stop_is_sent_again_is_left_alone(requeueable):
    cluster = requeueable
    order = Order(key="1.0", job="5", note="why", grace_s=30.0)
    cluster.jobs(row(JobArrayID="5", State="COMPLETING", NodeList="n1"))
    cluster.report()
    with pytest.raises(BackendError, match="being ended already"):
        cluster.backend.stop(order)
    cluster.jobs(row(JobArrayID="5", State="COMPLETED", NodeList="n1"))
    cluster.detail("5", state="COMPLETED")
    cluster.report()
    cluster.backend.stop(order)
    cluster.clock.advance(60)
    cluster.report()
    assert cluster.lines() == []


def test_a_stop_before_the_first_look_is_reversible_too(requeueable):
    cluster = requeueable
    cluster.backend._jobs.clear()
    cluster.backend.stop(Order(key="1.0", job="5"))
    assert "scontrol requeuehold 5" in cluster.lines()


def test_a_job_requeued_already_is_held_where_it_waits(requeueable, commands):
    cluster = requeueable
    commands(
        scontrol=f"""case $1 in requeuehold) echo 'Job is pending execution for job 5' >&2; exit 1;;
        *) echo "scontrol $*" >> {cluster.sent};; esac"""
    )
    cluster.backend.stop(Order(key="1.0", job="5"))
    assert cluster.lines()[-1] == "scontrol hold 5"


def test_what_nobody_undid_in_its_window_is_cancelled(requeueable):
    cluster = requeueable
    requeued_at = int(cluster.clock.now())
    cluster.jobs(row(JobArrayID="5", SubmitTime=str(requeued_at), **HELD, **STOPPED))
    cluster.clock.advance(86_399)
    cluster.report()
    assert not cluster.lines()
    cluster.clock.advance(2)
    cluster.report()
    assert cluster.lines() == ["scancel 5"]


@pytest.mark.parametrize(
    "of_others",
    [
        {**HELD},
        {**HELD, "admin_comment": "ours"},
        {**HELD, "admin_comment": "evalstop: would be stopped"},
        {**HELD, **STOPPED, "RestartCnt": "0"},
        {**STOPPED, "State": "PENDING", "Reason": "Resources", "RestartCnt": "1"},
        {**STOPPED, "State": "RUNNING", "RestartCnt": "1"},
    ],
)
def test_nobody_elses_hold_is_ever_cancelled(requeueable, of_others):
    cluster = requeueable
    cluster.jobs(row(JobArrayID="5", SubmitTime="1", **of_others))
    assert cluster.report().state is not RunState.RELEASED
    assert not cluster.lines()


def test_without_a_window_it_is_cancelled_at_once(requeueable):
    cluster = requeueable
    cluster.backend._undo_window_s = 0
    cluster.backend.stop(Order(key="1.0", job="5", grace_s=0.0))
    assert cluster.lines()[1:] == ["scancel 5"]
