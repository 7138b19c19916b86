"""Every way an input can be wrong: a clear message, with the place, and what to do."""

import json
import sys
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalstop.config.rules import parse_rule
from evalstop.core.errors import InputError, MissingExtraError, ReadError
from evalstop.traces.names import unknown_metric
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
    "no text": ("x.csv", b"trace_id,step,score\n\xff\xfe,1,2\n", ["UTF-8", "0xff", "iconv"]),
    "UTF-16": ("x.csv", GOOD.encode("utf-16"), ["UTF-16", "iconv -f UTF-16 -t UTF-8"]),
    "UTF-16, big end first": ("x.csv", b"\xfe\xff" + GOOD.encode("utf-16-be"), ["UTF-16"]),
    "UTF-16 without its mark": ("x.csv", GOOD.encode("utf-16-le"), ["UTF-16"]),
    "a state in UTF-16": (
        "trainer_state.json",
        state([{"step": 1, "eval_acc": 0.5}]).encode("utf-16"),
        ["UTF-16"],
    ),
    "other bytes in a column that nobody asked for": (
        "x.csv",
        (
            "trace_id,step,score,note\n" + "a,1,0.5,-\n" * 4000 + "a,2,0.5,\xe9\na,1.5,0.5,-\n"
        ).encode("latin-1"),
        ["x.csv:4003", "1.5"],
    ),
    "spaces": ("x.csv", "trace_id step score\na 1 0.5\n", ["x.csv:1", "spaces", "','"]),
    "prose": ("notes.txt", "Dear all,\nhello\n", ["first line", "'Dear all,'", "trace_id,step"]),
    "a comment above the header": ("x.csv", "# mine\n" + GOOD, ["first line", "'# mine'"]),
    "no header": ("x.csv", "a,1,0.5\na,2,0.6\n", ["first line", "'a,1,0.5'"]),
    "a step beyond what a float can tell": (
        "x.csv",
        "trace_id,step,score\na,99999999999999999999,0.5\n",
        ["x.csv:2", "below 2^53", "1e+20"],
    ),
    "a cell longer than any": (
        "x.csv",
        "trace_id,step,score\n" + "a" * 200_000 + ",x,0.5\n",
        ["not a readable CSV file", "field limit"],
    ),
    "JSONL nested without end": (
        "x.jsonl",
        '{"trace_id": ' + "[" * 100_000 + "\n",
        ["x.jsonl:1", "nested too deeply"],
    ),
    "a state nested without end": (
        "trainer_state.json",
        '{"log_history": ' + "[" * 100_000,
        ["nested too deeply"],
    ),
    "results nested without end": (
        "results_1.json",
        '{"results": ' + "[" * 100_000,
        ["nested too deeply"],
    ),
    "verl's log of words": (
        "x.jsonl",
        '{"step":1,"data":{"val-core/a":"high"}}\n',
        ["no entry of val-core/a is a number"],
    ),
    "a state of words": (
        "trainer_state.json",
        state([{"step": 1, "eval_acc": "high"}]),
        ["no entry of eval_acc is a number"],
    ),
    "results without a number": (
        "results_1.json",
        '{"results": {"t": {"acc,none": "N/A"}}, "model_name": "checkpoint-1"}',
        ["results_1.json", "no metric is a number"],
    ),
    "an export with a step too large": (
        "x.csv",
        "Step,r - acc\n1e300,0.5\n",
        ["x.csv:2", "Step", "below 2^53", "1e+300"],
    ),
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


def test_a_metric_of_two_columns_is_refused(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("step,acc,acc\n1,0.5,0.6\n")
    with pytest.raises(ReadError, match="the column acc is there more than once"):
        read_source(path, "acc")


def test_a_log_that_is_damaged_anywhere_is_told(tmp_path):
    path = tmp_path / "x.eval"
    header = {"status": "success", "eval": {"model": "checkpoint-5"}, "results": {"scores": []}}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", json.dumps(header))
    whole = path.read_bytes()
    for place in range(len(whole)):
        for damaged in (whole[:place], whole[:place] + b"\xa5" + whole[place + 1 :]):
            path.write_bytes(damaged)
            with pytest.raises(ReadError):
                read_source(path)


def test_a_parquet_file_that_is_damaged_anywhere_is_told_or_read(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"trace_id": ["a"], "step": [1], "score": [0.5]}), path)
    whole = path.read_bytes()
    told = 0
    for place in range(4, len(whole)):
        path.write_bytes(whole[:place] + b"\xf3" + whole[place + 1 :])
        try:
            read_source(path)
        except ReadError:
            told += 1
    assert told > 0.25 * len(whole)


def test_a_parquet_file_with_a_column_twice_is_refused(tmp_path):
    arrays = [pa.array(["a"]), pa.array([1]), pa.array([0.5]), pa.array([0.6])]
    table = pa.Table.from_arrays(arrays, names=["trace_id", "step", "score", "Score"])
    pq.write_table(
        table.rename_columns(["trace_id", "step", "score", "score"]), tmp_path / "x.parquet"
    )
    with pytest.raises(ReadError, match=r"x.parquet: the column score is there more than once"):
        read_source(tmp_path / "x.parquet")


def test_a_parquet_file_with_a_step_too_large_names_its_row(tmp_path):
    pq.write_table(
        pa.table({"Trace_ID": ["a", "a"], "Step": [1, 2**62], "Score": [0.5, 0.6]}),
        tmp_path / "x.parquet",
    )
    with pytest.raises(ReadError, match=r"row 2: step must be a whole number below 2\^53"):
        read_source(tmp_path / "x.parquet")


def test_a_run_without_scores_spares_the_others_of_its_file(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(GOOD + "b,1,,true\nb,2,,true\n")
    loaded = read_source(path)
    assert [curve.trace_id for curve in loaded.curves] == ["a"]
    assert [str(error) for error in loaded.errors] == [
        f"{path}:4: run 'b' has no usable evaluation: no score"
    ]


@pytest.mark.parametrize("name", ["", "x" * 300, "loop", "gone.csv", "a\0b"])
def test_a_name_that_leads_nowhere_spares_the_others(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.csv").write_text(GOOD)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone.csv").symlink_to("nothing")
    report = replay([name, "good.csv"], parse_rule("none"))
    assert len(report.results) == 1
    (error,) = report.errors
    assert error.source == (name or "''")
    assert error.message.startswith(
        ("expected a file", "cannot be read: File name too long", "a symbolic link", "there is no")
    )


def test_a_link_that_leads_nowhere_in_a_folder_is_named(tmp_path):
    (tmp_path / "good.csv").write_text(GOOD)
    (tmp_path / "up").symlink_to(".")
    (tmp_path / "gone.csv").symlink_to("nothing")
    loaded = read_source(tmp_path)
    assert len(loaded.curves) == 1
    assert [str(error) for error in loaded.errors] == [
        f"{tmp_path / 'gone.csv'}: a symbolic link that leads nowhere"
    ]


def test_a_missing_extra_spares_the_other_sources(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_accumulator", None)
    (tmp_path / "mixed" / "run").mkdir(parents=True)
    events = tmp_path / "mixed" / "run" / "events.out.tfevents.1"
    events.write_bytes(b"events")
    (tmp_path / "mixed" / "good.csv").write_text(GOOD)
    (tmp_path / "good.csv").write_text(GOOD)
    for sources in ([tmp_path / "mixed"], [tmp_path / "good.csv", events]):
        report = replay(sources, parse_rule("none"))
        assert len(report.results) == 1
        assert "pip install 'evalstop[tensorboard]'" in report.errors[0].message
    with pytest.raises(MissingExtraError):
        replay([events], parse_rule("none"))
    with pytest.raises(MissingExtraError):
        replay([tmp_path / "mixed" / "run"], parse_rule("none"))


def test_evaluations_that_are_left_out_are_told(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(
        "trace_id,step,score\na,-1,0.5\na,1,0.5\na,1,0.5\na,2,nan\na,3,0.6\na,3,0.7\na,4,0.7\nb,1,0.5\n"
    )
    report = replay(path, parse_rule("default"), direction="max")
    left_out, few = report.warnings
    assert left_out == (
        "4 evaluations of 1 run left out or merged: the step is negative (1), repeat of the same "
        "report (1), another score for the same step (1), the score is not a finite number (1); "
        "skipped_points of --json names each"
    )
    assert few == "1 run of 2 with fewer than 3 usable evaluations: too few to see a decline"


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


@pytest.mark.parametrize(
    ("wanted", "nearest"),
    [
        ("eval_acuracy", "eval_accuracy"),
        ("evl/ac", "eval_acc"),
        ("gsm8k", "val-core/gsm8k/reward/mean@1"),
        ("accuracy_of_gsm8k", "eval_accuracy"),
        ("zzz", None),
    ],
)
def test_the_nearest_metric_is_named(wanted, nearest):
    known = ["eval_accuracy", "eval_acc", "eval_loss", "val-core/gsm8k/reward/mean@1"]
    said = unknown_metric(wanted, known)
    assert all(name in said for name in known)
    assert said.endswith(f"Did you mean {nearest!r}?" if nearest else f"{known[-1]}.")


def test_a_direction_that_contradicts_the_file_is_refused(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(GOOD)
    with pytest.raises(InputError, match="contradicts"):
        replay(path, parse_rule("none"), direction="min")
