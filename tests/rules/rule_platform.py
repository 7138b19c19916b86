"""A whole platform over HTTP, with jobs that are real processes; it can be begun again."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import contextmanager

import httpx
import uvicorn

from evalstop.config.settings import ClusterSettings, CustodySettings, PolicySettings, Settings
from evalstop.policies.modes import Mode
from evalstop.service.api import create_app
from evalstop.service.serve import start
from evalstop.service.tokens import Principal, Scope


def settings_of(*, slots=200, rules=(), feedback=None, notify=(), **policy):
    base = {"mode": Mode.ENFORCE, "rule": "rlhf=consecutive:k=2;*=none", "warn_s": 0, "backed_s": 0}
    base |= {"save_s": 0, "confirm_s": 0, "stops_per_tenant_hour": 1000}
    more = {} if feedback is None else {"feedback": feedback}
    return Settings(
        cluster=ClusterSettings(slots=slots, scheduler="fifo", poll_s=0.02),
        policy=PolicySettings(**(base | policy)),
        custody=CustodySettings(every_s=0.05, settle_s=0.0),
        rules=rules,
        notify=notify,
        **more,
    )


class RulePlatform:
    """What a user of the API sees; ``running`` is the platform itself, for what no user sees."""

    def __init__(self, running, url, token, folder):
        self.running, self.url, self.token, self.folder = running, url, token, folder
        headers = {"Authorization": f"Bearer {token}"}
        self.http = httpx.Client(base_url=f"{url}/api/v1", timeout=180, headers=headers)

    def get(self, path):
        answer = self.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path, body=None, status=200):
        answer = self.http.post(path, content=json.dumps(body or {}))
        assert answer.status_code == status, answer.text
        return answer.json()

    def submit(self, job, *, status=201, **fields):
        fields = {"id": job, "direction": "max", "job_type": "rlhf", "tenant": "t"} | fields
        fields = {"command": ["sleep", "400"], "grace_s": 1} | fields
        return self.post("/jobs", fields, status)

    def report(self, job, *scores, first=1, **fields):
        evals = [
            {"step": step, "score": score} | fields for step, score in enumerate(scores, first)
        ]
        return self.post(f"/jobs/{job}/evals", {"evals": evals})

    def until(self, job, state, within_s=300.0):
        return self.running.platform.wait_for(job, {state}, within_s=within_s)

    def explain(self, job):
        return self.http.get(f"/jobs/{job}/explain").content


def eventually(true, within_s=300.0):
    """Wait for something that happens in its own time; the bound is no claim about speed."""
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def platform_in(folder, settings=None, *, end_jobs=True):
    running = start(settings or settings_of(), folder, url="http://127.0.0.1:1")
    app = create_app(running.platform, running.tokens)
    token = running.tokens.make(Principal(name="ada", scope=Scope.ADMIN))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    platform = RulePlatform(running, url, token, folder)
    try:
        yield platform
        if end_jobs:
            living = [job["id"] for job in platform.get("/jobs")["jobs"] if not job["outcome"]]
            for job in living:
                platform.http.post(f"/jobs/{job}/stop", content="{}")  # 409: it has just ended
            for job in living:
                platform.until(job, "ended")
    finally:
        platform.http.close()
        server.should_exit = True
        thread.join()
        listener.close()
        running.close()
