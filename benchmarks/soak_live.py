"""Kill the controller again and again while real jobs run, and count what goes wrong.

A real `evalstop up` with real processes as jobs is killed with SIGKILL at random moments and
started again. Jobs decline, complete, crash, are killed, leave stray children, ignore SIGTERM and
overwrite nothing of each other's: each takes a file lock on every device it was given, so that a
GPU in two allocations is seen by the job itself. At the end: every job has the one right
outcome, none ran twice at a time, nothing of any job is left, each stopped job's best
checkpoint loads, and the log folds to the same decisions.

    python benchmarks/soak_live.py [--seconds 120] [--jobs 60] [--seed 0] [--postgres]

With ``--postgres`` the log is in a PostgreSQL server of its own, which is killed with SIGKILL as
often as the controller; a controller that finds no server ends, and is started again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import evalstop
from evalstop.backends.local.supervisor import token_processes
from evalstop.cli.remote import Remote
from evalstop.config.rules import RULES
from evalstop.config.settings import make_policy, read_settings
from evalstop.core.errors import EvalStopError
from evalstop.service.explain import encode_record, explain
from evalstop.service.opening import open_store
from evalstop.service.snapshot import fold

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from free_ports import free_port
from postgres_server import PostgresServer

SLOTS = 6
CONFIG = f"""
[cluster]
slots = {SLOTS}
scheduler = "srtf-est"
poll_s = 0.05
[policy]
mode = "enforce"
rule = "consecutive:k=2"
warn_s = 0
backed_s = 0
stops_per_tenant_hour = 1000
[custody]
every_s = 0.2
settle_s = 0.05
"""

JOB = r"""
import fcntl, http.client, json, os, signal, sys, time, zipfile
import urllib.request
kind, folder, job = sys.argv[1], sys.argv[2], os.environ["EVALSTOP_JOB_ID"]
held = []
for device in os.environ["EVALSTOP_DEVICES"].split(","):
    handle = os.open(f"{folder}/devices/{device}", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with open(f"{folder}/conflicts", "a") as log:
            log.write(f"{job} found {device} taken\n")
    os.set_inheritable(handle, True)
    held.append(handle)
with open(f"{folder}/starts", "a") as log:
    log.write(job + "\n")
if kind == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if kind == "strays" and os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    os._exit(0)
out = f"{folder}/out/{job}"
os.makedirs(out, exist_ok=True)
headers = {"Authorization": "Bearer " + os.environ["EVALSTOP_TOKEN"]}
url = os.environ["EVALSTOP_URL"] + "/api/v1/jobs/" + job + "/evals"
declines = kind in ("declines", "stubborn", "strays")
for step in range(1, 60 if declines else 9):
    with zipfile.ZipFile(f"{out}/tmp-{step}", "w") as archive:
        archive.writestr("step", str(step))
    os.rename(f"{out}/tmp-{step}", f"{out}/step-{step}.npz")
    if step > 3:
        with open(f"{out}/step-{step - 3}.npz", "rb"):
            os.unlink(f"{out}/step-{step - 3}.npz")
    score = 0.5 + 0.1 * step if not declines or step < 5 else 1.5 - 0.1 * step
    reports = [{"step": step, "score": score}] * (2 if step % 3 == 0 else 1)
    body = json.dumps({"evals": reports}).encode()
    for _ in range(2000):
        try:
            request = urllib.request.Request(url, body, headers)
            urllib.request.urlopen(request, timeout=20).read()
            break
        except (OSError, http.client.HTTPException):  # the latter: killed in the middle of it
            time.sleep(0.05)
    if kind == "crashes" and step == 5:
        sys.exit(3)
    if kind == "killed" and step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.15)
"""

VICTIMS = ("controller", "database", "controller and database")

OUTCOMES = {
    "declines": "stopped_by_policy",
    "stubborn": "stopped_by_policy",
    "strays": "stopped_by_policy",
    "completes": "completed",
    "crashes": "failed",
    "killed": "failed",
}


class Soak:
    """One soak: a folder, a port, a server that is killed, and the jobs."""

    def __init__(
        self, folder: Path, *, jobs: int, seed: int, database: PostgresServer | None = None
    ) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        for name in ("devices", "out"):
            (folder / name).mkdir(parents=True)
        store = "" if database is None else f'[server]\nstore = "{database.address("postgres")}"\n'
        (folder / "evalstop.toml").write_text(CONFIG + store)
        self.database = database
        self.database_kills = 0
        (folder / "job.py").write_text(JOB)
        self.port = free_port()
        self.environment = dict(os.environ) | {
            "PYTHONPATH": str(Path(evalstop.__file__).parents[1])
        }
        self.remote = Remote(f"http://127.0.0.1:{self.port}", folder / "state")
        kinds = list(OUTCOMES)
        self.jobs = {f"{kinds[n % len(kinds)]}-{n}": kinds[n % len(kinds)] for n in range(jobs)}
        self.kills = 0
        self.takeovers: list[float] = []
        self.server: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        """Start the controller, unless it runs."""
        if self.server is not None and self.server.poll() is None:
            return
        log = (self.folder / "server.log").open("ab")
        self.server = subprocess.Popen(
            [sys.executable, "-m", "evalstop", "up", "--port", str(self.port), "--dir", "state"],
            cwd=self.folder,
            env=self.environment,
            stdout=log,
            stderr=log,
        )
        log.close()

    def kill(self) -> None:
        """End the controller with SIGKILL and start the next."""
        assert self.server is not None
        victims = "controller" if self.database is None else self.random.choice(VICTIMS)
        if "controller" in victims:
            self.server.kill()
            self.server.wait()
            self.kills += 1
        if self.database is not None and "database" in victims:
            self.database.kill()
            self.database_kills += 1
            time.sleep(self.random.uniform(0.0, 2.0))
        began = time.monotonic()
        if self.database is not None and "database" in victims:
            self.database.start()
        self.up()
        self.persistently(lambda: self.remote.get("/cluster"))
        self.takeovers.append(time.monotonic() - began)

    def persistently(self, ask: Any) -> Any:  # noqa: ANN401 -- whatever is asked
        """Ask until somebody answers."""
        deadline = time.monotonic() + 600
        while True:
            try:
                return ask()
            except EvalStopError as error:
                known = "known already" in str(error)
                if known:
                    return None
                assert time.monotonic() < deadline, (self.folder / "server.log").read_text()[-3000:]
                if self.database is not None:
                    self.up()  # as whatever looks after services would
                time.sleep(0.05)

    def submit(self, job: str, kind: str) -> None:
        """Hand in one job."""
        self.persistently(
            lambda: self.remote.post(
                "/jobs",
                {
                    "id": job,
                    "tenant": f"t{len(kind) % 3}",
                    "job_type": "rlhf",
                    "gpus": self.random.choice([1, 1, 2]),
                    "estimated_s": self.random.uniform(1, 20),
                    "direction": "max",
                    "command": [
                        sys.executable, "-S", str(self.folder / "job.py"), kind, str(self.folder)
                    ],
                    "checkpoints": str(self.folder / "out" / job),
                    "grace_s": 0.5,
                },
            )
        )  # fmt: skip

    def run(self, seconds: float, *, at_least: int = 0) -> None:
        """Kill at random until the time is over, then let the rest finish.

        Args:
            seconds: how long to kill.
            at_least: kills to make, even if the time is over by then.
        """
        self.up()
        self.persistently(lambda: self.remote.get("/cluster"))
        deadline = time.monotonic() + seconds
        waiting = list(self.jobs.items())
        while time.monotonic() < deadline or self.kills < at_least:
            for job, kind in waiting[:3]:
                self.submit(job, kind)
            del waiting[:3]
            time.sleep(self.random.uniform(0.0, 1.2))
            self.kill()
        for job, kind in waiting:
            self.submit(job, kind)
        patience = time.monotonic() + 600 + 3 * len(self.jobs)
        while time.monotonic() < patience:
            jobs = self.persistently(lambda: self.remote.get("/jobs?limit=10000"))["jobs"]
            if len(jobs) == len(self.jobs) and all(job["outcome"] for job in jobs):
                break
            time.sleep(0.2)

    def faults(self) -> Counter[str]:
        """Return what went wrong, counted."""
        found: Counter[str] = Counter()
        jobs = self.persistently(lambda: self.remote.get("/jobs?limit=10000"))["jobs"]
        cluster = self.persistently(lambda: self.remote.get("/cluster"))
        found["jobs lost"] = len(self.jobs) - len(jobs)
        found["GPUs not free at the end"] = SLOTS - cluster["gpus"]["free"]
        for job in jobs:
            if job["outcome"] != OUTCOMES[self.jobs[job["id"]]]:
                found[f"{job['id']} ended as {job['outcome']}"] += 1
            if job["outcome"] == "stopped_by_policy":
                found["best checkpoint not loadable"] += not self.best_loads(job)
        starts = Counter((self.folder / "starts").read_text().split())
        preempted = {job["id"]: job["attempt"] for job in jobs}
        found["runs beyond the log's"] = sum(
            max(0, count - preempted[job]) for job, count in starts.items()
        )
        conflicts = self.folder / "conflicts"
        found["GPU in two allocations"] = (
            len(conflicts.read_text().splitlines()) if conflicts.exists() else 0
        )
        found["stray processes"] = sum(
            len(token_processes(json.loads(path.read_text())["token"]))
            for path in (self.folder / "state" / "runs").glob("*/*/order.json")
        )
        found += self.faults_of_the_log(jobs)
        return Counter({name: count for name, count in found.items() if count})

    def best_loads(self, job: dict[str, Any]) -> bool:
        """Whether the best checkpoint in custody is whole and of the best saved step."""
        best = self.persistently(lambda: self.remote.get(f"/jobs/{job['id']}/best"))
        if best["path"] is None:
            return False
        with contextlib.suppress(OSError, ValueError), np.load(best["path"]) as archive:
            return best["backed"] and archive.files == ["step"]
        return False

    def faults_of_the_log(self, jobs: list[dict[str, Any]]) -> Counter[str]:
        """Fold the log again and hold it against what was said."""
        found: Counter[str] = Counter()
        live = {
            job["id"]: self.remote.call("GET", f"/jobs/{job['id']}/explain")
            for job in jobs
            if job["outcome"] == "stopped_by_policy"
        }
        self.down()
        settings = read_settings(self.folder / "evalstop.toml")
        store, _, _ = open_store(settings, self.folder / "state")
        policy = make_policy(settings)
        folded = fold(store, policy, None)
        folded.kernel.state.check()
        found["decisions that replay differently"] = folded.recovered.changed
        stops = Counter(
            action.job
            for entry in store.read()
            for action in entry.actions
            if type(action).__name__ == "Stop"
        )
        found["jobs stopped twice"] = sum(count > 1 for count in stops.values())
        found["records that replay differently"] = sum(
            encode_record(
                explain(
                    store.read_job(job),
                    job,
                    false_alarms={name: entry.false_alarms for name, entry in RULES.items()},
                    policies=folded.ledger.policies,
                )
            )
            != record
            for job, record in live.items()
        )
        return found

    def down(self) -> None:
        """End the controller for good."""
        if self.server is not None:
            self.server.send_signal(signal.SIGTERM)
            self.server.wait()
            self.server = None


def main() -> int:
    """Soak and report; exit code 1 if anything went wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--postgres", action="store_true")
    options = parser.parse_args()
    database = None
    if options.postgres:
        database = PostgresServer.make(Path(tempfile.mkdtemp(prefix="soak-pg-")), durable=True)
    soak = Soak(
        Path(tempfile.mkdtemp(prefix="soak-")),
        jobs=options.jobs,
        seed=options.seed,
        database=database,
    )
    try:
        soak.run(options.seconds)
        faults = soak.faults()
    finally:
        soak.down()
        if database is not None:
            database.stop()
    slowest = max(soak.takeovers, default=0.0)
    print(
        f"{soak.kills} kills of the controller, {soak.database_kills} of the database, "
        f"{options.jobs} jobs, {SLOTS} slots, seed {options.seed}"
    )
    print(
        f"the next controller answered after {np.median(soak.takeovers):.1f} s "
        f"(slowest {slowest:.1f} s)"
    )
    for name, count in sorted(faults.items()):
        print(f"FAULT {name}: {count}")
    print("no faults" if not faults else f"{sum(faults.values())} faults; state in {soak.folder}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
