"""Jobs of any scheduler, stopped by a command from the configuration."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from evalstop.backends.command import CommandBackend, CommandTemplate
from evalstop.core.errors import BackendError, InputError
from evalstop.core.job import JobSpec
from evalstop.ports import Launch, Order, RunState
from evalstop.testing import FakeClock
from evalstop.testing.backend import eventually

VALUES = {"job": "j", "attempt": "1", "grace_s": "30", "note": "", "key": "1.0"}
SHOW = shlex.join([sys.executable, "-c", "import sys; print(sys.argv[1:])"])


@pytest.mark.parametrize(
    "odd", ["a b", "$(touch /tmp/x)", "`id`", "; id", "'", '"', "a\nb", "{job}", "*", "\\", "é"]
)
def test_a_value_is_one_argument_whatever_is_in_it(odd):
    template = CommandTemplate(f"{SHOW} --note={{note}} '{{job}} {{job}}'")
    assert template.run({**VALUES, "note": odd}) == f"{[f'--note={odd}', 'j j']}\n"


def test_a_shell_gets_values_as_variables_never_as_text(tmp_path):
    template = CommandTemplate('printf %s "$EVALSTOP_NOTE" | cat', shell=True)
    odd = f"$(touch {tmp_path}/x); {{job}}"
    assert template.run({**VALUES, "note": odd}) == odd
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("kill 'x", "check its quotes"),
        ("kill {pid}", r"names \{pid\}; known places: \{job\}"),
        ("kill {}", r"names \{\}"),
        ("kill {job.__class__}", "known places"),
        ("kill {job", "write a brace as"),
    ],
)
def test_a_bad_command_is_refused_when_it_is_read(text, complaint):
    with pytest.raises(InputError, match=complaint):
        CommandTemplate(text)


def test_a_value_is_never_an_option():
    with pytest.raises(InputError, match="would be taken for an option"):
        CommandTemplate("echo {job}").run({**VALUES, "job": "--all"})


@pytest.mark.parametrize("text", ["false", "no-such-program-here {job}", "sh -c 'exit 7'"])
def test_a_failing_command_is_an_error(text):
    with pytest.raises(BackendError):
        CommandTemplate(text).run(VALUES)


def test_a_hanging_command_is_killed():
    with pytest.raises(BackendError, match="did not end within"):
        CommandTemplate("sleep 60", time_limit_s=0.3).run(VALUES)


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def state(backend, job):
    return next((found.state for found in backend.listing().jobs if found.job == job), None)


def guarded(name, **more):
    return JobSpec(id=name, gpus=4, job_type="rlhf", **more), Launch(command=())


def test_a_real_process_is_stopped_and_its_end_is_proven(tmp_path, sleeper):
    name = str(sleeper.pid)
    backend = CommandBackend(
        tmp_path,
        stop=CommandTemplate("kill -TERM {job}"),
        living=CommandTemplate(
            "ps -e --no-headers -o pid -o stat | awk '$2 !~ /Z/ {print $1}'", shell=True
        ),
    )
    assert backend.submit(*guarded(name)) == name
    assert state(backend, name) is RunState.RUNNING
    assert backend.listing().gpus == 4
    backend.stop(Order(key="1.0", job=name))
    eventually(lambda: state(backend, name) is RunState.RELEASED, 180)
    assert backend.listing().gpus == 0
    backend.forget(name)
    assert state(backend, name) is None


def test_without_a_list_command_the_report_says_that_nothing_is_proven(tmp_path):
    backend = CommandBackend(tmp_path, stop=CommandTemplate("true {job}"))
    backend.submit(*guarded("a"))
    backend.stop(Order(key="1.0", job="a"))
    (found,) = backend.listing().jobs
    assert found.state is RunState.RELEASED
    assert "not verified" in found.reason


def test_the_same_order_twice_acts_once_and_a_failed_one_again(tmp_path):
    log = tmp_path / "log"
    fails = tmp_path / "fails"
    fails.touch()
    command = f'echo "$EVALSTOP_JOB" >> {log}; test ! -e {fails}'
    living = CommandTemplate("echo a")
    backend = CommandBackend(
        tmp_path / "state", stop=CommandTemplate(command, shell=True), living=living
    )
    backend.submit(*guarded("a"))
    order = Order(key="1.0", job="a")
    with pytest.raises(BackendError):
        backend.stop(order)
    assert state(backend, "a") is RunState.RUNNING
    fails.unlink()
    backend.stop(order)
    backend.stop(order)
    assert log.read_text() == "a\na\n"
    assert state(backend, "a") is RunState.RELEASING


def test_jobs_and_stops_outlive_the_controller(tmp_path):
    def opened():
        return CommandBackend(
            tmp_path, stop=CommandTemplate("true"), living=CommandTemplate("echo b c")
        )

    backend = opened()
    for name in "abc":
        backend.submit(*guarded(name))
    backend.listing()
    backend.stop(Order(key="1.0", job="b"))
    backend.ended("c", 3)
    backend = opened()
    found = {report.job: report for report in backend.listing().jobs}
    assert found["a"].state is RunState.RUNNING  # not seen yet: it may still be created
    assert found["b"].state is RunState.RELEASING
    assert (found["c"].state, found["c"].exit_code) == (RunState.RELEASED, 3)
    assert found["a"].spec == guarded("a")[0]


def test_a_job_that_was_seen_and_is_gone_has_ended(tmp_path):
    names = tmp_path / "names"
    names.write_text("job.batch/a\n")
    backend = CommandBackend(
        tmp_path / "state", stop=CommandTemplate("true"), living=CommandTemplate(f"cat {names}")
    )
    backend.submit(*guarded("a"))
    assert state(backend, "a") is RunState.RUNNING
    names.write_text("")
    assert state(backend, "a") is RunState.RELEASED


def test_what_outlives_its_stop_is_quarantined(tmp_path):
    clock = FakeClock()
    backend = CommandBackend(
        tmp_path,
        stop=CommandTemplate("true"),
        living=CommandTemplate("echo a"),
        release_limit_s=60,
        monotonic=clock.monotonic,
    )
    backend.submit(*guarded("a"))
    backend.stop(Order(key="1.0", job="a"))
    assert state(backend, "a") is RunState.RELEASING
    clock.advance(61)
    listing = backend.listing()
    assert listing.jobs[0].state is RunState.QUARANTINED
    assert (listing.gpus, len(listing.quarantined)) == (0, 4)


def test_a_failing_list_command_ends_no_job(tmp_path):
    backend = CommandBackend(
        tmp_path, stop=CommandTemplate("true"), living=CommandTemplate("false")
    )
    backend.submit(*guarded("a"))
    with pytest.raises(BackendError):
        backend.listing()


@pytest.mark.parametrize("name", ["", "-a", "a b", "a;b", "../a", "a\n", "$a"])
def test_odd_names_are_refused_at_the_door(tmp_path, name):
    backend = CommandBackend(tmp_path, stop=CommandTemplate("true"))
    with pytest.raises(InputError, match="expected a job name"):
        backend.submit(*guarded(name))


def test_it_starts_nothing(tmp_path):
    backend = CommandBackend(tmp_path, stop=CommandTemplate("true"))
    with pytest.raises(BackendError, match="starts nothing"):
        backend.start(Order(key="1.0", job="a"))
