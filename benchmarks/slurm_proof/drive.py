"""One queue on one throw-away Slurm cluster, with evalstop attached or without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import evalstop
from evalstop.backends.slurm import SlurmClient
from evalstop.backends.slurm.records import ENDED
from evalstop.cli.remote import Remote
from evalstop.core.errors import EvalStopError

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from slurm_cluster import SlurmCluster

if TYPE_CHECKING:
    from evalstop.backends.slurm.records import JobRecord

__all__ = ["GPUS_A_NODE", "JOBS", "METRIC", "Pace", "arrivals", "run_queue"]

GPUS_A_NODE = 2
METRIC = "eval_rewards/world/mean"
MEAN_GAP_S = 6.0
LOOK_EVERY_S = 0.5
GIVE_UP_S = 1500.0
TRAINER = Path(__file__).with_name("train.py")

JOBS = (
    # tenant (the job's Slurm account), arm of the laboratory, GPUs
    ("chat", "grpo-512-noise10", 2),
    ("chat", "grpo-8000-kl50", 1),
    ("chat", "rloo-1024-noise10", 1),
    ("chat", "grpo-8000", 2),
    ("code", "rloo-gold", 1),
    ("code", "grpo-gold-slow", 2),
    ("code", "grpo-256-noise30", 1),
    ("code", "rloo-8000-kl50", 1),
    ("search", "grpo-4096-noise25", 2),
    ("search", "grpo-8000-kl10", 1),
    ("search", "grpo-1024-noise20", 1),
    ("search", "grpo-4096", 1),
)

CONFIG = """\
[cluster]
backend = "slurm"
poll_s = 0.5
[policy]
mode = "enforce"
rule = "default"
warn_s = 0          # no notice: the jobs last two minutes
[feedback]
every_s = 0.5
[custody]
every_s = 0.3
settle_s = 0.3
"""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast a queue goes.

    Attributes:
        step_s: shortest time of an optimiser step.
        steps: optimiser steps of a job; None for the laboratory's 120.
        prefix: put before slurmd's command (taskset, nice), so that jobs inherit it.
    """

    step_s: float
    steps: int | None = None
    prefix: tuple[str, ...] = ()


def arrivals(seed: int) -> list[tuple[float, int]]:
    """Return (seconds after the queue opens, row of `JOBS`), in order of arrival."""
    generator = np.random.default_rng([seed, 3])
    order = generator.permutation(len(JOBS)).tolist()
    times = np.cumsum(generator.exponential(MEAN_GAP_S, len(JOBS)))
    return [(round(float(at), 2), row) for at, row in zip(times - times[0], order, strict=True)]


def run_queue(prepared: Path, seed: int, pace: Pace, *, guarded: bool) -> tuple[dict, Path]:
    """Run one queue to its end; return what was seen, and the folder with the jobs' files."""
    folder = Path(tempfile.mkdtemp(prefix="proof-", dir="/tmp"))  # short: holds a unix socket
    folder.chmod(0o755)
    cluster = SlurmCluster(folder / "s", gpus_a_node=GPUS_A_NODE, node_prefix=pace.prefix)
    with cluster:
        queue = _Queue(folder, prepared, seed, pace, cluster)
        server = _Server(folder, cluster.environment) if guarded else None
        try:
            queue.run()
            told = server.told(queue.ids) if server else {}
        finally:
            if server:
                server.close()
    record = {
        "seed": seed,
        "guarded": guarded,
        "jobs": [job | told.get(job["id"], {}) for job in queue.jobs.values()],
        "server_cpu_s": server.cpu_s if server else None,
    }
    return record, folder


class _Queue:
    """Hands the jobs in when they are due and notes when each begins and ends."""

    def __init__(
        self, folder: Path, prepared: Path, seed: int, pace: Pace, cluster: SlurmCluster
    ) -> None:
        self.folder = folder
        self.prepared = prepared
        self.seed = seed
        self.pace = pace
        self.cluster = cluster
        self.client = SlurmClient(environment=cluster.environment, time_limit_s=60)
        self.jobs: dict[str, dict[str, Any]] = {}
        for name in ("out", "aside", "home"):
            (folder / name).mkdir()

    @property
    def ids(self) -> list[str]:
        return list(self.jobs)

    def run(self) -> None:
        opened = time.time()
        due = arrivals(self.seed)
        while due or any(job["ended"] is None for job in self.jobs.values()):
            while due and time.time() - opened >= due[0][0]:
                self._submit(due.pop(0)[1], opened)
            self._look(opened)
            if time.time() - opened > GIVE_UP_S:
                message = f"the queue is not empty after {GIVE_UP_S:g} s: see {self.folder}"
                raise TimeoutError(message)
            time.sleep(LOOK_EVERY_S)
        for job in self.jobs.values():
            self._read_log(job, opened)

    def _submit(self, row: int, opened: float) -> None:
        tenant, arm, gpus = JOBS[row]
        out, aside = self.folder / "out" / arm, self.folder / "aside" / arm
        words = [sys.executable, "-W", "ignore", str(TRAINER), "--prepared", str(self.prepared)]
        words += ["--arm", arm, "--seed", str(self.seed), "--pace", str(self.pace.step_s)]
        words += ["--out", str(out), "--aside", str(aside)]
        if self.pace.steps is not None:
            words += ["--steps", str(self.pace.steps)]
        script = (
            "#!/bin/sh\n"
            f"export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 HOME={self.folder}/home\n"
            f"export PYTHONPATH={Path(evalstop.__file__).parents[1]} PYTHONDONTWRITEBYTECODE=1\n"
            f"exec {' '.join(words)}\n"
        )
        comment = f"evalstop:metric={METRIC},direction=max,job_type=rlhf,checkpoints={out}"
        submitted = time.time() - opened
        job = self.cluster.submit(
            script,
            f"--account={tenant}",
            f"--job-name={arm}",
            f"--gres=gpu:{gpus}",
            "--time=30",
            "--requeue",
            f"--output={self.folder}/home/{arm}.log",
            f"--comment={comment}",
        )
        self.jobs[job] = {
            "id": job,
            "tenant": tenant,
            "arm": arm,
            "gpus": gpus,
            "submitted": submitted,
            "started": None,
            "ended": None,
        }

    def _look(self, opened: float) -> None:
        now = time.time() - opened
        for record in self.client.jobs():
            job = self.jobs.get(record.id)
            if job is None or job["ended"] is not None:
                continue
            if record.state == "RUNNING" and job["started"] is None:
                job["started"] = now
            if _is_over(record):
                job["ended"] = now
                job["state"] = "STOPPED" if record.held else record.state
                if job["state"] not in {"COMPLETED", "STOPPED"}:
                    log = (self.folder / f"home/{job['arm']}.log").read_text()[-2000:]
                    message = f"{job['arm']} ended as {job['state']}:\n{log}"
                    raise RuntimeError(message)

    def _read_log(self, job: dict[str, Any], opened: float) -> None:
        """Add when the job reached which step, and the scores that its trainer logged."""
        lines = (self.folder / "aside" / job["arm"] / "steps.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        job["steps"] = [row["step"] for row in rows]
        job["times"] = [row["time"] - opened for row in rows]
        out = self.folder / "out" / job["arm"]
        found = sorted(out.glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
        for checkpoint in reversed(found):
            try:
                log = json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]
            except (OSError, ValueError):
                continue  # cut off while it was written
            watched = {row["step"]: row[METRIC] for row in log if METRIC in row}
            proxy = {row["step"]: row["eval_reward"] for row in log if METRIC in row}
            break
        job["watched"] = [watched.get(step) for step in job["steps"]]
        job["proxy"] = [proxy.get(step) for step in job["steps"]]


def _is_over(record: JobRecord) -> bool:
    """Whether a job has ended, or was stopped and waits, held, for its undo window to pass."""
    return record.state in ENDED or (record.held and record.restarts > 0)


class _Server:
    """`evalstop up`, attached to the cluster."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        (folder / "evalstop.toml").write_text(CONFIG)
        environment = environment | {"PYTHONPATH": str(Path(evalstop.__file__).parents[1])}
        for name in ("EVALSTOP_TOKEN", "EVALSTOP_URL", "EVALSTOP_DIR"):
            environment.pop(name, None)
        log = (folder / "evalstop.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "evalstop", "up", "--port", "0", "--dir", str(folder / "state")],
            cwd=folder,
            env=environment,
            stderr=log,
            stdout=log,
        )
        log.close()
        self._remote = Remote(self._address(), folder / "state")
        self.cpu_s = 0.0

    def _address(self) -> str:
        deadline = time.monotonic() + 300.0
        while time.monotonic() < deadline and self._process.poll() is None:
            for line in (self._folder / "evalstop.log").read_text().splitlines():
                if "listens at" in line:
                    return line.split()[3]
            time.sleep(0.1)
        message = "evalstop up did not start: " + (self._folder / "evalstop.log").read_text()
        raise EvalStopError(message)

    def told(self, ids: list[str]) -> dict[str, dict[str, Any]]:
        """Return what evalstop says of each job: its stop, and where its best checkpoint lies."""
        deadline = time.monotonic() + 120.0
        while time.monotonic() < deadline:
            jobs = {job["id"]: job for job in self._remote.get("/jobs")["jobs"]}
            if all(jobs.get(name, {}).get("outcome") for name in ids):
                break
            time.sleep(0.3)
        found: dict[str, dict[str, Any]] = {}
        for name in ids:
            job, best = jobs[name], self._remote.get(f"/jobs/{name}/best")
            found[name] = {"outcome": job["outcome"], "evals_seen": job["evals_seen"]}
            found[name]["best_path"] = best["path"]
            if job["stop"]:
                stop = job["stop"]
                freed = job["ended_at"] - stop["at"]
                kept = {key: stop[key] for key in ("best_step", "reason")}
                found[name]["stop"] = kept | {"freed_after_s": round(freed, 2)}
        return found

    def close(self) -> None:
        usage = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        self.cpu_s = sum(int(ticks) for ticks in usage[11:15]) / os.sysconf("SC_CLK_TCK")
        self._process.terminate()
        self._process.wait()
