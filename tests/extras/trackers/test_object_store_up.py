"""`evalstop up` beside a real S3 server: a job over-optimises and is stopped, its best is kept."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import s3fs
from free_ports import free_port
from s3_server import bucket, s3

import evalstop
from evalstop.cli.remote import Remote
from evalstop.core.errors import EvalStopError

__all__ = ["bucket", "s3"]  # fixtures

# A policy trained against a proxy reward that is right at first: the true reward rises, then falls.
# It keeps its last two checkpoints in S3 and deletes the others, as trainers do.
TRAINER = """
import http.client, io, json, os, sys, time, urllib.request
import numpy as np, s3fs
folder, options = sys.argv[1], json.loads(sys.argv[2])
store = s3fs.S3FileSystem(**options)
rng = np.random.default_rng(0)
wanted, proxy = np.array([1.0, 0.0]), np.array([1.0, 1.0])
policy, kept = np.zeros(2), []
for step in range(1, 400):
    policy = policy + 0.05 * proxy
    true = 1.0 - float(np.sum((policy - wanted) ** 2)) + 0.002 * rng.standard_normal()
    where = f"{folder}/checkpoint-{step}"
    data = io.BytesIO()
    np.savez(data, policy=policy)
    store.pipe_file(f"{where}/policy.npz", data.getvalue())
    store.pipe_file(f"{where}/trainer_state.json", json.dumps({"step": step}).encode())
    body = {"step": step, "score": true, "stderr": 0.002, "proxy": float(policy @ proxy)}
    if sys.argv[3] == "named":
        body["checkpoint"] = where
    url = os.environ["EVALSTOP_URL"] + "/api/v1/jobs/" + os.environ["EVALSTOP_JOB_ID"] + "/evals"
    headers = {"Authorization": "Bearer " + os.environ["EVALSTOP_TOKEN"]}
    request = urllib.request.Request(url, json.dumps({"evals": [body]}).encode(), headers)
    for _ in range(600):
        try:
            urllib.request.urlopen(request, timeout=300).read()
            break
        except (OSError, http.client.HTTPException):
            time.sleep(0.2)
    kept.append(where)
    for old in kept[:-2]:
        store.rm(old, recursive=True)
    kept = kept[-2:]
    time.sleep(0.05)
"""

CONFIG = """
[cluster]
slots = 2
scheduler = "fifo"
[policy]
mode = "enforce"
rule = "consecutive:k=3"
warn_s = 0
backed_s = 600
[custody]
every_s = 0.1
settle_s = 0
store = "{bucket}/evalstop/"
allow = ["{bucket}/runs/{{tenant}}/"]
options = {{endpoint_url = "{endpoint}"}}
store_every_s = 0.2
store_wait_s = 120
"""


class Evalstop:
    """`evalstop up` as a process, and its other commands."""

    def __init__(self, folder, s3, bucket):
        self.folder = folder
        self.port = free_port()
        config = CONFIG.format(bucket=bucket, endpoint=s3["endpoint_url"])
        (folder / "evalstop.toml").write_text(config)
        (folder / "train.py").write_text(TRAINER)
        self.environment = dict(os.environ) | {
            "PYTHONPATH": str(Path(evalstop.__file__).parents[1]),
            "EVALSTOP_URL": f"http://127.0.0.1:{self.port}",
            "EVALSTOP_DIR": str(folder / "state"),
            "AWS_ACCESS_KEY_ID": s3["key"],
            "AWS_SECRET_ACCESS_KEY": s3["secret"],
        }
        self.server = None

    def up(self):
        self.server = subprocess.Popen(
            [sys.executable, "-m", "evalstop", "up", "--port", str(self.port)],
            cwd=self.folder, env=self.environment, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.until(self.answers)

    def answers(self):
        assert self.server.poll() is None, "evalstop up has ended"
        with contextlib.suppress(EvalStopError):
            return self.remote.get("/cluster")["gpus"]["total"] == 2
        return False

    @property
    def remote(self):
        return Remote(self.environment["EVALSTOP_URL"], self.folder / "state")

    def kill(self):
        if self.server is not None:
            self.server.kill()
            self.server.wait()

    def run(self, *words, check=True):
        done = subprocess.run(
            [sys.executable, "-m", "evalstop", *words],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stderr
        return done

    def job(self, job):
        return self.remote.get(f"/jobs/{job}")

    def until(self, holds, within_s=900.0):
        deadline = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def submit(self, job, where, s3, *, named):
        how = "named" if named else "folder"
        command = [sys.executable, str(self.folder / "train.py"), where, json.dumps(s3), how]
        fields = {"id": job, "tenant": "ada", "direction": "max", "job_type": "rlhf"}
        fields |= {"command": command, "grace_s": 1}
        if not named:
            fields["checkpoints"] = where
        (self.folder / "jobs.json").write_text(json.dumps({"jobs": [fields]}))
        self.run("submit", "jobs.json")


@pytest.fixture
def evalstop_in(tmp_path, s3, bucket):
    made = Evalstop(tmp_path, s3, bucket)
    yield made
    made.kill()
    for path in (tmp_path / "state" / "runs").glob("*/*/process.json"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(json.loads(path.read_text())["pid"], signal.SIGKILL)


def loaded(url, s3):
    data = s3fs.S3FileSystem(skip_instance_cache=True, **s3).cat_file(f"{url}/policy.npz")
    return np.load(io.BytesIO(data))["policy"]


def test_the_best_of_a_job_that_is_stopped_is_in_s3_and_loads(evalstop_in, s3, bucket):
    """One job names each checkpoint in its report, the other its folder when it is handed in."""
    evalstop_in.up()
    jobs = ("named", "folder")
    for job in jobs:
        evalstop_in.submit(job, f"{bucket}/runs/ada/{job}", s3, named=job == "named")
    store = s3fs.S3FileSystem(skip_instance_cache=True, **s3)
    for job in jobs:
        evalstop_in.until(lambda job=job: evalstop_in.job(job)["outcome"] == "stopped_by_policy")
        found = json.loads(evalstop_in.run("best", job, "--json").stdout)
        assert (found["backed"], found["unverified"]) == (True, "")
        url = evalstop_in.run("best", job).stdout.strip()
        assert url == found["path"]
        step = found["best"]["step"]
        assert url.startswith(f"{bucket}/evalstop/data/{job}/{step}-")
        policy = loaded(url, s3)
        assert policy == pytest.approx([0.05 * step] * 2)
        assert 0.4 <= policy[0] <= 0.6  # the true reward is highest at 0.5
        left = {f"s3://{path}" for path in store.ls(f"{bucket}/runs/ada/{job}")}
        assert f"{bucket}/runs/ada/{job}/checkpoint-{step}" not in left  # its trainer's rotation


def has_gone_on(job, reports):
    """Whether more was reported; on a slow machine a job may be over before the last kill."""
    return job["evals_seen"] > reports or job["outcome"] is not None


def test_killed_again_and_again_the_best_is_kept_all_the_same(evalstop_in, s3, bucket):
    evalstop_in.up()
    evalstop_in.submit("mine", f"{bucket}/runs/ada/mine", s3, named=True)
    for _ in range(3):
        reports = evalstop_in.job("mine")["evals_seen"]
        evalstop_in.until(lambda reports=reports: has_gone_on(evalstop_in.job("mine"), reports))
        evalstop_in.kill()
        evalstop_in.up()
    evalstop_in.until(lambda: evalstop_in.job("mine")["outcome"] == "stopped_by_policy")
    found = json.loads(evalstop_in.run("best", "mine", "--json").stdout)
    assert found["backed"]
    assert loaded(found["path"], s3) == pytest.approx([0.05 * found["best"]["step"]] * 2)

    def nothing_is_under_way():
        store = s3fs.S3FileSystem(skip_instance_cache=True, **s3)
        return store.find(f"{bucket}/evalstop/under-way") == []

    evalstop_in.until(nothing_is_under_way)


def test_doctor_tries_the_store_and_says_what_to_fix(evalstop_in, bucket):
    done = evalstop_in.run("doctor", check=False)
    assert "ok   checkpoints: s3://" in done.stdout
    config = evalstop_in.folder / "evalstop.toml"
    config.write_text(config.read_text().replace(bucket, "s3://no-such-bucket"))
    done = evalstop_in.run("doctor", check=False)
    assert done.returncode == 1
    assert "evalstop cannot write there (s3:PutObject)" in done.stdout
