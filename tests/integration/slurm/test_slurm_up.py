"""`evalstop up` over a real Slurm: a week of observing in small, then enforced, killed, undone."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from free_ports import free_port

import evalstop
from evalstop.cli.remote import Remote
from evalstop.core.errors import EvalStopError
from evalstop.service.notify import verify
from evalstop.testing.backend import eventually

TRAINER = Path(__file__).parents[3] / "examples/overoptimise.py"
READING = ("squeue", "sinfo", "scontrol -o -d show job", "scontrol ping", "scontrol --version")

CONFIG = """
[cluster]
backend = "slurm"
scheduler = "native"
poll_s = 0.3
price_per_gpu_hour = 2.0
[custody]
every_s = 0.1
settle_s = 0.0
[feedback]
every_s = 0.1
[policy]
mode = "{mode}"
warn_s = 0
backed_s = 5
[[notify]]
name = "hook"
url = "http://127.0.0.1:{hook}/hook"
secret_file = "{folder}/secret"
"""


class Hook:
    """A receiver of webhooks that keeps what was signed correctly."""

    def __init__(self):
        self.notices = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert verify("s3cret", dict(self.headers), body)
                hook.notices.append(json.loads(body))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def told(self):
        return [(notice["kind"], notice["job"]) for notice in self.notices]


class Site:
    """A machine on which evalstop runs as a process of its own, with spies for Slurm's commands."""

    def __init__(self, folder, slurm, mode):
        self.folder, self.slurm = folder, slurm
        self.hook = Hook()
        self.commands = folder / "commands"
        self.commands.touch()
        self.port = free_port()
        (folder / "secret").write_text("s3cret\n")
        (folder / "evalstop.toml").write_text(
            CONFIG.format(mode=mode, hook=self.hook.server.server_port, folder=folder)
        )
        self.environment = slurm.environment | {
            "PATH": f"{self._spies()}{os.pathsep}{slurm.environment['PATH']}",
            "PYTHONPATH": str(Path(evalstop.__file__).parents[1]),
            "EVALSTOP_URL": f"http://127.0.0.1:{self.port}",
            "EVALSTOP_DIR": str(folder / "state"),
        }
        self.servers = []

    def _spies(self):
        spies = self.folder / "spies"
        spies.mkdir()
        for name in ("squeue", "scontrol", "scancel", "sbatch", "sinfo"):
            spy = spies / name
            note = f"""echo "$(echo {name} "$@" | tr '\\n' ' ')" >> {self.commands}"""
            real = f'PATH="{self.slurm.environment["PATH"]}" exec {name} "$@"'
            spy.write_text(f"#!/bin/sh\n{note}\n{real}\n")
            spy.chmod(spy.stat().st_mode | stat.S_IXUSR)
        return spies

    def changing(self):
        """Return the Slurm commands so far that were not for reading alone."""
        lines = self.commands.read_text().rstrip("\n").split("\n")
        return [line for line in lines if line and not line.startswith(READING)]

    def up(self):
        log = (self.folder / "up.log").open("a")
        with log:
            server = subprocess.Popen(
                [sys.executable, "-m", "evalstop", "up", "--port", str(self.port)],
                cwd=self.folder,
                env=self.environment,
                stderr=log,
            )
        self.servers.append(server)
        eventually(self._answers, 300)
        return server

    def _answers(self):
        with contextlib.suppress(EvalStopError):
            return self.remote.get("/cluster")["gpus"]["total"] == 16
        return False

    @property
    def remote(self):
        return Remote(self.environment["EVALSTOP_URL"], self.folder / "state")

    def job(self, job):
        with contextlib.suppress(EvalStopError):  # not seen yet, or not up again
            return self.remote.get(f"/jobs/{job}")
        return {"evals_seen": 0, "outcome": None, "phase": ""}

    def run(self, *words):
        return subprocess.run(
            [sys.executable, "-m", "evalstop", *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def train(self, on, *, pause=0.25):
        """Submit a run with the plain sbatch of its owner."""
        out = self.folder / on
        comment = (
            f"evalstop:metric=eval_true,direction=max,job_type=rlhf,tenant={on},"
            f"checkpoints={out},evals={out}/evals.jsonl,estimated_s=3600"
        )
        script = (
            f"#!/bin/sh\nexport OPENBLAS_NUM_THREADS=1\nexec {sys.executable} {TRAINER} "
            f"--out {out} --on {on} --steps 100000 --pause {pause} --keep 50\n"
        )
        return self.slurm.submit(script, "--gres=gpu:8", f"--comment={comment}", "--requeue")

    def close(self):
        for server in self.servers:
            server.kill()
            server.wait()
        self.hook.close()


@pytest.fixture
def site(slurm, tmp_path):
    made = []

    def make(mode):
        made.append(Site(tmp_path, slurm, mode))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_observing_changes_nothing_and_says_what_it_would_have_saved(site, slurm):
    site = site("observe")
    site.up()
    bad = site.train("proxy", pause=0.1)
    eventually(lambda: ("advice", bad) in site.hook.told(), 300)
    slurm.run("scancel", "--batch", "--signal=TERM", bad)  # by its owner: it ends, with exit code 0
    eventually(lambda: site.job(bad)["outcome"] == "completed", 300)
    assert site.hook.told() == [("advice", bad)]
    assert site.changing() == []
    record = json.loads(site.run("explain", bad, "--json"))
    assert record["job"] == bad
    total = json.loads(site.run("savings", "--json"))["total"]
    assert total["gpu_hours_advised"] > 0 == total["gpu_hours_saved"]


def test_enforcing_survives_kills_and_its_stop_can_be_undone(site, slurm):
    site = site("enforce")
    server = site.up()
    # So slow that it is long before it falls again once its stop is undone.
    bad, good = site.train("proxy", pause=0.6), site.train("true")
    waiting = slurm.submit(
        "#!/bin/sh\nexec sleep 3600\n", "--gres=gpu:8", "--comment=evalstop:metric=a,direction=max"
    )
    eventually(lambda: site.job(bad)["evals_seen"] > 3, 300)
    server.kill()  # in the middle of the run
    server.wait()
    server = site.up()
    eventually(lambda: ("stopping", bad) in site.hook.told(), 300)
    server.kill()  # in the middle of the stop
    server.wait()
    site.up()
    eventually(lambda: site.job(bad)["outcome"] == "stopped_by_policy", 300)
    slurm.await_state(waiting, "RUNNING")
    assert slurm.state(good) == "RUNNING"
    assert site.job(good)["outcome"] is None

    best = json.loads(site.run("best", bad, "--json"))
    assert best["backed"]
    assert (Path(best["path"]) / "policy.npz").exists()
    eventually(lambda: ("stopped", bad) in site.hook.told(), 300)
    assert sorted(set(site.hook.told())) == [("stopped", bad), ("stopping", bad)]
    assert sum("requeuehold" in line for line in site.changing()) >= 1

    slurm.run("scancel", waiting)
    site.run("undo", bad, "--note", "the judge was wrong")
    slurm.await_state(bad, "RUNNING")
    eventually(lambda: site.job(bad)["phase"] == "running", 300)
    time.sleep(1)
    assert slurm.state(bad) == "RUNNING"  # and it is not taken for a stray
