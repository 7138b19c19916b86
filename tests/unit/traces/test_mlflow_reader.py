"""MLflow's REST interface in its moods, and its own library's file store."""

import json
import math
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import ClassVar

import pytest

from evalstop.core.errors import InputError, MissingExtraError, ReadError
from evalstop.traces import mlflow
from evalstop.traces.mlflow import Address, Server, curve_of_history, read_mlflow
from evalstop.traces.sources import read_source


def point(step, value, timestamp=0):
    # Protocol buffers in JSON: 64-bit integers as text, zeros left out.
    row = {"key": "eval_acc", "value": value, "timestamp": str(timestamp)}
    return row | ({"step": str(step)} if step else {})


def run_data(run_id="r1", name="first", **newest):
    metrics = [{"key": key, "value": value} for key, value in newest.items()]
    return {"info": {"run_id": run_id, "run_name": name}, "data": {"metrics": metrics}}


def server(pages):
    """Answer each path with its list of pages, one a call, and remember the calls."""
    calls = []

    def call(path, parameters):
        calls.append((path, dict(parameters)))
        place = parameters.get("page_token") or "0"
        return pages[path][int(place)]

    made = Server("http://here", call)
    made.calls = calls
    return made


def history(*pages, newest=math.nan):
    made = server({"metrics/get-history": pages})
    return made.history(mlflow.Run("r1", "first", {"eval_acc": newest}), "eval_acc")


def test_every_page_is_read():
    found = history(
        {"metrics": [point(0, 0.1)], "next_page_token": "1"},
        {"metrics": [point(5, 0.2)], "next_page_token": "2"},
        {"metrics": [point(10, 0.3)]},
        newest=0.3,
    )
    assert [(step, value) for step, value, _ in found.points] == [(0, 0.1), (5, 0.2), (10, 0.3)]
    assert found.partial == ""


def test_a_page_token_that_comes_back_ends_the_reading_and_is_told():
    found = history(
        {"metrics": [point(0, 0.1)], "next_page_token": "1"},
        {"metrics": [point(5, 0.2)], "next_page_token": "1"},
    )
    assert len(found.points) >= 2
    assert "'1' twice" in found.partial


def test_a_history_without_the_newest_value_is_partial():
    assert "newest value 0.9" in history({"metrics": [point(0, 0.1)]}, newest=0.9).partial


@pytest.mark.parametrize("value", ["NaN", math.nan, None])
def test_nan_in_any_spelling_is_nan(value):
    assert math.isnan(history({"metrics": [point(1, value)]}).points[0][1])


def test_reports_are_ordered_by_their_own_step_not_by_arrival():
    found = history({"metrics": [point(10, 0.3, 1), point(5, 0.2, 9)]})
    curve = curve_of_history(found, source="s", trace_id="r", metric="eval_acc")
    assert list(curve.steps) == [5, 10]


def test_step_0_for_all_is_ordered_by_time_instead():
    found = history({"metrics": [point(0, 0.3, 30), point(0, 0.1, 10), point(0, 0.2, 20)]})
    curve = curve_of_history(found, source="s", trace_id="r", metric="eval_acc")
    assert list(curve.steps) == [0, 1, 2]
    assert list(curve.scores) == [0.1, 0.2, 0.3]


def test_runs_of_one_experiment_are_found_by_its_name():
    made = server(
        {
            "experiments/search": [
                {"experiments": [{"experiment_id": "1", "name": "a"}], "next_page_token": "1"},
                {"experiments": [{"experiment_id": "2", "name": "b"}]},
            ],
            "runs/search": [{"runs": [run_data(eval_acc=0.5)]}],
        }
    )
    assert made.runs(Address("", "b", ""))[0].name == "first"
    assert made.calls[-1][1]["experiment_ids"] == ["2"]
    with pytest.raises(ReadError, match="no experiment 'c'"):
        made.runs(Address("", "c", ""))


def test_runs_that_never_end_are_told():
    made = server(
        {
            "experiments/search": [{"experiments": [{"experiment_id": "1", "name": "a"}]}],
            "runs/search": [
                {"runs": [], "next_page_token": "1"},
                {"runs": [], "next_page_token": "1"},
            ],
        }
    )
    with pytest.raises(ReadError, match="twice"):
        made.runs(Address("", "", ""))


def test_an_address_has_two_options():
    assert Address.parse("mlflow:http://x:1?experiment=a&run=b") == ("http://x:1", "a", "b")
    for bad in ("mlflow:", "mlflow:http://x?user=me"):
        with pytest.raises(InputError):
            Address.parse(bad)


class Answers(BaseHTTPRequestHandler):
    """A tracking server with one run of two evaluations."""

    seen: ClassVar = []

    def do_GET(self):
        assert "/api/2.0/mlflow/metrics/get-history?" in self.path
        self.reply({"metrics": [point(1, 0.5), point(2, "NaN"), point(3, 0.7)]})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("experiments/search"):
            self.reply({"experiments": [{"experiment_id": "1", "name": "a"}]})
        else:
            self.reply({"runs": [run_data(eval_acc=0.7, eval_runtime=3.0)]})

    def reply(self, value):
        self.seen.append(self.headers.get("Authorization"))
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments):
        pass


@pytest.fixture
def address():
    http = HTTPServer(("127.0.0.1", 0), Answers)
    thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"mlflow:http://127.0.0.1:{http.server_port}"
    http.shutdown()
    thread.join()
    http.server_close()


def test_a_server_is_read_over_http_with_its_credentials(address, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    (curve,) = read_source(address).curves
    assert (curve.trace_id, curve.metric, list(curve.steps)) == ("first", "eval_acc", [1, 2, 3])
    assert curve.source == address
    assert set(Answers.seen) == {"Bearer secret"}
    monkeypatch.delenv("MLFLOW_TRACKING_TOKEN")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    read_source(address)
    assert Answers.seen[-1].startswith("Basic ")


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "http://[::1", "http://127.0.0.1:nine"])
def test_a_server_that_is_not_there_is_told(uri):
    with pytest.raises(ReadError, match="does not answer"):
        read_mlflow(f"mlflow:{uri}")


class Another(Answers):
    """A server that is not MLflow's, and answers every call with the same."""

    answer: ClassVar[object] = {}

    def do_GET(self):
        self.reply(self.answer)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.reply(self.answer)


@pytest.mark.parametrize(
    "answer",
    [[], 1, None, "x", {"experiments": 1}, {"experiments": [1]}, {"experiments": [{"id": 1}]},
     {"experiments": [{"experiment_id": "1"}], "runs": [{"name": "r"}]},
     {"experiments": [{"experiment_id": "1"}], "runs": [run_data(acc=1.0)],
      "metrics": [{"step": "x"}]}],
)  # fmt: skip
@pytest.mark.parametrize("query", ["", "?run=r1"])
def test_a_server_that_is_not_mlflows_is_told(address, monkeypatch, answer, query):
    for verb in ("do_GET", "do_POST"):
        monkeypatch.setattr(Answers, verb, getattr(Another, verb))
    monkeypatch.setattr(Another, "answer", answer)
    monkeypatch.setattr(Answers, "answer", answer, raising=False)
    with pytest.raises(ReadError, match=r"not one of MLflow's|no experiment"):
        read_mlflow(address + query)


def test_a_file_that_is_no_database_is_told(tmp_path, monkeypatch):
    def client(**_options):
        msg = "(sqlite3.DatabaseError) file is not a database\n[SQL: SELECT name FROM ...]"
        raise RuntimeError(msg)

    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=client))
    (tmp_path / "x.db").write_bytes(bytes(range(256)))
    with pytest.raises(ReadError, match=r"MLflow cannot read it: .*not a database$"):
        read_source(f"mlflow:sqlite:///{tmp_path}/x.db")


def test_a_store_without_server_is_read_by_mlflow_itself(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = f"file:{tmp_path}"
    client = MlflowClient(tracking_uri=uri)
    run = client.create_run(client.create_experiment("mine"), run_name="r")
    for step, value in ((10, 0.5), (20, float("nan")), (30, 0.25)):
        client.log_metric(run.info.run_id, "eval_acc", value, step=step)
    client.log_metric(run.info.run_id, "eval_acc_stderr", 0.125, step=30)
    for text in (f"mlflow:{uri}?experiment=mine", f"mlflow:{uri}?run={run.info.run_id}"):
        (curve,) = read_source(text).curves
        assert (curve.trace_id, list(curve.steps)) == ("r", [10, 20, 30])
        assert math.isnan(curve.scores[1])
        assert [value == 0.125 for value in curve.stderrs] == [False, False, True]
        assert curve.partial == ""
    with pytest.raises(ReadError, match="no experiment 'other'"):
        read_source(f"mlflow:{uri}?experiment=other")
    with pytest.raises(ReadError, match="MLflow cannot read it"):
        read_source(f"mlflow:{uri}?run=nothing")


def test_without_mlflow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingExtraError, match=r"evalstop\[mlflow\]"):
        read_source("mlflow:sqlite:///x.db")


@pytest.mark.parametrize(
    "uri", ["sqlite:///{}/made/x.db", "{}/made/runs", "file:{}/made/runs", "file://{}/made/runs"]
)
def test_a_local_store_that_is_not_there_is_not_made(monkeypatch, tmp_path, uri):
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace())
    with pytest.raises(ReadError, match=f"there is no MLflow store at {tmp_path}/made"):
        read_source("mlflow:" + uri.format(tmp_path))
    assert not (tmp_path / "made").exists()
