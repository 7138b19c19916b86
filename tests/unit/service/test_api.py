"""The doors: what comes in, what is refused, and who may do what."""

from __future__ import annotations

import json
import random
import shutil
import socket
import threading
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn

from evalstop.config.settings import ClusterSettings, CustodySettings, PolicySettings, Settings
from evalstop.core.events import EvalReported
from evalstop.policies.modes import Mode
from evalstop.service.api import create_app
from evalstop.service.assemble import start
from evalstop.service.bodies import MOST_BYTES
from evalstop.service.tokens import Principal, Scope
from evalstop.testing.custody import write_checkpoint

SETTINGS = Settings(
    cluster=ClusterSettings(slots=2, scheduler="fifo", poll_s=0.02),
    policy=PolicySettings(mode=Mode.ENFORCE, rule="consecutive:k=2", warn_s=0, backed_s=0),
    custody=CustodySettings(every_s=0.05, settle_s=0.0),
)


class Client:
    def __init__(self, running, http, token):
        self.running, self.http = running, http
        self.headers = {"Authorization": f"Bearer {token}"}

    def be(self, **principal):
        token = self.running.tokens.make(Principal(**principal))
        return Client(self.running, self.http, token)

    def be_job(self, job):
        return Client(self.running, self.http, self.running.tokens.of_job(job))

    def get(self, path):
        return self.http.get(f"/api/v1{path}", headers=self.headers)

    def post(self, path, body=None, **headers):
        content = body if isinstance(body, bytes) else json.dumps(body or {})
        return self.http.post(f"/api/v1{path}", content=content, headers=self.headers | headers)

    def submit(self, job, **fields):
        fields = {"id": job, "direction": "max", "job_type": "rlhf", "tenant": "t"} | fields
        return self.post("/jobs", {"command": ["sleep", "1000"], "grace_s": 1} | fields)

    def until(self, job, state, within_s=180.0):
        return self.running.platform.wait_for(job, {state}, within_s=within_s)


@contextmanager
def platform_in(folder):
    running = start(SETTINGS, folder, url="http://127.0.0.1:1")
    app = create_app(running.platform, running.tokens)
    token = running.tokens.make(Principal(name="ada", scope=Scope.ADMIN))
    with served(app) as url, httpx.Client(base_url=url, timeout=120) as http:
        client = Client(running, http, token)
        yield client
        for job in client.get("/jobs").json()["jobs"]:
            if job["outcome"] is None:
                client.post(f"/jobs/{job['id']}/stop")
                client.until(job["id"], "ended")
    running.close()


@pytest.fixture
def client(tmp_path):
    with platform_in(tmp_path) as client:
        yield client


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One platform for requests that change nothing."""
    with platform_in(tmp_path_factory.mktemp("shared")) as client:
        client.submit("a")
        yield client


@contextmanager
def served(app):
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()
    listener.close()


def evals(*scores, first=1):
    return {"evals": [{"step": step, "score": score} for step, score in enumerate(scores, first)]}


def test_a_job_runs_declines_is_stopped_and_the_next_one_starts(client):
    assert client.submit("a", gpus=2).status_code == 201
    assert client.submit("b", gpus=2).status_code == 201
    client.until("a", "running")
    answer = client.post("/jobs/a/evals", evals(0.5, 0.6, 0.55, 0.5)).json()
    assert answer["accepted"] == 4
    assert answer["stop"] is True
    client.until("a", "stopped_by_policy")
    client.until("b", "running")
    record = client.get("/jobs/a/explain").json()["decisions"][0]
    assert record["best"]["step"] == 2
    assert record["rule"] == "consecutive:k=2"
    assert [point["score"] for point in record["series"]] == [0.5, 0.6, 0.55, 0.5]
    assert "enforce" in record["policy"]


def test_lower_is_better_is_normalised_at_the_door_and_shown_as_reported(client):
    client.submit("a", direction="min", metric="perplexity")
    client.until("a", "running")
    client.post("/jobs/a/evals", evals(5.0, 4.0, 4.5, 5.0))
    shown = client.until("a", "stopped_by_policy")
    assert shown["best"] == {"step": 2, "score": 4.0, "checkpoint": None}
    record = client.get("/jobs/a/explain").json()["decisions"][0]
    assert record["remarks"] == []
    assert record["best"]["score"] == 4.0
    assert "best 4 at step 2" in record["reason"]


def test_side_signals_are_explained_and_change_nothing(client):
    client.submit("a")
    scores = [0.5, 0.6, 0.55, 0.5]
    said = [
        {"step": step, "score": score, "proxy": step / 10, "signals": {"kl": step**2}}
        for step, score in enumerate(scores, start=1)
    ]
    assert client.post("/jobs/a/evals", {"evals": said}).status_code == 200
    record = client.get("/jobs/a/explain").json()["decisions"][0]
    reward, kl = record["remarks"]
    assert reward.startswith("training reward rose from 0.15 to 0.35")
    assert kl.startswith("KL from the start rose from 2.5 to 12.5 since the best score at step 2")
    assert record["series"][3]["signals"] == {"kl": 16.0}
    client.submit("b")
    client.post("/jobs/b/evals", evals(*scores))
    bare = client.get("/jobs/b/explain").json()["decisions"][0]
    for name in ("kind", "statistic", "threshold", "best", "left_out"):
        assert record[name] == bare[name]
    assert bare["reason"] == record["reason"].replace(", overoptimised", ", declining")


@pytest.mark.parametrize(
    "signals", [{"kl": "high"}, {"kl": None}, [1.0], {"x" * 1000: 1.0}, {"k": float("nan")}]
)
def test_side_signals_that_are_no_numbers_are_refused(client, signals):
    client.submit("a")
    report = json.dumps({"evals": [{"step": 1, "score": 0.5, "signals": signals}]})
    assert client.post("/jobs/a/evals", report.encode()).status_code in {400, 422}


def test_repeats_and_idempotency_keys_have_no_second_effect(client):
    client.submit("a")
    first = client.post("/jobs/a/evals", evals(0.5), **{"Idempotency-Key": "k"})
    again = client.post("/jobs/a/evals", evals(0.5), **{"Idempotency-Key": "k"})
    assert first.content == again.content
    repeat = client.post("/jobs/a/evals", evals(0.5, 0.6)).json()
    assert (repeat["accepted"], repeat["duplicates"]) == (1, 1)
    assert client.get("/jobs/a").json()["evals_seen"] == 2


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/jobs/nobody/evals", evals(0.5), 404, "submit it first"),
        ("/jobs/a/evals", {"evals": [{"step": -1, "score": 1}]}, 422, "step"),
        ("/jobs/a/evals", {"evals": [{"step": 1, "score": "good"}]}, 422, "float"),
        ("/jobs/a/evals", {"evals": [{"step": 1, "score": 1, "stderr": -1}]}, 422, "stderr"),
        ("/jobs/a/evals", {"evals": [{"step": 1, "scroe": 1}]}, 422, "scroe"),
        ("/jobs/a/evals", {"evals": []}, 422, "evals"),
        ("/jobs/a/evals", b'{"evals": [{"step": 1, "score": NaN}]}', 422, "malformed"),
        ("/jobs/a/evals", b"\xff\xfe", 422, "does not fit"),
        ("/jobs/a/evals", b"[" * 100_000, 422, "does not fit"),
        (
            "/jobs/a/evals",
            {"evals": [{"step": 1, "score": 1, "direction": "min"}]},
            422,
            "submitted with direction 'max'",
        ),
        ("/jobs", {"command": ["x"]}, 422, "direction"),
        ("/jobs", {"command": ["x"], "direction": "up"}, 422, "'max' or 'min'"),
        ("/jobs", {"command": ["x"], "direction": "max", "gpus": 3}, 422, "the cluster has 2"),
        ("/jobs", {"command": ["x"], "direction": "max", "gpus": 0}, 422, "gpus"),
        ("/jobs", {"command": ["x"], "direction": "max", "id": "../x"}, 422, "letters"),
        ("/jobs", {"command": ["x"], "direction": "max", "id": "a"}, 409, "another id"),
        ("/jobs", {"command": ["x"], "direction": "max", "cwd": "here"}, 422, "absolute"),
        ("/jobs", {"direction": "max"}, 422, "command"),
        ("/jobs/a/undo", {}, 409, "only a job that was stopped"),
        ("/jobs/nobody/stop", {}, 404, "submit it first"),
    ],
)
def test_bad_input_is_refused_with_what_to_do(shared, path, body, status, words):
    answer = shared.post(path, body)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]


@pytest.mark.parametrize(
    "fields",
    [
        {"command": ["sl\0eep", "1"]},
        {"command": ["sleep", "1\0"]},
        {"command": [""]},
        {"cwd": "/a\0b"},
        {"environment": {"A=B": "x"}},
        {"environment": {"": "x"}},
        {"environment": {"A": "x\0"}},
    ],
)
def test_what_no_process_can_be_started_with_is_refused_at_the_door(shared, fields):
    answer = shared.submit("unstartable", **fields)
    assert answer.status_code == 422, answer.text
    assert shared.get("/jobs/unstartable").status_code == 404


@pytest.mark.parametrize("order", ["backwards", "shuffled", "in order"])
def test_a_batch_is_taken_in_by_step_however_it_is_ordered(client, order):
    client.submit("a")
    steps = list(range(300))
    if order == "backwards":
        steps.reverse()
    elif order == "shuffled":
        random.Random(1).shuffle(steps)
    batch = [{"step": step, "score": 0.5 + step / 1000, "attempt": step % 2} for step in steps]
    assert client.post("/jobs/a/evals", {"evals": batch}).json()["accepted"] == 300
    logged = [
        (entry.event.point.attempt, entry.event.point.step)
        for entry in client.running.platform.parts.store.read_job("a")
        if isinstance(entry.event, EvalReported)
    ]
    assert logged == sorted(logged)
    assert len(logged) == 300


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/v1/jobs?limit=many", 422),
        ("GET", "/api/v1/jobs?limit=0", 422),
        ("GET", "/api/v1/jobs/" + "a" * 200, 422),
        ("GET", "/api/v1/jobs/..%2f..%2fetc/best", 404),
        ("GET", "/api/v1/nothing", 404),
        ("DELETE", "/api/v1/jobs/a", 405),
    ],
)
def test_every_refusal_is_told_in_the_same_form(shared, method, path, status):
    answer = shared.http.request(method, path, headers=shared.headers)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert answer.json()["error"]


def test_a_body_beyond_the_limit_is_refused(shared):
    assert shared.post("/jobs/a/evals", b" " * (MOST_BYTES + 1)).status_code == 413


def test_a_score_that_is_no_number_counts_but_is_never_best(client):
    client.submit("a")
    reports = [{"step": step, "score": None} for step in range(1, 4)]
    answer = client.post("/jobs/a/evals", {"evals": reports}).json()
    assert answer["state"] == "diverged"
    assert answer["stop"] is False
    assert client.get("/jobs/a").json()["best"] is None


def test_without_a_token_nothing_is_told(shared):
    client = shared
    for path in ("/jobs", "/jobs/a", "/cluster", "/savings", "/events", "/jobs/a/explain"):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic x"}):
            answer = client.http.get(f"/api/v1{path}", headers=headers)
            assert answer.status_code == 401
    assert client.http.get("/healthz").status_code == 200
    assert client.http.get("/readyz").json() == {"ready": True}


def test_each_scope_may_do_its_part_only(client):
    client.submit("a", tenant="blue")
    client.submit("b", tenant="red")
    blue = client.be(name="bo", scope=Scope.TENANT, tenant="blue")
    assert [job["id"] for job in blue.get("/jobs").json()["jobs"]] == ["a"]
    assert blue.get("/jobs/a").status_code == 200
    for path in ("/jobs/b", "/jobs/b/explain", "/jobs/b/best", "/jobs/b/output"):
        assert blue.get(path).status_code == 404
        nobody = blue.get(path.replace("/jobs/b", "/jobs/zz"))
        assert (nobody.status_code, nobody.json()["error"].replace("zz", "b")) == (
            404,
            blue.get(path).json()["error"],
        )
    assert blue.post("/jobs/b/evals", evals(0.5)).status_code == 404
    for path in ("/cluster", "/savings", "/troubles", "/events"):
        assert blue.get(path).status_code == 403
    assert blue.post("/jobs/a/stop").status_code == 403
    assert blue.submit("c", tenant="red").status_code == 201
    assert client.get("/jobs/c").json()["tenant"] == "blue"
    own = client.be_job("a")
    assert own.post("/jobs/a/evals", evals(0.5)).status_code == 200
    assert own.post("/jobs/b/evals", evals(0.5)).status_code == 404
    assert own.submit("d").status_code == 403
    for path in ("/jobs", "/jobs?limit=1"):  # however many newer ones there are
        assert [job["id"] for job in own.get(path).json()["jobs"]] == ["a"]
    forged = client.be_job("b")
    forged.headers["Authorization"] = forged.headers["Authorization"].replace(
        b"b".hex(), b"a".hex(), 1
    )
    assert forged.get("/jobs/a").status_code == 401


def test_an_admin_makes_lists_and_revokes_tokens(client):
    client.submit("a", tenant="blue")
    client.submit("b", tenant="red")
    made = client.post("/tokens", {"name": "bo", "scope": "tenant", "tenant": "blue"})
    assert made.status_code == 201
    told = made.json()
    assert told.keys() == {"token", "id", "name", "scope", "tenant"}
    blue = Client(client.running, client.http, told["token"])
    assert [job["id"] for job in blue.get("/jobs").json()["jobs"]] == ["a"]
    assert blue.get("/jobs/b").status_code == 404
    duty = client.post("/tokens", {"name": "di", "scope": "operator"}).json()
    operator = Client(client.running, client.http, duty["token"])
    assert operator.post("/freeze").status_code == 200
    for other in (blue, operator, client.be_job("a")):
        assert other.get("/tokens").status_code == 403
        assert other.post("/tokens", {"name": "x", "scope": "admin"}).status_code == 403
        path = f"/api/v1/tokens/{duty['id']}"
        assert other.http.delete(path, headers=other.headers).status_code == 403
    listed = client.get("/tokens").json()["tokens"]
    assert {one["name"] for one in listed} >= {"ada", "bo", "di"}
    assert told["token"] not in client.get("/tokens").text
    path = f"/api/v1/tokens/{told['id']}"
    assert client.http.delete(path, headers=client.headers).json() == {"revoked": told["id"]}
    assert blue.get("/jobs").status_code == 401
    assert client.http.delete(path, headers=client.headers).status_code == 422
    notes = [
        entry.event.note
        for entry in client.running.platform.parts.store.read()
        if getattr(entry.event, "command", "") == "token"
    ]
    assert notes == [
        f"made {told['id']} for bo (tenant blue)",
        f"made {duty['id']} for di (operator)",
        f"revoked {told['id']} of bo (tenant blue)",
    ]


@pytest.mark.parametrize(
    "body",
    [
        {"name": "x", "scope": "tenant"},
        {"name": "x", "scope": "tenant", "tenant": ""},
        {"name": "x", "scope": "operator", "tenant": "blue"},
        {"name": "x", "scope": "admin", "tenant": "blue"},
        {"name": "", "scope": "operator"},
        {"name": "x", "scope": "job"},
        {"name": "x", "scope": "root"},
        {"scope": "operator"},
    ],
)
def test_a_token_that_would_stand_for_too_much_or_nobody_is_refused(shared, body):
    before = shared.get("/tokens").json()
    assert shared.post("/tokens", body).status_code == 422
    assert shared.get("/tokens").json() == before


def test_the_last_admin_cannot_be_locked_out(client):
    listed = client.get("/tokens").json()["tokens"]
    admins = [one["id"] for one in listed if one["scope"] == "admin"]
    answers = [
        client.http.delete(f"/api/v1/tokens/{one}", headers=client.headers).status_code
        for one in sorted(admins, key=lambda one: one == client.running.tokens.id_of(
            client.headers["Authorization"].removeprefix("Bearer ")))
    ]  # fmt: skip
    assert answers == [200] * (len(admins) - 1) + [409]
    assert client.get("/tokens").status_code == 200


def test_tokens_are_hashed_at_rest(client, tmp_path):
    token = client.headers["Authorization"].split()[1]
    content = b"".join(path.read_bytes() for path in tmp_path.glob("evalstop.sqlite*"))
    assert token.encode() not in content


def test_undo_reopens_a_stopped_job_with_a_fresh_streak(client):
    client.submit("a")
    client.until("a", "running")
    client.post("/jobs/a/evals", evals(0.5, 0.6, 0.55, 0.5))
    client.until("a", "stopped_by_policy")
    assert client.submit("a").status_code == 409, "requeue does not revive"
    assert client.post("/jobs/a/undo", {"note": "wrong"}).status_code == 200
    client.until("a", "running")
    answer = client.post("/jobs/a/evals", evals(0.58, first=5)).json()
    assert answer["stop"] is False
    shown = client.get("/jobs/a").json()
    assert shown["attempt"] == 2
    assert shown["best"]["score"] == 0.6, "best never gets worse"
    record = client.get("/jobs/a/explain").json()
    assert [order["command"] for order in record["operators"]] == ["undo"]
    assert record["operators"][0]["actor"] == "ada"


def test_people_can_freeze_and_stop(client):
    client.submit("a")
    client.until("a", "running")
    client.post("/freeze")
    answer = client.post("/jobs/a/evals", evals(0.5, 0.6, 0.55, 0.5)).json()
    assert answer["stop"] is False
    client.post("/unfreeze")
    assert client.post("/jobs/a/stop", {"note": "enough"}).status_code == 200
    assert client.until("a", "ended")["outcome"] == "cancelled"
    assert client.get("/jobs/a").json()["stop"]["author"] == "ada"


def test_savings_and_cluster_add_up(client):
    client.submit("a", estimated_s=3_600_000, gpus=2)
    client.until("a", "running")
    client.post("/jobs/a/evals", evals(0.5, 0.6, 0.55, 0.5))
    client.until("a", "stopped_by_policy")
    total = client.get("/savings").json()["total"]
    assert total["stops"] == 1
    assert 1_999.0 < total["gpu_hours_saved"] <= 2_000.0  # all but the moments that it ran
    gpus = client.get("/cluster").json()["gpus"]
    assert (gpus["total"], gpus["free"]) == (2, 2)


def test_a_job_is_told_where_to_report(client):
    client.submit("a", command=["sh", "-c", "echo $EVALSTOP_URL $EVALSTOP_JOB_ID $EVALSTOP_TOKEN"])
    client.until("a", "completed")
    url, job, token = client.get("/jobs/a/output").text.split()
    assert (url, job) == ("http://127.0.0.1:1", "a")
    assert client.running.tokens.find(token).job == "a"


def test_a_score_is_answered_only_when_its_checkpoint_is_in_custody(client, tmp_path):
    out = tmp_path / "out"
    client.submit("a", checkpoints=str(out))
    client.until("a", "running")
    for step in range(1, 6):
        path = write_checkpoint(out, step)
        client.post("/jobs/a/evals", evals(1.0 - 0.1 * step, first=step))
        shutil.rmtree(path)  # the trainer's rotation, at its worst
        best = client.get("/jobs/a/best").json()
        assert best["backed"]
        assert best["best_saved"] == {"step": 1, "score": 0.9}
        assert (Path(best["path"]) / "model.safetensors").exists()
        if client.get("/jobs/a").json()["stop"]:
            break
    record = client.get("/jobs/a/explain").json()["decisions"][0]
    assert record["best"]["checkpoint"] == "checkpoint-1"


def test_a_torn_checkpoint_does_not_keep_a_report_out(client, tmp_path):
    out = tmp_path / "out"
    client.submit("a", checkpoints=str(out))
    path = write_checkpoint(out, 1)
    (path / "model.safetensors").write_bytes(b"torn")
    assert client.post("/jobs/a/evals", evals(0.5)).json()["accepted"] == 1
    best = client.get("/jobs/a/best").json()
    assert (best["backed"], best["path"]) == (False, None)
