"""Harness results that appear in a folder, one a checkpoint."""

import json
import struct
import zipfile
import zlib

import pyarrow as pa
import pytest

from evalstop.core.errors import ReadError
from evalstop.feedback.results_folder import ResultsFolder
from evalstop.feedback.scores import Watch
from evalstop.traces.inspect_log import readings_of_log
from evalstop.traces.sources import read_source

WATCH = Watch(job="j", metric="acc", direction="max")


def harness(folder, step, score, stderr=0.05, task="toy"):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"results_{step}.json"
    data = {
        "results": {task: {"acc,none": score, "acc_stderr,none": stderr}},
        "model_name": f"out/checkpoint-{step}",
        "n-samples": {task: {"effective": 100}},
    }
    path.write_text(json.dumps(data))
    return path


def log(step=500, status="success", metadata=None, score=0.61):
    return {
        "version": 2,
        "status": status,
        "eval": {
            "task": "gsm8k",
            "task_version": 2,
            "dataset": {"name": "gsm8k", "samples": 100},
            "model": f"hf/out/run/checkpoint-{step}",
            "metadata": metadata or {},
        },
        "results": {
            "completed_samples": 100,
            "scores": [
                {
                    "name": "match",
                    "metrics": {"accuracy": {"value": score}, "stderr": {"value": 0.04}},
                }
            ],
        }
        if status == "success"
        else None,
    }


def archive(path, header):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("_journal/start.json", "{}")
        made.writestr("header.json", json.dumps(header))
    return path


def zstd_archive(path, header):
    """Write what newer inspect_ai writes: members compressed with Zstandard (method 93)."""
    data = json.dumps(header).encode()
    sink = pa.BufferOutputStream()
    stream = pa.CompressedOutputStream(sink, "zstd")
    stream.write(data)
    stream.close()
    packed = sink.getvalue().to_pybytes()
    name, crc = b"header.json", zlib.crc32(data)
    sizes = (crc, len(packed), len(data), len(name))
    local = struct.pack("<4s5HIIIHH", b"PK\3\4", 20, 0, 93, 0, 0, *sizes, 0) + name
    central = (
        struct.pack("<4s6HIIIHHHHHII", b"PK\1\2", 20, 20, 0, 93, 0, 0, *sizes, 0, 0, 0, 0, 0, 0)
        + name
    )
    end = struct.pack("<4s4HIIH", b"PK\5\6", 0, 0, 1, 1, len(central), len(local) + len(packed), 0)
    path.write_bytes(local + packed + central + end)
    return path


def test_results_are_read_once_each_as_they_appear(tmp_path):
    source = ResultsFolder(tmp_path / "later", WATCH)
    assert source.readings() == []
    harness(tmp_path / "later" / "a", 10, 0.5)
    (first,) = source.readings()
    assert (first.job, first.metric, first.point.step, first.point.score) == ("j", "", 10, 0.5)
    assert (first.point.stderr, first.point.n_items) == (0.05, 100)
    assert source.readings() == []
    harness(tmp_path / "later" / "b", 20, 0.6)
    assert [reading.point.step for reading in source.readings()] == [20]
    assert source.names == {"toy/acc"}


def test_lower_is_better_is_turned(tmp_path):
    harness(tmp_path, 10, 0.5)
    source = ResultsFolder(tmp_path, Watch(job="j", metric="toy/acc", direction="min"))
    assert source.readings()[0].point.score == -0.5


def test_half_a_file_is_read_again_and_told_once_it_stays_so(tmp_path):
    path = harness(tmp_path, 10, 0.5)
    whole = path.read_text()
    path.write_text(whole[:-9])
    source = ResultsFolder(tmp_path, WATCH)
    for _ in range(4):
        assert source.readings() == []
        assert source.problems == []
    source.readings()
    assert "cut short" in source.problems[0]
    path.write_text(whole)
    assert len(source.readings()) == 1
    assert source.problems == []


def test_a_folder_that_cannot_be_read_is_told(tmp_path, monkeypatch):
    def refuse(*_arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(tmp_path), "rglob", refuse)
    with pytest.raises(ReadError, match="Permission denied"):
        ResultsFolder(tmp_path, WATCH).readings()


@pytest.mark.parametrize("write", [archive, zstd_archive])
def test_logs_of_inspect_are_read_in_both_compressions(tmp_path, write):
    write(tmp_path / "a.eval", log())
    source = ResultsFolder(tmp_path, Watch(job="j", metric="accuracy", direction="max"))
    (reading,) = source.readings()
    assert (reading.point.step, reading.point.score) == (500, 0.61)
    assert (reading.point.stderr, reading.point.n_items) == (0.04, 100)
    assert reading.point.epoch_key == "gsm8k version 2, gsm8k of 100"
    assert source.names == {"gsm8k/match/accuracy"}


def test_an_evaluation_under_way_is_waited_for(tmp_path):
    archive(tmp_path / "a.eval", log(status="started"))
    source = ResultsFolder(tmp_path, Watch(job="j", metric="accuracy", direction="max"))
    assert source.readings() == []
    archive(tmp_path / "a.eval", log())
    assert len(source.readings()) == 1


def test_a_logs_own_step_goes_before_the_path(tmp_path):
    path = archive(tmp_path / "a.eval", log(metadata={"evalstop.step": 7}))
    assert readings_of_log(path)[0].step == 7


def test_logs_of_inspect_can_be_replayed(tmp_path):
    for step in (20, 100, 5):
        archive(tmp_path / f"{step}.eval", log(step, score=step / 100))
    (curve,) = read_source(tmp_path).curves
    assert (curve.trace_id, curve.metric) == ("hf/out/run", "gsm8k/match/accuracy")
    assert sorted(zip(curve.steps, curve.scores, strict=True)) == [
        (5, 0.05),
        (20, 0.2),
        (100, 1.0),
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"PK\3\4 no more", "not a readable log"), (b"", "the file is empty")],
)
def test_a_broken_log_is_told(tmp_path, content, words):
    path = tmp_path / "a.eval"
    path.write_bytes(content)
    with pytest.raises(ReadError, match=words):
        read_source(path)


def test_a_log_of_something_else_is_told(tmp_path):
    with pytest.raises(ReadError, match="no object eval"):
        readings_of_log(archive(tmp_path / "a.eval", {"status": "success"}))
