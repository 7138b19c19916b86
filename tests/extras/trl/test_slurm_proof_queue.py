"""benchmarks/slurm_proof in small: two short TRL jobs on a real Slurm, guarded, then measured."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "tools"))
sys.path.append(str(Path(__file__).parents[3] / "benchmarks/slurm_proof"))

import drive
from run import measured
from slurm_cluster import missing_programs
from truth import Truth, prepare

from evalstop.lab.arms import arm_named


def test_a_queue_runs_on_a_real_slurm_and_is_measured(tmp_path, monkeypatch):
    missing = missing_programs()
    if missing and not os.environ.get("CI"):
        pytest.skip(f"no Slurm here ({', '.join(missing)}): see .ci/slurm-packages")
    assert not missing, "CI must install the packages that .ci/slurm-packages lists"
    jobs = (("chat", "grpo-gold", 2), ("code", "rloo-1024-noise10", 1))
    monkeypatch.setattr(drive, "JOBS", jobs)
    prepare(tmp_path, [arm_named(arm) for _, arm, _ in drive.JOBS], seed=3)
    pace = drive.Pace(step_s=0.0, steps=10, prefix=("nice",))
    record, folder = drive.run_queue(tmp_path, 3, pace, guarded=True)
    truth = Truth(tmp_path / "truth.json")
    try:
        seen = {job["arm"]: job for job in measured(record, folder, truth)["jobs"]}
    finally:
        shutil.rmtree(folder)
    assert record["server_cpu_s"] > 0
    for arm, tenant in (("grpo-gold", "chat"), ("rloo-1024-noise10", "code")):
        job = seen[arm]
        assert (job["tenant"], job["state"], job["outcome"]) == (tenant, "COMPLETED", "completed")
        assert 0 <= job["submitted"] <= job["started"] < job["times"][0] < job["ended"]
        assert job["steps"] == [0, 5, 10]
        assert job["evals_seen"] == 2
        assert job["kept_step"] in {5, 10}
        assert len(set(job["weights"])) == 3
        assert all(0.3 < score < 1.0 for score in job["true"])
    starts = [job["true"][0] for job in seen.values()]
    assert starts[0] == starts[1]  # one start policy, one set of held-out prompts
