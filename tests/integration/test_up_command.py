"""`evalstop up` as users run it: a process of its own, killed and started again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from free_ports import free_port

import evalstop
from evalstop.cli.remote import Remote
from evalstop.core.errors import EvalStopError

TRAINER = """
import http.client, json, os, time, urllib.request
peak = None
for step in range(1, 100_000):
    if peak is None and os.path.exists("decline-" + os.environ["EVALSTOP_JOB_ID"]):
        peak = step
    score = 0.5 if peak is None else 0.6 - 0.03 * (step - peak)
    body = json.dumps({"evals": [{"step": step, "score": score}]}).encode()
    headers = {"Authorization": "Bearer " + os.environ["EVALSTOP_TOKEN"]}
    url = os.environ["EVALSTOP_URL"] + "/api/v1/jobs/" + os.environ["EVALSTOP_JOB_ID"] + "/evals"
    try:
        urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60).read()
    except (OSError, http.client.HTTPException):
        time.sleep(0.2)
    time.sleep(0.05)
"""

CONFIG = """
[cluster]
slots = 2
scheduler = "fifo"
[policy]
mode = "enforce"
rule = "consecutive:k=2"
warn_s = 0
backed_s = 0
"""


class Evalstop:
    def __init__(self, folder, port):
        self.folder, self.port = folder, port
        (folder / "evalstop.toml").write_text(CONFIG)
        self.environment = dict(os.environ) | {
            "PYTHONPATH": str(Path(evalstop.__file__).parents[1]),
            "EVALSTOP_URL": f"http://127.0.0.1:{port}",
            "EVALSTOP_DIR": str(folder / "state"),
        }
        self.servers = []

    def up(self):
        server = subprocess.Popen(
            [sys.executable, "-m", "evalstop", "up", "--port", str(self.port)],
            cwd=self.folder,
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.servers.append(server)
        return server

    def run(self, *words, check=True):
        done = subprocess.run(
            [sys.executable, "-m", "evalstop", *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    @property
    def remote(self):
        return Remote(self.environment["EVALSTOP_URL"], self.folder / "state")

    def job(self, job):
        return self.remote.get(f"/jobs/{job}")

    def troubles(self):
        return self.remote.get("/troubles")["troubles"]

    def answers(self):
        with contextlib.suppress(EvalStopError):
            return self.remote.get("/cluster")["gpus"]["total"] == 2
        return False

    def settings(self, text):
        """Change the settings in one step: they are looked at all the time."""
        aside = self.folder / "evalstop-aside.toml"
        aside.write_text(text)
        aside.replace(self.folder / "evalstop.toml")

    def until(self, holds, within_s=300.0):
        deadline = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def until_ready(self):
        self.until(self.answers)


@pytest.fixture
def evalstop_in(tmp_path):
    made = Evalstop(tmp_path, free_port())
    yield made
    for server in made.servers:
        server.kill()
        server.wait()
        server.stderr.close()
    for path in (tmp_path / "state" / "runs").glob("*/*/process.json"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(json.loads(path.read_text())["pid"], signal.SIGKILL)


def test_a_second_controller_takes_over_and_the_jobs_never_notice(evalstop_in, tmp_path):
    first = evalstop_in.up()
    evalstop_in.until_ready()
    (tmp_path / "train.py").write_text(TRAINER)
    jobs = {
        "jobs": [
            {
                "id": name,
                "direction": "max",
                "job_type": "rlhf",
                "gpus": gpus,
                "command": [sys.executable, str(tmp_path / "train.py")],
                "cwd": str(tmp_path),
                "grace_s": 1,
            }
            for name, gpus in (("declines", 2), ("waits", 2))
        ]
    }
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    assert evalstop_in.run("submit", "jobs.json").stdout.split() == ["declines", "waits"]
    second = evalstop_in.up()
    evalstop_in.until(lambda: evalstop_in.job("declines")["phase"] == "running")
    assert second.poll() is None
    first.kill()
    first.wait()
    evalstop_in.until(evalstop_in.answers)
    assert evalstop_in.job("declines")["attempt"] == 1
    (tmp_path / "decline-declines").touch()
    evalstop_in.until(lambda: evalstop_in.job("declines")["stop"] is not None)
    assert evalstop_in.job("declines")["best"]["score"] == 0.6
    evalstop_in.until(lambda: evalstop_in.job("declines")["outcome"] == "stopped_by_policy")
    evalstop_in.until(lambda: evalstop_in.job("waits")["phase"] == "running")
    live = evalstop_in.run("explain", "declines", "--json").stdout
    evalstop_in.run("freeze")
    evalstop_in.run("stop", "waits", "--note", "enough")
    evalstop_in.until(lambda: evalstop_in.job("waits")["outcome"] == "cancelled")
    second.kill()
    second.wait()
    assert evalstop_in.run("explain", "declines", "--offline", "--json").stdout == live
    refused = evalstop_in.run("jobs", check=False)
    assert refused.returncode == 1
    assert "is `evalstop up` running there?" in refused.stderr


def test_orders_and_reports_from_the_command_line(evalstop_in, tmp_path):
    evalstop_in.up()
    evalstop_in.until_ready()
    assert evalstop_in.run("doctor").stdout.count("ok") == 4
    (tmp_path / "job.toml").write_text(
        'id = "a"\ndirection = "max"\njob_type = "rlhf"\ncommand = ["sleep", "600"]\n'
    )
    evalstop_in.run("submit", "job.toml")
    bad = evalstop_in.run("submit", "job.toml", check=False)
    assert (bad.returncode, "another id" in bad.stderr) == (2, True)
    evalstop_in.until(lambda: evalstop_in.job("a")["phase"] == "running")
    evalstop_in.run("snooze", "a", "--hours", "1")
    for step, score in enumerate((0.5, 0.6, 0.5), start=1):
        evalstop_in.remote.post("/jobs/a/evals", {"evals": [{"step": step, "score": score}]})
    evalstop_in.run("report", "a", "--step", "4", "--score", "0.4")
    assert evalstop_in.job("a")["phase"] == "running"
    assert "no whole checkpoint" in evalstop_in.run("best", "a", check=False).stderr
    evalstop_in.run("approve", "a")
    evalstop_in.until(lambda: evalstop_in.job("a")["phase"] == "ended")
    assert "by admin" in evalstop_in.run("explain", "a").stdout
    assert evalstop_in.job("a")["outcome"] == "cancelled"
    assert "a" in evalstop_in.run("watch", "--once").stdout
    savings = json.loads(evalstop_in.run("savings", "--json").stdout)
    assert savings["total"]["jobs"] == 1
    undone = evalstop_in.run("undo", "a")
    assert "from the beginning" in undone.stderr
    evalstop_in.run("stop", "a")
    evalstop_in.until(lambda: evalstop_in.job("a")["phase"] == "ended")


def test_an_open_page_keeps_nobody_from_ending_the_server(evalstop_in):
    server = evalstop_in.up()
    evalstop_in.until_ready()
    token = (evalstop_in.folder / "state" / "admin-token").read_text().strip()
    request = urllib.request.Request(
        f"http://127.0.0.1:{evalstop_in.port}/api/v1/events",
        headers={"Authorization": f"Bearer {token}"},
    )
    with urllib.request.urlopen(request, timeout=120) as stream:
        assert stream.readline().startswith(b": the log")
        server.send_signal(signal.SIGINT)
        server.wait(timeout=120)  # with the page still open


def test_settings_are_reloaded_while_it_runs(evalstop_in, tmp_path):
    (tmp_path / "evalstop.toml").write_text(CONFIG.replace('"enforce"', '"observe"'))
    evalstop_in.up()
    evalstop_in.until_ready()
    job = {"id": "a", "direction": "max", "job_type": "rlhf", "command": ["sleep", "600"]}
    evalstop_in.remote.post("/jobs", job)
    evalstop_in.until(lambda: evalstop_in.job("a")["phase"] == "running")
    evals = [{"step": n, "score": score} for n, score in enumerate((0.5, 0.6, 0.5, 0.4), start=1)]
    assert not evalstop_in.remote.post("/jobs/a/evals", {"evals": evals})["stop"]
    evalstop_in.settings("[policy]\nmode = 'enfroce'\n")
    evalstop_in.until(lambda: any("line 2" in one for one in evalstop_in.troubles()))
    evalstop_in.settings(CONFIG)
    evalstop_in.until(lambda: not evalstop_in.troubles())
    last = {"evals": [{"step": 5, "score": 0.3}]}
    assert evalstop_in.remote.post("/jobs/a/evals", last)["stop"]
    evalstop_in.until(lambda: evalstop_in.job("a")["outcome"] == "stopped_by_policy")


def test_an_address_that_is_taken_is_named(evalstop_in):
    import socket

    with socket.create_server(("127.0.0.1", evalstop_in.port)):
        server = evalstop_in.up()
        assert server.wait(timeout=300) == 1
    told = server.stderr.read()
    assert f"cannot listen at 127.0.0.1:{evalstop_in.port} (Address already in use)" in told
    assert "--port" in told


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_what_is_no_port_is_bad_usage(evalstop_in, port):
    done = evalstop_in.run("up", "--port", port, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--port" in done.stderr


def test_an_admin_token_that_a_crash_left_empty_is_made_again(evalstop_in, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "admin-token").touch(mode=0o600)
    evalstop_in.up()
    evalstop_in.until_ready()
    assert (tmp_path / "state" / "admin-token").stat().st_mode & 0o777 == 0o600
