"""Every way an input can be wrong: a clear message, with the place, and what to do."""

import json

import pytest

from evalstop.config.rules import parse_rule
from evalstop.core.errors import InputError, ReadError
from evalstop.traces.replay import replay
from evalstop.traces.sources import read_source

GOOD = "trace_id,step,score,greater_is_better\na,1,0.1,true\na,2,0.2,true\n"


def state(log, **more):
    return json.dumps({"log_history": log, **more})


FATAL = {
    "an empty file": ("x.csv", "", ["x.csv", "empty"]),
    "an empty JSONL": ("x.jsonl", "\n\n", ["x.jsonl", "empty"]),
    "a header alone": ("x.csv", "trace_id,step,score\n", ["no rows"]),
    "semicolons": ("x.csv", "trace_id;step;score\na;1;0.5\n", ["x.csv:1", "';'", "','"]),
    "tabs": ("x.csv", "trace_id\tstep\tscore\na\t1\t0.5\n", ["x.csv:1", "'\\t'"]),
    "a score that is text": (
        "x.csv",
        "trace_id,step,score\na,1,0.5\na,2,good\n",
        ["x.csv:3", "score", "'good'"],
    ),
    "text after a quoted line break": (
        "x.csv",
        'trace_id,step,score\n"a\nb",1,0.5\na,2,good\n',
        ["x.csv:4", "'good'"],
    ),
    "a stderr that is text": (
        "x.csv",
        "trace_id,step,score,stderr\na,1,0.5,tiny\n",
        ["x.csv:2", "stderr", "'tiny'"],
    ),
    "a step with a fraction": (
        "x.csv",
        "trace_id,step,score\na,1,0.5\na,1.5,0.6\n",
        ["x.csv:3", "whole number", "1.5"],
    ),
    "no step": ("x.csv", "trace_id,step,score\na,,0.5\n", ["x.csv:2", "step", "nothing"]),
    "an infinite step": ("x.csv", "trace_id,step,score\na,inf,0.5\n", ["x.csv:2", "inf"]),
    "a missing score column": (
        "x.csv",
        "trace_id,step,acc\na,1,0.5\n",
        ["score (or value)", "trace_id, step, acc", "--metric"],
    ),
    "a missing step column": ("x.csv", "trace_id,score\na,0.5\n", ["step", "missing"]),
    "a missing trace_id column": ("x.csv", "step,score\n1,0.5\n", ["trace_id", "missing"]),
    "a column twice": ("x.csv", "trace_id,step,score,score\na,1,1,1\n", ["more than once"]),
    "too many cells": ("x.csv", "trace_id,step,score\na,1,0.5,9\n", ["x.csv:2", "3 cells", "4"]),
    "an empty trace_id": ("x.csv", "trace_id,step,score\n,1,0.5\n", ["x.csv:2", "trace_id"]),
    "no run with a score": ("x.csv", "trace_id,step,score\na,1,\n", ["'a'", "no score"]),
    "an unclear direction": (
        "x.csv",
        "trace_id,step,score,greater_is_better\na,1,0.5,maybe\n",
        ["x.csv:2", "'maybe'", "true or false"],
    ),
    "both directions in a run": (
        "x.csv",
        "trace_id,step,score,greater_is_better\na,1,0.5,true\na,2,0.5,false\n",
        ["both true and false", "'a'"],
    ),
    "no text": ("x.csv", b"trace_id,step,score\n\xff\xfe,1,2\n", ["UTF-8"]),
    "an unknown format": ("x.bin", b"\x00\x01\x02", ["not a format evalstop knows"]),
    "a broken Parquet": ("x.parquet", b"PAR1 and no more", ["Parquet"]),
    "JSONL that is no JSON": ("x.jsonl", '{"trace_id": "a"\n{}\n', ["x.jsonl:1", "JSON"]),
    "JSONL of lists": ("x.jsonl", '{"trace_id":"a","step":1,"score":1}\n[1]\n', ["x.jsonl:2"]),
    "JSONL with a text score": (
        "x.jsonl",
        '{"trace_id":"a","step":1,"score":1}\n\n{"trace_id":"a","step":2,"score":"x"}\n',
        ["x.jsonl:3", "score", "'x'"],
    ),
    "JSONL without a score": ("x.jsonl", '{"trace_id":"a","step":1}\n', ["score (or value)"]),
    "verl's log without evaluations": (
        "x.jsonl",
        '{"step":1,"data":{"actor/loss":0.5}}\n',
        ["val-core", "actor/loss"],
    ),
    "verl's log without steps": ("x.jsonl", '{"step":"a","data":{}}\n', ["x.jsonl:1", "step"]),
    "a truncated trainer state": (
        "trainer_state.json",
        state([{"step": 1, "eval_acc": 0.5}])[:-9],
        ["trainer_state.json", "cut short"],
    ),
    "a trainer state of something else": ("trainer_state.json", "{}", ["log_history"]),
    "a trainer state without evaluations": (
        "trainer_state.json",
        state([{"step": 1, "loss": 2.0}]),
        ["no evaluation"],
    ),
    "a trainer state without steps": (
        "trainer_state.json",
        state([{"eval_acc": 2.0}]),
        ["log_history[0]", "step"],
    ),
    "truncated results": ("results_1.json", '{"results": {"a"', ["cut short"]),
    "results of something else": ("results_1.json", '{"outcome": 1}', ["lm-evaluation-harness"]),
    "results without a step": (
        "results_1.json",
        '{"results": {"t": {"acc,none": 0.5}}, "model_name": "gpt2"}',
        ["step is not known", "gpt2"],
    ),
}


@pytest.mark.parametrize(("name", "content", "words"), FATAL.values(), ids=FATAL)
def test_a_file_that_cannot_be_used_says_where_and_why(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ReadError) as caught:
        read_source(path)
    for word in words:
        assert word in str(caught.value)


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(ReadError, match="no such file"):
        read_source(tmp_path / "nothing.csv")


def test_a_folder_without_runs_lists_what_is_looked_for(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ReadError, match=r"no runs found among 1 files: .*trainer_state.json"):
        read_source(tmp_path)


def test_an_unreadable_file_is_an_error_of_that_file(tmp_path, monkeypatch):
    path = tmp_path / "x.csv"
    path.write_text(GOOD)

    def refuse(*_arguments, **_options):  # root, as in containers, may read anything
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", refuse)
    with pytest.raises(ReadError, match="Permission denied"):
        read_source(path)


def test_one_bad_file_spares_the_others(tmp_path):
    (tmp_path / "bad.csv").write_text("trace_id,step,score\na,1,x\n")
    (tmp_path / "good.csv").write_text(GOOD)
    loaded = read_source(tmp_path)
    assert [curve.trace_id for curve in loaded.curves] == ["a"]
    assert [error.source for error in loaded.errors] == [f"{tmp_path / 'bad.csv'}:2"]


def test_nothing_readable_names_every_reason(tmp_path):
    for name in ("one.csv", "two.csv"):
        (tmp_path / name).write_text("")
    with pytest.raises(InputError, match=r"(?s)one.csv.*two.csv"):
        replay([tmp_path / "one.csv", tmp_path / "two.csv"], parse_rule("none"), direction="max")


def test_a_last_line_cut_short_is_named_and_the_rest_is_used(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"trace_id":"a","step":1,"score":0.5}\n{"trace_id":"a","st')
    loaded = read_source(path)
    assert loaded.curves[0].scores == [0.5]
    assert loaded.errors[0].source == f"{path}:2"
    assert "cut short" in loaded.errors[0].message


def test_a_newest_state_cut_short_gives_way_to_an_older_one(tmp_path):
    log = [{"step": 1, "eval_acc": 0.5}, {"step": 2, "eval_acc": 0.6}]
    for step, text in ((1, state(log[:1])), (2, state(log)), (3, state(log)[:-5])):
        folder = tmp_path / "run" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "trainer_state.json").write_text(text)
    loaded = read_source(tmp_path)
    assert [(curve.trace_id, list(curve.steps)) for curve in loaded.curves] == [("run", [1, 2])]
    assert len(loaded.errors) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"metric": "acurracy", "direction": "max"}, ["acurracy", "eval_accuracy", "Did you mean"]),
        ({}, ["several metrics", "--metric", "eval_accuracy, eval_loss"]),
        ({"metric": "accuracy"}, ["--direction max or --direction min"]),
    ],
)
def test_metrics_and_directions_are_asked_for(tmp_path, options, words):
    path = tmp_path / "trainer_state.json"
    path.write_text(state([{"step": 1, "eval_accuracy": 0.5, "eval_loss": 2.0}]))
    with pytest.raises(InputError) as caught:
        replay(path, parse_rule("none"), **options)
    for word in words:
        assert word in str(caught.value)


def test_a_direction_that_contradicts_the_file_is_refused(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(GOOD)
    with pytest.raises(InputError, match="contradicts"):
        replay(path, parse_rule("none"), direction="min")
