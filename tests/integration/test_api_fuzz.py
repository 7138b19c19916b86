"""The HTTP API, fuzzed by its own description: whatever comes, no answer is a server error."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, given, settings

from evalstop.config.settings import ClusterSettings, PolicySettings, Settings
from evalstop.core.errors import InputError
from evalstop.policies.modes import Mode
from evalstop.service.api import create_app
from evalstop.service.assemble import start
from evalstop.service.requests import Submission
from evalstop.service.tokens import Principal, Scope
from evalstop.testing.backend import eventually

STREAMS = "/api/v1/events"
EXAMPLES = 6


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Return the URL and the token of a platform in which job ``a`` runs."""
    running = start(
        Settings(
            cluster=ClusterSettings(slots=1, scheduler="fifo", poll_s=0.5),
            policy=PolicySettings(mode=Mode.ENFORCE),
        ),
        tmp_path_factory.mktemp("fuzz"),
        url="http://127.0.0.1:1",
    )
    app = create_app(running.platform, running.tokens)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        eventually(lambda: server.started, 180)
        running.platform.submit(
            Submission(id="a", direction="max", metric="acc", command=["sleep", "600"], grace_s=1.0)
        )
        running.platform.wait_for("a", {"running"}, within_s=180)
        token = running.tokens.make(Principal(name="ada", scope=Scope.ADMIN))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", token
        with contextlib.suppress(InputError):  # it may have been stopped
            running.platform.command("stop", actor="test", job="a")
        running.platform.wait_for("a", {"ended"}, within_s=180)
        server.should_exit = True
        thread.join(120)
    running.close()


def test_nothing_that_fits_the_description_makes_the_server_fail(address):
    url, token = address
    headers = {"Authorization": f"Bearer {token}"}
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json", timeout=180)
    tried = set()
    operations = [found.ok() for found in schema.get_all_operations()]
    operations.sort(key=lambda operation: operation.path.endswith("/stop"))  # last: it ends the job
    for operation in operations:
        if operation.path == STREAMS:
            continue  # an answer without an end
        tried.add(operation.path)

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def run(case):
            if case.path_parameters:
                case.path_parameters["job"] = "a"  # else every answer is a 404
            answer = case.call(base_url=url, headers=headers, timeout=180)
            assert answer.status_code < 500, (case.as_curl_command(), answer.text)

        run()
    assert len(tried) > 15
