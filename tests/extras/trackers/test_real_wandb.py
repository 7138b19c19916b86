"""The parts of W&B's public API that are relied on exist in the package; no service is asked.

And what the package itself logs offline.
"""

import inspect
import math
import struct
import sys
import time
import zlib

import pytest
import wandb
from wandb.apis.public import Api, Run
from wandb.proto import wandb_internal_pb2

from evalstop.config.rules import parse_rule
from evalstop.core.errors import MissingExtraError, ReadError
from evalstop.feedback.scores import Watch
from evalstop.feedback.wandb import WandbPoll
from evalstop.traces.replay import replay
from evalstop.traces.sources import read_source
from evalstop.traces.wandb_offline import _row


def test_the_api_has_what_is_called():
    assert "path" in inspect.signature(Api.run).parameters
    assert "min_step" in inspect.signature(Run.scan_history).parameters
    assert isinstance(Run.lastHistoryStep, property)
    assert hasattr(Run, "summary")


def test_the_packages_own_objects_are_used(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr("wandb.Api", lambda: "the api")
    assert WandbPoll("wandb:a/b/c", Watch(job="j", metric="m", direction="max"))._api == "the api"


def offline(folder, rows, *, run_id="abc123", name="mine"):
    """Log rows with the package itself, without a server; return the file."""
    run = wandb.init(
        project="p", id=run_id, name=name, dir=folder, mode="offline", resume="allow",
        settings=wandb.Settings(
            silent=True, console="off", init_timeout=600, x_service_wait=600
        ),
    )  # fmt: skip
    for row in rows:
        run.log(row)
    run.finish()
    wandb.teardown()
    folders = (folder / "wandb").glob("offline-run-*")
    return max(folders, key=lambda path: path.stat().st_mtime_ns) / f"run-{run_id}.wandb"


def row(step, score, **more):
    return {"train/global_step": step, "eval/acc": score, "eval/acc_stderr": 0.02, **more}


def test_an_offline_run_is_read_to_its_last_row_in_the_trainers_own_steps(tmp_path):
    """Rows with long texts beside, so that records are cut by the ends of blocks."""
    rows = [row(10 * i, i / 100, text="x" * (517 * i % 9000), flag=True) for i in range(60)]
    rows.append(row(600, float("nan"), loss=0.5))
    path = offline(tmp_path, rows)
    assert path.stat().st_size > 4 * 32 * 1024
    loaded = read_source(path)
    curves = {curve.metric: curve for curve in loaded.curves}
    curve = curves["eval/acc"]
    assert loaded.errors == []
    assert set(curves) == {"eval/acc", "loss"}
    assert curve.trace_id == "mine"
    assert list(curve.steps) == [10 * i for i in range(61)]
    assert list(curve.scores[:-1]) == [i / 100 for i in range(60)]
    assert math.isnan(curve.scores[-1])
    assert set(curve.stderrs) == {0.02}
    assert list(curve.losses) == [(600, 0.5)]
    assert list(curves["loss"].steps) == [600]


def test_a_run_resumed_offline_is_one_run_with_two_attempts(tmp_path):
    offline(tmp_path, [row(10, 0.5), row(20, 0.9375), row(30, 0.625), row(40, 0.75)])
    time.sleep(1.1)  # the package names folders by the second
    offline(tmp_path, [row(20, 0.5), row(30, 0.625), row(40, 0.4375), row(50, 0.625)])
    offline(tmp_path, [row(10, 0.5)], run_id="other", name="other")
    curves = {curve.trace_id: curve for curve in read_source(tmp_path).curves}
    assert set(curves) == {"mine", "other"}
    assert list(curves["mine"].attempts) == [0, 0, 0, 0, 1, 1, 1, 1]
    rule = parse_rule("consecutive:k=2")
    results = replay(tmp_path, rule, direction="max", metric="acc").results
    (result,) = [result for result in results if result.trace_id == "mine"]
    assert (result.fired, result.best_step) == (False, 20)


def test_a_file_cut_short_gives_what_is_whole_and_says_so(tmp_path):
    path = offline(tmp_path, [row(10 * i, 0.5, text="x" * 900) for i in range(50)])
    data = path.read_bytes()
    whole = len(read_source(path).curves[0].steps)
    for cut in (20_000, 20_003, 32 * 1024 + 3):
        path.write_bytes(data[:cut])
        loaded = read_source(path)
        assert 0 < len(loaded.curves[0].steps) < whole == 50
        assert "cut short" in loaded.errors[0].message


def test_a_damaged_file_is_told_from_a_short_one(tmp_path):
    path = offline(tmp_path, [row(10 * i, 0.5, text="x" * 900) for i in range(50)])
    data = bytearray(path.read_bytes())
    data[20_000] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(ReadError, match="checksum"):
        read_source(path)


@pytest.mark.parametrize("step", [float("nan"), "last", float("inf")])
def test_a_step_that_is_none_is_told(tmp_path, step):
    with pytest.raises(ReadError, match="a row of its history makes no sense"):
        read_source(offline(tmp_path, [row(10, 0.5), row(step, 0.5)]))


def test_records_of_another_protocol_are_told(tmp_path):
    body = b"\xff" * 40
    checksum = zlib.crc32(bytes([1]) + body)
    path = tmp_path / "run-x.wandb"
    path.write_bytes(b":W&B\x00\x00\x00" + struct.pack("<IHB", checksum, len(body), 1) + body)
    with pytest.raises(ReadError, match="this version of the package wandb cannot read"):
        read_source(path)


def test_a_run_that_logged_nothing_is_told(tmp_path):
    with pytest.raises(ReadError, match="no numbers"):
        read_source(offline(tmp_path, []))


def test_values_are_read_in_the_form_that_the_packages_protocol_allows_for():
    item = wandb_internal_pb2.HistoryItem
    row = wandb_internal_pb2.HistoryRecord(
        item=[item(key="a", number=0.5), item(key="b", integer=3), item(key="c", text="x")]
    )
    assert _row(row) == {"_step": 0, "a": 0.5, "b": 3.0, "c": None}


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    path = offline(tmp_path, [row(10, 0.5)])
    monkeypatch.setitem(sys.modules, "wandb.proto.wandb_internal_pb2", None)
    with pytest.raises(MissingExtraError, match="wandb"):
        read_source(path)
