"""The whole platform over a real Ray cluster: decline, stop, and the GPUs go to who waits."""

from __future__ import annotations

from conftest import GPUS_A_NODE
from evalstop.config.settings import (
    BackendName,
    ClusterSettings,
    CustodySettings,
    PolicySettings,
    Settings,
)
from evalstop.policies.modes import Mode
from evalstop.service.assemble import start
from evalstop.service.requests import EvalIn, Submission


def test_a_declining_job_is_stopped_and_its_gpus_start_the_next_one(cluster, tmp_path):
    settings = Settings(
        cluster=ClusterSettings(
            backend=BackendName.RAY, ray_address=cluster.dashboard, scheduler="fifo", poll_s=0.2
        ),
        policy=PolicySettings(mode=Mode.ENFORCE, rule="consecutive:k=2", warn_s=0, backed_s=0),
        custody=CustodySettings(every_s=0.2, settle_s=0.0),
    )
    running = start(settings, tmp_path, url="http://127.0.0.1:1")
    platform = running.platform
    try:
        for job in ("first", "second"):
            platform.submit(
                Submission(
                    id=job,
                    direction="max",
                    job_type="rlhf",
                    gpus=GPUS_A_NODE,
                    command=["sleep", "3000"],
                    grace_s=1,
                )
            )
        blocker = Submission(
            id="third",
            direction="max",
            job_type="rlhf",
            gpus=GPUS_A_NODE,
            command=["sleep", "3000"],
        )
        platform.submit(blocker)
        platform.wait_for("first", {"running"}, within_s=300)
        platform.wait_for("second", {"running"}, within_s=300)
        assert platform.job("third")["phase"] == "waiting"
        scores = [0.5, 0.6, 0.55, 0.5]
        reports = [EvalIn(step=step, score=score) for step, score in enumerate(scores)]
        platform.report("first", reports).result(timeout=300)
        platform.wait_for("first", {"stopped_by_policy"}, within_s=300)
        platform.wait_for("third", {"running"}, within_s=300)
        for job in ("second", "third"):
            platform.command("stop", actor="test", job=job)
            platform.wait_for(job, {"ended"}, within_s=300)
        assert platform.cluster()["gpus"]["free"] == platform.cluster()["gpus"]["total"]
    finally:
        running.close()
