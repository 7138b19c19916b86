"""The same rows in another packing, or under another name for the run, give the same answer."""

import gzip
import io
import json
import os
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalstop.config.rules import parse_rule
from evalstop.core.errors import InputError, ReadError
from evalstop.traces.replay import replay
from evalstop.traces.sources import read_source

SCORES = [0.5, 0.55, 0.6, 0.62, 0.63, 0.6, 0.55, 0.5, 0.45, 0.4]
UP = [1 - score for score in SCORES]
LONG = "trace_id,step,score\n" + "".join(f"a,{i * 100},{s}\n" for i, s in enumerate(SCORES))
LINES = "".join(
    json.dumps({"trace_id": "a", "step": i * 100, "score": s}) + "\n" for i, s in enumerate(SCORES)
)
STATE = json.dumps(
    {"log_history": [{"step": i * 100, "eval_score": s} for i, s in enumerate(SCORES)]}
)
CONTENTS = {"csv": LONG, "jsonl": LINES, "json": STATE}


def stop_of(*sources):
    (result,) = replay(sources, parse_rule("default"), direction="max").results
    return result.stop_step, result.best_step, result.n_evals


@pytest.fixture
def expected(tmp_path):
    path = tmp_path / "plain.csv"
    path.write_text(LONG)
    return stop_of(path)


class Stdin:
    def __init__(self, data):
        self.buffer = io.BytesIO(data)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("kind", CONTENTS)
def test_standard_input_and_pipes_are_read_like_files(
    monkeypatch, tmp_path, expected, kind, packed
):
    data = CONTENTS[kind].encode()
    data = gzip.compress(data) if packed else data
    monkeypatch.setattr(sys, "stdin", Stdin(data))
    assert stop_of("-") == expected
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(data,))
    writer.start()
    assert stop_of(pipe) == expected
    writer.join()


@pytest.mark.parametrize("kind", CONTENTS)
def test_a_file_packed_by_gzip_is_read(tmp_path, expected, kind):
    path = tmp_path / f"runs.{kind}.gz"
    path.write_bytes(gzip.compress(CONTENTS[kind].encode()))
    assert stop_of(path) == expected
    assert read_source(path).curves[0].source == str(path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (gzip.compress(LONG.encode(), mtime=0)[:60], "cannot be read"),
        (gzip.compress(LONG.encode(), mtime=0)[:-9] + b"123456789", "cannot be read"),
        (gzip.compress(b"", mtime=0), "empty"),
        (gzip.compress(b"trace_id,step,score\na,1,good\n", mtime=0), ":2: score must be a number"),
    ],
    ids=["cut short", "damaged", "empty", "a bad cell"],
)
def test_messages_name_the_packed_file_and_not_its_copy(tmp_path, data, said):
    path = tmp_path / "runs.csv.gz"
    path.write_bytes(data)
    with pytest.raises(ReadError) as error:
        read_source(path)
    assert str(error.value).startswith(str(path))
    assert said in str(error.value)


def test_a_json_list_is_refused_with_what_to_do(tmp_path):
    path = tmp_path / "runs.json"
    path.write_text(json.dumps([json.loads(line) for line in LINES.splitlines()]))
    with pytest.raises(ReadError, match="JSON list: expected one object a line"):
        read_source(path)


@pytest.mark.parametrize("name", ["trace_id", "run", "run_id", "run_name", "Run", "Trace_ID"])
def test_runs_below_each_other_in_a_wide_table_are_told_apart(tmp_path, name):
    path = tmp_path / "wide.csv"
    rows = [f"{run},{i * 100},{s}" for run, scores in (("a", SCORES), ("b", UP))
            for i, s in enumerate(scores)]  # fmt: skip
    path.write_text("\n".join([f"{name},Step,accuracy", *rows]) + "\n")
    results = replay([path], parse_rule("default"), metric="accuracy", direction="max").results
    assert [(one.trace_id, one.fired, one.n_evals) for one in results] == [
        ("a", True, 10),
        ("b", False, 10),
    ]


@pytest.mark.parametrize("spelling", ["eval/acc", "eval_acc", "acc"])
def test_lines_with_a_key_a_metric_are_read_like_a_table_of_them(tmp_path, expected, spelling):
    path = tmp_path / "logged.jsonl"
    rows = [
        {"step": i * 100, "eval/acc": s, "eval/loss": 1 - s, "lr": 1e-5}
        for i, s in enumerate(SCORES)
    ]
    rows.insert(3, {"step": 250, "lr": 1e-5})  # a line without an evaluation
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (result,) = replay([path], parse_rule("default"), metric=spelling, direction="max").results
    assert (result.stop_step, result.best_step, result.n_evals) == expected
    assert (result.trace_id, result.metric) == ("logged", "eval/acc")
    with pytest.raises(InputError, match="name the column with --metric"):
        replay([path], parse_rule("default"), direction="max")
    with pytest.raises(InputError, match="Did you mean 'eval/acc'"):
        replay([path], parse_rule("default"), metric="acx", direction="max")


def wide(scores_of_runs):
    rows = [f"{i * 100},{s}" for scores in scores_of_runs for i, s in enumerate(scores)]
    return "\n".join(["step,accuracy", *rows]) + "\n"


def test_runs_that_nothing_tells_apart_are_refused_and_not_pooled(tmp_path):
    path = tmp_path / "wide.csv"
    path.write_text(wide([SCORES, UP]))
    with pytest.raises(InputError, match="name them in a column trace_id"):
        replay([path], parse_rule("default"), metric="accuracy", direction="max")


def test_a_run_that_goes_through_some_steps_again_is_one_run(tmp_path):
    path = tmp_path / "wide.csv"
    path.write_text(wide([SCORES, [0.51, 0.56, 0.61]]))
    (result,) = replay([path], parse_rule("default"), metric="accuracy", direction="max").results
    assert result.n_evals == 10


@pytest.mark.parametrize(
    ("word", "direction"),
    [("1", "max"), ("1.0", "max"), ("True", "max"), ("0", "min"), ("0.0", "min"), ("min", "min")],
)
def test_a_direction_is_read_however_tables_hold_truth(tmp_path, word, direction):
    path = tmp_path / "runs.csv"
    path.write_text(f"trace_id,step,score,greater_is_better\na,1,0.5,{word}\na,2,0.6,\n")
    (result,) = replay([path], parse_rule("default")).results
    assert result.direction == direction


FORBIDDEN = ["b.csv", "b.jsonl", "b.parquet", "run/trainer_state.json", "b.eval", "b.wandb",
             "results_1.json", "events.out.tfevents.1"]  # fmt: skip


def test_a_closed_folder_within_a_folder_is_named(monkeypatch, tmp_path, expected):
    closed = tmp_path / "closed"
    closed.mkdir()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed and access(path, mode))
    report = replay([tmp_path], parse_rule("default"), direction="max")
    assert [(one.stop_step, one.best_step, one.n_evals) for one in report.results] == [expected]
    assert [error.source for error in report.errors] == [str(closed)]


def test_a_closed_standard_input_is_told(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ReadError, match="the standard input is closed"):
        read_source("-")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_packed_tables_of_a_folder_are_read(tmp_path, expected, kind):
    (tmp_path / "plain.csv").unlink()
    (tmp_path / f"run.{kind}.gz").write_bytes(gzip.compress(CONTENTS[kind].encode()))
    assert stop_of(tmp_path) == expected


def test_a_plain_file_that_is_called_packed_is_read(tmp_path, expected):
    path = tmp_path / "run.csv.gz"
    path.write_text(LONG)
    assert stop_of(path) == expected


def test_blank_lines_above_the_header_are_passed_over(tmp_path, expected):
    path = tmp_path / "blank.csv"
    path.write_text("\n\n" + LONG)
    assert stop_of(path) == expected
    path.write_text("\n\n" + LONG + "a,x,1\n")
    with pytest.raises(ReadError, match=rf"blank.csv:{len(SCORES) + 4}: step must be a number"):
        read_source(path)


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_names_of_columns_may_have_capitals(tmp_path, expected, kind):
    path = tmp_path / f"capitals.{kind}"
    names = {"trace_id": "Trace_ID", "step": "Step", "score": "Score"}
    if kind == "parquet":
        columns = [["a"] * len(SCORES), [100 * i for i in range(len(SCORES))], SCORES]
        pq.write_table(pa.table(columns, names=list(names.values())), path)
    else:
        text = CONTENTS[kind]
        for small, large in names.items():
            text = text.replace(small, large)
        path.write_text(text)
    assert stop_of(path) == expected


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_a_file_may_have_any_name_that_its_system_allows(tmp_path, expected, kind):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xff 'q' \n." + kind.encode()))
    if kind == "parquet":
        columns = [["a"] * len(SCORES), [100 * i for i in range(len(SCORES))], SCORES]
        with path.open("wb") as file:
            pq.write_table(pa.table(columns, names=["trace_id", "step", "score"]), file)
    else:
        path.write_text(CONTENTS[kind])
    assert stop_of(path) == expected


def test_half_a_character_in_json_is_shown_as_an_escape(tmp_path, expected):
    path = tmp_path / "half.jsonl"
    path.write_text(LINES.replace('"a"', '"\\ud800"'))
    assert stop_of(path) == expected
    assert read_source(path).curves[0].trace_id == "\\ud800"


def test_runs_of_one_name_in_an_exported_chart_are_told_apart(tmp_path):
    path = tmp_path / "chart.csv"
    path.write_text(
        '"Step","r - acc","r - acc__MIN","r - acc","r - acc__MIN","s - acc"\n'
        "-1,0.1,0.1,0.1,0.1,0.1\n1,0.5,0.5,0.6,0.6,0.7\n2,0.4,0.4,,,0.8\n"
    )
    curves = read_source(path).curves
    assert [(c.trace_id, c.metric, list(c.scores)) for c in curves] == [
        ("r (1)", "acc", [0.5, 0.4]),
        ("r (2)", "acc", [0.6]),
        ("s", "acc", [0.7, 0.8]),
    ]
    assert {point.reason for c in curves for point in c.skipped} == {"step -1 is negative"}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_file_that_may_not_be_read_spares_the_others_of_its_folder(
    monkeypatch, tmp_path, expected, name
):
    (tmp_path / "plain.csv").unlink()
    (tmp_path / "a.csv").write_text(LONG)
    (tmp_path / "weights.bin").write_bytes(b"w")
    bad = tmp_path / name
    bad.parent.mkdir(exist_ok=True)
    bad.write_text(LONG)
    closed = {str(bad), str(tmp_path / "weights.bin")}
    opened, access = Path.open, os.access  # a test may run as root, who may read everything

    def open_(self, *arguments, **options):
        if str(self) in closed:
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", open_)
    monkeypatch.setattr(
        os, "access", lambda path, mode: str(path) not in closed and access(path, mode)
    )
    report = replay([tmp_path], parse_rule("default"), direction="max")
    assert [(one.stop_step, one.best_step, one.n_evals) for one in report.results] == [expected]
    assert [(error.source, error.message) for error in report.errors] == [
        (str(bad), "cannot be read: Permission denied")
    ]


def test_a_folder_that_may_not_be_read_is_not_called_empty(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ReadError, match="cannot be read: Permission denied"):
        read_source(tmp_path)
