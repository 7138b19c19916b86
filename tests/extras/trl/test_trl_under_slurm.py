"""A real TRL run under a real Slurm is stopped past its peak, by one option of its sbatch."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from safetensors import safe_open

from evalstop.backends.slurm import SlurmBackend, SlurmClient
from evalstop.config.rules import parse_rule
from evalstop.config.settings import FeedbackSettings
from evalstop.core.job import Outcome
from evalstop.custody import FileCustody
from evalstop.policies.evalstop import EvalStop
from evalstop.schedulers.native import Native
from evalstop.service.carry_out import BackendCarryOut
from evalstop.service.clock import SystemClock
from evalstop.service.controller import Controller
from evalstop.service.custodian import Custodian
from evalstop.service.poller import Poller
from evalstop.service.puller import make_puller
from evalstop.store.sqlite import SqliteStore
from evalstop.testing.backend import eventually

sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))

from slurm_cluster import SlurmCluster, missing_programs

SCRIPT = Path(__file__).with_name("grpo_script.py")
METRIC = "eval_rewards/world/mean"


@pytest.fixture
def slurm():
    missing = missing_programs()
    if missing and not os.environ.get("CI"):
        pytest.skip(f"no Slurm here ({', '.join(missing)}): see .ci/slurm-packages")
    assert not missing, "CI must install the packages that .ci/slurm-packages lists"
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # short: holds a unix socket
    folder.chmod(0o755)
    with SlurmCluster(folder) as cluster:
        yield cluster
    shutil.rmtree(folder)


def newest_whole_state(out):
    """Return the newest trainer state; a run that is killed may leave a torn one behind."""
    newest_first = sorted(out.glob("checkpoint-*"), key=lambda path: -int(path.name[11:]))
    for checkpoint in newest_first:
        with contextlib.suppress(OSError, ValueError):
            return json.loads((checkpoint / "trainer_state.json").read_text())
    raise AssertionError(newest_first)


def test_a_trl_run_that_overoptimises_is_stopped_and_its_best_is_kept(slurm, tmp_path):
    out = tmp_path / "run"
    comment = f"evalstop:metric={METRIC},direction=max,job_type=rlhf,checkpoints={out}"
    script = f"#!/bin/sh\nexport OMP_NUM_THREADS=1\nexec {sys.executable} {SCRIPT} {out}\n"
    job = slurm.submit(script, "--gpus=h100:12", f"--comment={comment}", "--requeue")
    waiting = slurm.submit(
        "#!/bin/sh\nexec sleep 3600\n",
        "--gres=gpu:h100:8",
        "--comment=evalstop:metric=acc,direction=max",
    )
    store = SqliteStore(tmp_path / "log.sqlite")
    custody = FileCustody(tmp_path / "custody")
    policy = EvalStop(base=Native(), rules=parse_rule("default"))
    backend = SlurmBackend(SlurmClient(environment=slurm.environment, time_limit_s=60))
    carry_out = BackendCarryOut(backend, store)
    controller = Controller(store=store, policy=policy, clock=SystemClock(), carry_out=carry_out)
    custodian = Custodian(custody, store, every_s=0.2, settle_s=0.2)
    custodian.attach(controller)
    puller = make_puller(
        FeedbackSettings(every_s=0.2),
        controller=controller,
        documents=store,
        store=store,
        pins=custody,
        watches=policy.watches,
        folder=tmp_path,
    )
    poller = Poller(carry_out, every_s=0.5)
    controller.start()
    threads = (poller, custodian, puller)
    for thread in threads:
        thread.start()
    try:
        jobs = controller.ledger.jobs
        eventually(lambda: job in jobs and jobs[job].outcome is not None, 1800)
        assert jobs[job].outcome is Outcome.STOPPED_BY_POLICY
        slurm.await_state(waiting, "RUNNING")

        log = newest_whole_state(out)["log_history"]
        scores = {row["step"]: row[METRIC] for row in log if METRIC in row}
        proxies = {row["step"]: row["eval_reward"] for row in log if METRIC in row}
        stop = jobs[job].stop
        assert scores[stop.best_step] == max(s for n, s in scores.items() if n <= max(scores))
        assert proxies[max(proxies)] > proxies[stop.best_step] + 0.1  # the proxy rose all along
        assert scores[max(scores)] < scores[stop.best_step] - 0.05  # the world fell

        best = custodian.kept.best(job, jobs[job])
        assert best["backed"]
        assert not (out / f"checkpoint-{stop.best_step}").exists()  # the trainer let it go
        with safe_open(Path(best["path"]) / "model.safetensors", "pt") as weights:
            assert weights.keys()
        record = next(each for each in backend._client.jobs() if each.id == job)
        assert record.admin_comment.startswith("evalstop: stopped: alarm")
    finally:
        for thread in (*threads, controller):
            thread.close()
