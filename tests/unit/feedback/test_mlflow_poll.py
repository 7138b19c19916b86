"""A run on a tracking server, polled."""

import math

import pytest

from evalstop.core.errors import ReadError
from evalstop.feedback.mlflow import MlflowPoll
from evalstop.feedback.scores import Watch
from evalstop.traces.mlflow import Server

WATCH = Watch(job="job-7", metric="acc", direction="max", guards={"eval_loss": "min"})


class Fake:
    """What a tracking server knows, answered as its REST interface does."""

    def __init__(self):
        self.rows = {}
        self.pages = 2
        self.loops = False
        self.filters = []

    def log(self, metric, step, value):
        self.rows.setdefault(metric, []).append(
            {"key": metric, "step": str(step), "value": value, "timestamp": str(len(self.rows))}
        )

    def run(self):
        newest = [{"key": key, "value": rows[-1]["value"]} for key, rows in self.rows.items()]
        return {"info": {"run_id": "r1", "run_name": "n"}, "data": {"metrics": newest}}

    def __call__(self, path, parameters):
        if path == "runs/get":
            return {"run": self.run()}
        if path == "experiments/search":
            return {"experiments": [{"experiment_id": "1", "name": "x"}]}
        if path == "runs/search":
            self.filters.append(parameters["filter"])
            return {"runs": [self.run()] if self.rows else []}
        rows = self.rows[parameters["metric_key"]]
        start = int(parameters.get("page_token") or 0)
        page = {"metrics": rows[start : start + self.pages]}
        if start + self.pages < len(rows):
            page["next_page_token"] = "0" if self.loops else str(start + self.pages)
        return page


@pytest.fixture
def fake():
    return Fake()


def poll(fake, address="mlflow:http://x?run=r1"):
    return MlflowPoll(address, WATCH, Server("http://x", fake))


def seen(readings):
    return [(r.metric, r.point.step, r.point.score) for r in readings]


def test_all_pages_are_read_and_a_poll_without_news_says_nothing(fake):
    for step in range(5):
        fake.log("eval_acc", step, step / 10)
    fake.log("eval_loss", 4, 2.0)
    source = poll(fake)
    assert seen(source.readings()) == [
        *(("", step, step / 10) for step in range(5)),
        ("eval_loss", 4, -2.0),
    ]
    assert source.readings() == []
    fake.log("eval_acc", 5, 0.9)
    assert ("", 5, 0.9) in seen(source.readings())
    assert source.names == {"eval_acc", "eval_loss"}


def test_a_partial_history_is_held_back_until_it_is_whole(fake):
    for step in range(5):
        fake.log("eval_acc", step, 0.5)
    fake.loops = True
    source = poll(fake)
    assert source.readings() == []
    assert "partial" in source.problems[0]
    fake.loops = False
    assert len(source.readings()) == 5
    assert source.problems == []


def test_nan_is_a_reading_without_score(fake):
    fake.log("eval_acc", 1, "NaN")
    (reading,) = poll(fake).readings()
    assert math.isnan(reading.point.score)


def test_a_resumed_run_opens_an_attempt_beyond_the_jobs_own(fake):
    watch = Watch(job="job-7", metric="acc", direction="max", attempt=2)
    source = MlflowPoll("mlflow:http://x?run=r1", watch, Server("http://x", fake))
    at = iter(range(10))

    def log(*steps):
        for step in steps:
            fake.log("acc", step, 0.5)
            fake.rows["acc"][-1]["timestamp"] = str(next(at))

    log(10, 20, 30, 20)
    assert {r.point.attempt for r in source.readings()} == {2}  # may be a repeated evaluation
    log(30)
    told = [(r.point.attempt, r.point.step) for r in source.readings()]
    assert told == [(2, 10), (2, 20), (2, 30), (3, 20), (3, 30)]


def test_without_a_run_the_jobs_tag_finds_it(fake):
    source = poll(fake, "mlflow:http://x")
    assert source.readings() == []
    fake.log("eval_acc", 1, 0.5)
    assert len(source.readings()) == 1
    assert fake.filters[-1] == "tags.`evalstop.job_id` = 'job-7'"


def test_a_server_that_is_gone_is_told():
    source = MlflowPoll("mlflow:http://127.0.0.1:9?run=r1", WATCH)
    with pytest.raises(ReadError, match="does not answer"):
        source.readings()


def errors(readings):
    return [(r.point.step, r.point.stderr) for r in readings]


def test_a_sibling_metric_says_the_standard_error(fake):
    source = poll(fake)
    for step in (10, 20):
        fake.log("eval_acc", step, 0.5)
        fake.log("eval_acc_stderr", step, 0.125)
    assert errors(source.readings()) == [(10, 0.125), (20, 0.125)]
    fake.log("eval_acc", 30, 0.5)  # its error is not logged yet
    assert source.readings() == []
    fake.log("eval_acc_stderr", 30, "NaN")
    assert errors(source.readings())[2:] == [(30, None)]
    assert source.readings() == []


def test_a_partial_history_of_errors_holds_the_scores_back(fake):
    fake.log("eval_acc", 1, 0.5)
    for step in range(3):
        fake.log("eval_acc_stderr", step, 0.125)
    fake.loops = True
    source = poll(fake)
    assert source.readings() == []
    assert source.problems[0].startswith("eval_acc_stderr: held back")
    fake.loops = False
    assert errors(source.readings()) == [(1, 0.125)]
