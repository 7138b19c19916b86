"""Guarding the jobs of a scheduler we do not know: reports over HTTP and a stop command."""

from __future__ import annotations

import pytest

from evalstop.config.settings import BackendName, ClusterSettings, PolicySettings, Settings
from evalstop.core.errors import InputError
from evalstop.policies.modes import Mode
from evalstop.service.assemble import start
from evalstop.service.platform import ConflictError
from evalstop.service.requests import EvalIn, Submission


@pytest.fixture
def guarded(tmp_path, monkeypatch):
    monkeypatch.setattr("evalstop.service.platform.LISTED_S", 120.0)  # no job is unknown after it
    settings = Settings(
        cluster=ClusterSettings(
            backend=BackendName.COMMAND,
            stop_command=f"touch {tmp_path}/stopped-{{job}}",
            poll_s=0.02,
        ),
        policy=PolicySettings(mode=Mode.ENFORCE, rule="consecutive:k=2", warn_s=0, backed_s=0),
    )
    running = start(settings, tmp_path / "state", url="http://127.0.0.1:1")
    yield running.platform
    running.close()


def decline(platform, job):
    evals = [EvalIn(step=n, score=score) for n, score in enumerate((0.5, 0.6, 0.5, 0.4), start=1)]
    platform.report(job, evals).result(timeout=120)


def test_a_job_that_runs_elsewhere_is_stopped_by_the_command(guarded, tmp_path):
    assert guarded.submit(Submission(id="a", direction="max", job_type="rlhf", gpus=3)) == "a"
    guarded.wait_for("a", {"running"}, within_s=120)
    decline(guarded, "a")
    guarded.wait_for("a", {"stopped_by_policy"}, within_s=120)
    assert (tmp_path / "stopped-a").exists()


def test_its_end_is_told(guarded, tmp_path):
    for job, code, outcome in (("b", 0, "completed"), ("c", 1, "failed"), ("d", None, "failed")):
        guarded.submit(Submission(id=job, direction="max"))
        guarded.wait_for(job, {"running"}, within_s=120)
        guarded.ended(job, code)
        guarded.wait_for(job, {outcome}, within_s=120)
    assert not list(tmp_path.glob("stopped-*"))


def test_where_the_backend_sees_ends_itself_it_is_not_told(tmp_path):
    settings = Settings(cluster=ClusterSettings(slots=1, scheduler="fifo", poll_s=0.02))
    running = start(settings, tmp_path, url="http://127.0.0.1:1")
    platform = running.platform
    with pytest.raises(InputError, match="expected a command"):
        platform.submit(Submission(id="a", direction="max"))
    platform.submit(Submission(id="a", direction="max", command=["true"]))
    with pytest.raises(ConflictError, match="sees itself"):
        platform.ended("a", 0)
    platform.wait_for("a", {"completed"}, within_s=120)
    running.close()
