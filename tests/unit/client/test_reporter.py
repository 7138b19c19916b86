"""Reports reach a real HTTP server, or a file, and never the training run's way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import evalstop.client.reporter as module
from evalstop.client.reporter import Reporter
from evalstop.client.wire import Destination
from evalstop.traces.sources import read_source

SOURCE = Path(__file__).parents[3] / "src"


class Server:
    """A server whose next answers are scripted; the last one repeats."""

    def __init__(self):
        self.answers = [(200, {})]
        self.requests = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append((self.path, dict(self.headers), body["evals"]))
                answers = outer.answers
                status, answer = answers.pop(0) if len(answers) > 1 else answers[0]
                payload = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def close(self):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    @property
    def taken(self):
        return [report for _, _, reports in self.requests for report in reports]


@pytest.fixture
def server():
    made = Server()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.delenv("RANK", raising=False)


@pytest.fixture
def destination(tmp_path):
    def make(url):
        return Destination(url=url, job="a job/1", token="s3cret", file=str(tmp_path / "evals"))

    return make


def lines(tmp_path):
    file = tmp_path / "evals"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_report_arrives_with_everything_it_carries(server, destination, tmp_path):
    reporter = Reporter(destination(server.url))
    reporter.report(
        step=500,
        score=0.61,
        stderr=0.012,
        n_items=400,
        metric="win_rate",
        direction="max",
        proxy=2.5,
        checkpoint="checkpoint-500",
        attempt=2,
    )
    assert reporter.flush(60)
    [(path, headers, [sent])] = server.requests
    assert path == "/api/v1/jobs/a%20job%2F1/evals"
    assert headers["Authorization"] == "Bearer s3cret"
    assert headers["Idempotency-Key"]
    assert sent.pop("reported_at") == pytest.approx(time.time(), abs=60)
    assert sent == {
        "step": 500,
        "score": 0.61,
        "stderr": 0.012,
        "n_items": 400,
        "metric": "win_rate",
        "direction": "max",
        "proxy": 2.5,
        "checkpoint": "checkpoint-500",
        "attempt": 2,
    }
    assert lines(tmp_path) == []


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_a_batch_is_sent_again_under_the_same_key(server, destination, status):
    server.answers = [(status, {}), (status, {}), (200, {})]
    reporter = Reporter(destination(server.url))
    reporter.report(1, 0.5)
    assert reporter.flush(60)
    assert len(server.requests) == 3
    assert len({headers["Idempotency-Key"] for _, headers, _ in server.requests}) == 1


def test_a_server_that_comes_up_late_gets_everything_in_order(destination):
    server = Server()
    url = server.url
    server.close()
    reporter = Reporter(destination(url))
    for step in range(50):
        reporter.report(step, step / 100)
    time.sleep(0.05)
    late = Server.__new__(Server)
    try:
        late.__init__()
        # The same reporter, pointed at the server that now lives at another port.
        reporter.destination = reporter.destination._replace(url=late.url)
        assert reporter.flush(60)
        assert [report["step"] for report in late.taken] == list(range(50))
    finally:
        late.close()


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_what_a_server_refuses_goes_into_the_file(server, destination, tmp_path, status, caplog):
    server.answers = [(status, {"detail": "unknown job"})]
    reporter = Reporter(destination(server.url))
    reporter.report(1, 0.5)
    reporter.report(2, 0.6)
    assert reporter.flush(60)
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]
    assert "unknown job" in caplog.text


def test_side_signals_travel_as_numbers(destination, tmp_path):
    reporter = Reporter(destination(""))
    reporter.report(1, 0.5, signals={"kl": 2, "entropy": float("nan")}, direction="max")
    reporter.report(2, 0.6, signals={"kl": "high"})
    reporter.report(3, 0.7, signals={}, direction="max")
    (first, last) = lines(tmp_path)  # whoever reports nonsense loses that report, with a warning
    assert first["signals"] == {"kl": 2.0}
    assert (last["step"], last.get("signals", {})) == (3, {})
    file = (tmp_path / "evals").rename(tmp_path / "evals.jsonl")
    (curve,) = read_source(file).curves
    assert list(curve.scores) == [0.5, 0.7]
    assert curve.signals["kl"][0] == 2.0


def test_without_a_server_the_file_is_what_replay_reads(destination, tmp_path):
    reporter = Reporter(destination(""))
    reporter.report(1, 0.5, direction="max", metric="win_rate", stderr=0.01)
    reporter.report(2, float("nan"), direction="max", metric="win_rate")
    first, second = lines(tmp_path)
    assert first.pop("reported_at") > 0
    assert first == {
        "trace_id": "a job/1",
        "step": 1,
        "score": 0.5,
        "metric": "win_rate",
        "greater_is_better": True,
        "stderr": 0.01,
    }
    assert second["score"] is None
    assert second["not_finite"] == "nan"


def test_the_server_can_ask_for_a_stop(server, destination):
    reporter = Reporter(destination(server.url))
    reporter.report(1, 0.5)
    assert reporter.flush(60)
    assert not reporter.should_stop()
    server.answers = [(200, {"stop": True})]
    reporter.report(2, 0.4)
    assert reporter.flush(60)
    assert reporter.should_stop()


def test_a_job_that_wonders_hears_of_a_stop_that_comes_later(destination):
    answers = [OSError(), b"nonsense", b'{"stop": null}', b'{"stop": {"rule": "default"}}']
    asked = []

    def ask(address, headers, *, timeout_s):
        asked.append((address, headers["Authorization"], timeout_s > 0))
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer

    reporter = Reporter(destination("http://nowhere"), ask_every_s=0.01, asker=ask)
    assert not reporter.should_stop()
    deadline = time.monotonic() + 180
    while not reporter.should_stop():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert set(asked) == {("http://nowhere/api/v1/jobs/a%20job%2F1", "Bearer s3cret", True)}
    assert len(asked) >= 4


def test_a_job_that_does_not_wonder_asks_nothing(server, destination):
    def ask(*_args, **_kwargs):
        raise AssertionError

    reporter = Reporter(destination(server.url), ask_every_s=0.0, asker=ask)
    reporter.report(1, 0.5)
    assert reporter.flush(60)
    assert reporter._thread.is_alive()


@pytest.mark.parametrize("answer", [[], "stop", {"stop": "yes"}, None])
def test_an_answer_that_says_nothing_clear_stops_nothing(server, destination, answer):
    server.answers = [(200, answer)]
    reporter = Reporter(destination(server.url))
    reporter.report(1, 0.5)
    assert reporter.flush(60)
    assert not reporter.should_stop()


@pytest.mark.parametrize(
    "arguments",
    [
        {"step": "three", "score": 0.5},
        {"step": None, "score": 0.5},
        {"step": 1, "score": object()},
        {"step": 1, "score": "high"},
        {"step": 1, "score": 0.5, "n_items": "many items"},
        {"step": 1, "score": 0.5, "stderr": object()},
        {"step": 1, "score": 0.5, "no_such_field": 1},
    ],
)
def test_nonsense_never_raises(destination, arguments, monkeypatch):
    monkeypatch.setattr(module, "_reporter", Reporter(destination("")))
    module.report(**arguments)


def test_nothing_at_all_never_raises(destination, monkeypatch):
    monkeypatch.setattr(module, "_reporter", Reporter(destination("")))
    module.report()
    module.report(1)


@pytest.mark.parametrize("word", ["up", "Max", "maximize", "higher", True, 1])
def test_a_direction_that_is_none_is_told_and_never_filed_as_the_other(
    destination, tmp_path, word, caplog
):
    reporter = Reporter(destination(""))
    reporter.report(step=1, score=0.5, direction=word)
    reporter.report(step=2, score=0.6, direction="max")
    assert "direction must be 'max' or 'min'" in caplog.text
    first, second = lines(tmp_path)
    assert (first["step"], first["score"], "greater_is_better" in first) == (1, 0.5, False)
    assert second["greater_is_better"] is True


@pytest.mark.parametrize("step", [1.5, float("nan"), float("inf"), "1.5"])
def test_a_step_that_is_not_whole_is_no_other_step(destination, tmp_path, step, caplog):
    reporter = Reporter(destination(""))
    reporter.report(step=step, score=0.5)
    reporter.report(step=2.0, score=0.6)
    assert "a report was lost" in caplog.text
    assert [line["step"] for line in lines(tmp_path)] == [2]


def test_numbers_of_numpy_are_numbers(destination, tmp_path):
    import numpy as np

    Reporter(destination("")).report(np.int64(3), np.float32(0.5), stderr=np.float64(0.01))
    [line] = lines(tmp_path)
    assert (line["step"], line["score"], line["stderr"]) == (3, 0.5, 0.01)


def test_a_file_that_cannot_be_written_never_raises(tmp_path):
    Reporter(Destination(url="", job="j", token="", file=str(tmp_path))).report(1, 0.5)


def test_only_the_first_rank_reports(destination, tmp_path, monkeypatch):
    reporter = Reporter(destination(""))
    for rank in ("1", "7", "0"):
        monkeypatch.setenv("RANK", rank)
        reporter.report(int(rank), 0.5)
    assert [line["step"] for line in lines(tmp_path)] == [0]


def test_the_training_thread_never_waits_for_the_network(destination):
    release, answered = threading.Event(), threading.Event()

    def hang(*_args, **_kwargs):
        release.wait(600)
        answered.set()
        return 200, b"{}"

    reporter = Reporter(destination("http://nowhere"), sender=hang)
    for step in range(1000):
        reporter.report(step, 0.5)  # measured Nov 2026: 12 us each
    assert not answered.is_set()
    release.set()
    assert reporter.flush(60)


def test_a_full_buffer_spills_the_oldest_into_the_file(destination, tmp_path):
    release = threading.Event()

    def hang(*_args, **_kwargs):
        release.wait(600)
        return 200, b"{}"

    reporter = Reporter(destination("http://nowhere"), capacity=3, sender=hang)
    reporter.report(0, 0.5)
    deadline = time.monotonic() + 180
    while not reporter._in_flight:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    for step in range(1, 6):
        reporter.report(step, 0.5)
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]
    release.set()
    assert reporter.flush(60)


def test_leaving_is_bounded_and_loses_nothing(destination, tmp_path):
    def away(*_args, **_kwargs):
        raise ConnectionRefusedError

    reporter = Reporter(destination("http://nowhere"), drain_s=0.5, sender=away)
    for step in range(5):
        reporter.report(step, 0.5)
    reporter.close()  # else it would try for ever
    assert sorted(line["step"] for line in lines(tmp_path)) == list(range(5))


def test_leaving_while_a_request_hangs_is_bounded_too(destination):
    begun, release, answered = threading.Event(), threading.Event(), threading.Event()

    def hang(*_args, **_kwargs):
        begun.set()
        release.wait(600)
        answered.set()
        return 200, b"{}"

    reporter = Reporter(destination("http://nowhere"), drain_s=0.2, sender=hang)
    reporter.report(0, 0.5)
    assert begun.wait(120)
    reporter.close()
    assert not answered.is_set()
    release.set()


def test_a_program_that_ends_at_once_has_still_reported(server, tmp_path):
    script = "from evalstop.client import report\nfor s in range(20): report(s, s / 20)\n"
    subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        cwd=tmp_path,
        env=os.environ
        | {
            "PYTHONPATH": str(SOURCE),
            "EVALSTOP_URL": server.url,
            "EVALSTOP_JOB_ID": "quick",
            "EVALSTOP_TOKEN": "t",
        },
    )
    assert [report["step"] for report in server.taken] == list(range(20))
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_sends_its_own_reports_and_not_its_parents(destination):
    sent = []

    def note(_address, body, _headers, **_):
        sent.extend(json.loads(body)["evals"])
        return 200, b"{}"

    reporter = Reporter(destination("http://nowhere"), sender=note)
    reporter.report(1, 0.5)
    assert reporter.flush(60)
    reporter._waiting.append({"step": 99, "score": 0.0})  # the parent's, not yet sent
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            sent.clear()
            reporter.report(2, 0.5)
            reporter.flush(60)
            os.write(writer, json.dumps([one["step"] for one in sent]).encode())
        finally:
            os._exit(0)  # whatever happens, this is no second run of the tests
    os.close(writer)
    told = os.read(reader, 1000)
    os.close(reader)
    os.waitpid(child, 0)
    assert json.loads(told) == [2]
    reporter._waiting.clear()


def test_where_reports_go_is_read_from_the_environment():
    found = Destination.from_environment(
        {"EVALSTOP_URL": "http://h:1/", "EVALSTOP_JOB_ID": "j", "EVALSTOP_TOKEN": "t"}
    )
    assert (found.url, found.job, found.token) == ("http://h:1", "j", "t")
    assert Destination.from_environment({"EVALSTOP_URL": "http://h:1"}).url == ""
    assert Destination.from_environment({"EVALSTOP_FILE": "x.jsonl"}).file == "x.jsonl"
