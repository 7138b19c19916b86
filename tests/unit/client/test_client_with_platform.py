"""The reporter against the real platform: both ends of the wire are one and the same."""

from __future__ import annotations

import socket
import threading
import time

import pytest
import uvicorn

from evalstop.client.reporter import Reporter
from evalstop.client.wire import Destination
from evalstop.config.settings import ClusterSettings, PolicySettings, Settings
from evalstop.policies.modes import Mode
from evalstop.service.api import create_app
from evalstop.service.assemble import start
from evalstop.service.requests import Submission

SETTINGS = Settings(
    cluster=ClusterSettings(slots=2, scheduler="fifo", poll_s=0.02),
    policy=PolicySettings(mode=Mode.ENFORCE, rule="consecutive:k=2", warn_s=0, backed_s=0),
)


@pytest.fixture
def platform(tmp_path):
    running = start(SETTINGS, tmp_path / "state", url="http://127.0.0.1:1")
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(running.platform, running.tokens)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield running, f"http://127.0.0.1:{listener.getsockname()[1]}"
    for job in running.platform.jobs(tenant=None, phase=None, limit=10, series=False):
        if job["outcome"] is None:
            running.platform.command("stop", actor="ada", job=job["id"], for_s=None, note="")
            running.platform.wait_for(job["id"], {"ended"}, within_s=300)
    server.should_exit = True
    thread.join()
    listener.close()
    running.close()


def reporter_of(platform, job, file):
    running, url = platform
    running.platform.submit(
        Submission(
            id=job, direction="max", metric="win_rate", job_type="rlhf", command=["sleep", "1000"]
        )
    )
    running.platform.wait_for(job, {"running"}, within_s=300)
    token = running.tokens.of_job(job)
    return Reporter(Destination(url=url, job=job, token=token, file=str(file)), ask_every_s=0.05)


def test_what_is_reported_is_what_the_platform_knows(platform, tmp_path):
    reporter = reporter_of(platform, "a", tmp_path / "refused")
    for step, score in enumerate((0.5, float("nan"), 0.6), start=1):
        reporter.report(
            step,
            score,
            stderr=0.01,
            n_items=100,
            metric="win_rate",
            direction="max",
            proxy=step,
            checkpoint=f"checkpoint-{step}",
            attempt=0,
            loss=1.0 / step,
        )
    assert reporter.flush(300)
    assert not (tmp_path / "refused").exists()
    shown = platform[0].platform.job("a")
    assert shown["evals_seen"] == 3
    assert shown["best"]["step"] == 3
    assert not reporter.should_stop()


def test_a_decline_comes_back_as_the_wish_to_stop(platform, tmp_path):
    reporter = reporter_of(platform, "b", tmp_path / "refused")
    for step, score in enumerate((0.5, 0.6, 0.55, 0.5), start=1):
        reporter.report(step, score)
    deadline = time.monotonic() + 300
    while not reporter.should_stop():
        assert time.monotonic() < deadline
        time.sleep(0.01)
