"""The whole thing on a real Slurm: a run that over-optimises is stopped, a waiting one begins."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from evalstop.backends.slurm import SlurmBackend, SlurmClient
from evalstop.config.rules import parse_rule
from evalstop.core.actions import Stop
from evalstop.core.job import Outcome
from evalstop.custody import FileCustody
from evalstop.policies.evalstop import EvalStop
from evalstop.schedulers.native import Native
from evalstop.service.carry_out import BackendCarryOut, launch_of
from evalstop.service.clock import SystemClock
from evalstop.service.controller import Controller
from evalstop.service.custodian import Custodian
from evalstop.service.poller import Poller
from evalstop.service.puller import Puller
from evalstop.service.sources import sources_of
from evalstop.store.sqlite import SqliteStore
from evalstop.testing.backend import eventually

TRAINER = Path(__file__).parents[3] / "examples/overoptimise.py"


class Watcher:
    """A controller with all its threads; `close` and make another to restart it."""

    def __init__(self, slurm, folder):
        client = SlurmClient(environment=slurm.environment, time_limit_s=60)
        self.store = SqliteStore(folder / "log.sqlite")
        self.custody = FileCustody(folder / "custody")
        self.policy = EvalStop(base=Native(), rules=parse_rule("default"))
        self.carry_out = BackendCarryOut(SlurmBackend(client), self.store)
        self.controller = Controller(
            store=self.store, policy=self.policy, clock=SystemClock(), carry_out=self.carry_out
        )
        self.custodian = Custodian(self.custody, self.store, every_s=0.1, settle_s=0.0)
        self.custodian.attach(self.controller)
        self.puller = Puller(self.controller, self.sources, every_s=0.1)
        self.poller = Poller(self.carry_out, every_s=0.3)
        self.controller.start()
        for thread in (self.poller, self.custodian, self.puller):
            thread.start()

    def sources(self, job):
        record = self.controller.ledger.jobs[job]
        watch = self.policy.watches.get(job)
        logged = [] if watch is None else watch.history.series
        return sources_of(record.spec, launch_of(self.store, job), logged)

    def close(self):
        for thread in (self.poller, self.puller, self.custodian, self.controller):
            thread.close()

    def outcome(self, job):
        record = self.controller.ledger.jobs.get(job)
        return record and record.outcome

    def scores(self, job):
        record = self.controller.ledger.jobs.get(job)  # running in Slurm, perhaps not seen here yet
        return record and record.scores

    def watches(self, job):
        """Whether its checkpoints are looked after by now."""
        found = self.controller.kernel.state.view.jobs.get(job)
        return bool(found and found.held_gpus)

    def stops(self):
        return [a for e in self.store.read() for a in e.actions if isinstance(a, Stop)]


@pytest.fixture
def watcher(slurm, tmp_path):
    watchers = []

    def make():
        for old in watchers:
            old.close()
        watchers.append(Watcher(slurm, tmp_path))
        return watchers[-1]

    yield make
    for last in watchers[-1:]:
        last.close()


def train(slurm, folder, on, *, gpus=8):
    out = folder / on
    comment = (
        f"evalstop:metric=eval_true,direction=max,job_type=rlhf,tenant={on},"
        f"checkpoints={out},evals={out}/evals.jsonl"
    )
    # It begins when it is told to: what it saved and rotated away before evalstop knew of it would
    # be in nobody's custody. Each checkpoint lies there for two seconds before it goes.
    script = (
        "#!/bin/sh\nexport OPENBLAS_NUM_THREADS=1\n"
        f"while [ ! -e {folder}/go ]; do sleep 0.1; done\n"
        f"exec {sys.executable} {TRAINER} --out {out} --on {on} "
        "--steps 100000 --pause 1\n"
    )
    return slurm.submit(script, f"--gres=gpu:{gpus}", f"--comment={comment}", "--requeue")


def test_an_overoptimising_run_is_stopped_and_its_gpus_serve_another(slurm, watcher, tmp_path):
    bad = train(slurm, tmp_path, "proxy")
    good = train(slurm, tmp_path, "true")
    waiting = slurm.submit(
        "#!/bin/sh\nexec sleep 3600\n",
        "--gres=gpu:8",
        "--comment=evalstop:metric=acc,direction=max",
    )
    watch = watcher()
    slurm.await_state(bad, "RUNNING")
    slurm.await_state(good, "RUNNING")
    assert slurm.state(waiting) == "PENDING"
    eventually(lambda: watch.watches(bad) and watch.watches(good), 300)
    (tmp_path / "go").touch()

    eventually(lambda: watch.scores(bad), 300)
    slurm.end_controller()  # Slurm's own controller restarts in the middle
    time.sleep(1.5)
    slurm.start_controller()

    eventually(watch.stops, 300)
    watch = watcher()  # and evalstop's too, right after it decided
    eventually(lambda: watch.outcome(bad) is Outcome.STOPPED_BY_POLICY, 300)
    slurm.await_state(waiting, "RUNNING")

    # Jobs of earlier tests may still be completing there, and be judged too: they do not count.
    (stop,) = [stop for stop in watch.stops() if stop.job in {bad, good, waiting}]
    assert stop.job == bad
    assert watch.outcome(good) is None
    assert slurm.state(good) == "RUNNING"

    text = (tmp_path / "proxy/evals.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    scores = {row["step"]: row["score"] for row in rows}
    best = max(scores, key=scores.get)
    assert stop.best_step == best
    assert rows[-1]["step"] > best
    assert rows[-1]["proxy"] > next(row["proxy"] for row in rows if row["step"] == best)

    answer = watch.custodian.kept.best(bad, watch.controller.ledger.jobs[bad])
    assert answer["backed"]
    assert answer["best_saved"] == {"step": best, "score": scores[best]}
    assert not (tmp_path / f"proxy/checkpoint-{best}").exists()  # the trainer rotated it away
    saved = np.load(Path(answer["path"]) / "policy.npz")
    assert saved["step"] == best

    client = SlurmClient(environment=slurm.environment, time_limit_s=60)
    record = next(job for job in client.jobs() if job.id == bad)
    assert record.admin_comment.startswith("evalstop: stopped: alarm: statistic ")
    assert f"at step {best}" in record.admin_comment
    assert record.held  # the reversible stop: `scontrol release` or an undo brings it back
