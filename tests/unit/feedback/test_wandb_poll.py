"""A run's history through an object of the shape of W&B's public API."""

import math
import sys

import pytest

from evalstop.core.errors import MissingExtraError, ReadError
from evalstop.feedback.scores import Watch
from evalstop.feedback.wandb import WandbPoll
from evalstop.traces.sources import read_source

WATCH = Watch(job="j", metric="eval_acc", direction="max")


class FakeRun:
    def __init__(self, rows, last=None):
        self.rows = rows
        self.lastHistoryStep = rows[-1]["_step"] if last is None else last
        self.summary = {key: value for row in rows for key, value in row.items()}

    def scan_history(self, min_step=0):
        return iter([row for row in self.rows if row["_step"] >= min_step])


class FakeApi:
    def __init__(self, run):
        self.current = run

    def run(self, path):
        if self.current is None:
            msg = "not found"
            raise OSError(msg)
        assert path == "me/project/abc"
        return self.current


def poll(api):
    return WandbPoll("wandb:me/project/abc", WATCH, api)


def row(step, **values):
    return {"_step": step, "_timestamp": 100.0 + step, **values}


def test_rows_are_read_from_the_last_step_on():
    run = FakeRun([row(0, loss=1.0), row(1, **{"eval/acc": 0.5}), row(2, loss=0.5)])
    source = poll(FakeApi(run))
    (reading,) = source.readings()
    assert (reading.point.step, reading.point.score, reading.reported_at) == (1, 0.5, 101.0)
    assert source.readings() == []
    run.rows.append(row(3, **{"eval/acc": 0.75}))
    run.lastHistoryStep = 3
    assert [r.point.step for r in source.readings()] == [3]
    assert source.names == {"eval/acc", "loss"}


def test_the_trainers_own_step_goes_before_the_loggers():
    run = FakeRun([row(7, **{"eval/acc": 0.5, "train/global_step": 500})])
    assert poll(FakeApi(run)).readings()[0].point.step == 500


def test_a_resumed_run_opens_an_attempt_though_the_loggers_step_only_grows():
    own = [10, 20, 30, 20]
    rows = [row(i, **{"eval/acc": 0.5, "train/global_step": step}) for i, step in enumerate(own)]
    run = FakeRun(rows)
    source = poll(FakeApi(run))
    assert [(r.point.attempt, r.point.step) for r in source.readings()] == [(0, s) for s in own]
    run.rows.append(row(4, **{"eval/acc": 0.5, "train/global_step": 30}))
    run.lastHistoryStep = 4
    assert [(r.point.attempt, r.point.step) for r in source.readings()] == [(1, 20), (1, 30)]
    assert source.readings() == []


@pytest.mark.parametrize("value", ["NaN", float("inf"), "none"])
def test_what_is_no_number_is_a_reading_without_score(value):
    (reading,) = poll(FakeApi(FakeRun([row(1, **{"eval/acc": value})]))).readings()
    assert math.isnan(reading.point.score)


def test_a_scan_that_ends_too_early_is_held_back():
    run = FakeRun([row(1, **{"eval/acc": 0.5})], last=9)
    source = poll(FakeApi(run))
    assert source.readings() == []
    assert "step 1 of 9" in source.problems[0]
    run.rows.append(row(9, **{"eval/acc": 0.6}))
    assert [r.point.step for r in source.readings()] == [1, 9]


def test_a_service_that_fails_is_told():
    with pytest.raises(ReadError, match="not found"):
        poll(FakeApi(None)).readings()


def test_without_the_package_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match="wandb"):
        WandbPoll("wandb:me/project/abc", WATCH)


def test_an_exported_chart_has_a_run_a_column(tmp_path):
    path = tmp_path / "chart.csv"
    path.write_text(
        '"Step","swift-sun-1 - eval/acc","swift-sun-1 - eval/acc__MIN","old - eval/acc"\n'
        '"10","0.5","0.4",""\n"20","0.6","0.5","NaN"\n"30","","","0.25"\n'
    )
    first, second = read_source(path).curves
    assert (first.trace_id, first.metric) == ("swift-sun-1", "eval/acc")
    assert (list(first.steps), list(first.scores)) == ([10, 20], [0.5, 0.6])
    assert list(second.steps) == [20, 30]
    assert math.isnan(second.scores[0])


@pytest.mark.parametrize(
    ("rows", "words"), [('"1.5","0.5"\n', "whole"), ('"1",""\n', "no values"), ('"1","x"\n', "'x'")]
)
def test_a_broken_export_is_told(tmp_path, rows, words):
    path = tmp_path / "chart.csv"
    path.write_text('"Step","a - eval/acc"\n' + rows)
    with pytest.raises(ReadError, match=words):
        read_source(path)


@pytest.mark.parametrize(("stated", "stderr"), [(0.125, 0.125), ("NaN", None), (0, None)])
def test_a_sibling_key_says_the_standard_error(stated, stderr):
    run = FakeRun([row(1, **{"eval/acc": 0.5, "eval/acc_stderr": stated})])
    (reading,) = poll(FakeApi(run)).readings()
    assert reading.point.stderr == stderr
