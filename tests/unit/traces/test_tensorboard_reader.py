"""Event files as TensorBoard's own writer leaves them."""

import math
import sys

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util import tensor_util

from evalstop.core.errors import MissingExtraError, ReadError
from evalstop.traces.sources import read_source


def write(folder, rows):
    """Write (tag, step, value) as scalars of the first format."""
    writer = EventFileWriter(str(folder))
    for tag, step, value in rows:
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
        writer.add_event(Event(step=step, summary=summary, wall_time=float(step)))
    writer.close()
    return folder


def by_metric(loaded):
    return {curve.metric: curve for curve in loaded.curves}


def test_scalars_are_curves_with_loss_and_reward_beside(tmp_path):
    rows = [
        ("train/loss", 5, 2.0),
        ("train/reward", 5, 0.25),
        ("eval/acc", 10, 0.5),
        ("train/loss", 15, 1.0),
        ("train/reward", 15, 0.5),
        ("eval/acc", 20, math.nan),
    ]
    curve = by_metric(read_source(write(tmp_path / "run", rows)))["eval/acc"]
    assert curve.trace_id == "run"
    assert list(curve.steps) == [10, 20]
    assert curve.scores[0] == 0.5
    assert math.isnan(curve.scores[1])
    assert list(curve.losses) == [(5, 2.0), (15, 1.0)]
    assert list(curve.proxies) == [0.25, 0.5]


def test_a_long_history_is_read_to_its_last_point(tmp_path):
    write(tmp_path, [("eval/acc", step, step / 1e5) for step in range(12_000)])
    assert len(by_metric(read_source(tmp_path))["eval/acc"].steps) == 12_000


def test_scalars_of_the_second_format_are_read(tmp_path):
    writer = EventFileWriter(str(tmp_path))
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
    for step in (1, 2):
        tensor = tensor_util.make_tensor_proto(step / 4)
        value = Summary.Value(tag="eval/acc", tensor=tensor, metadata=metadata)
        writer.add_event(Event(step=step, summary=Summary(value=[value]), wall_time=float(step)))
    writer.close()
    assert list(by_metric(read_source(tmp_path))["eval/acc"].scores) == [0.25, 0.5]


def test_a_folder_holds_a_run_a_folder(tmp_path):
    for name in ("a", "b/c"):
        write(tmp_path / name, [("eval/acc", 1, 0.5)])
    assert {curve.trace_id for curve in read_source(tmp_path).curves} == {"a", "b/c"}


def test_a_file_cut_short_gives_what_was_written_whole(tmp_path):
    write(tmp_path, [("eval/acc", step, 0.5) for step in range(10)])
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-7])
    assert len(by_metric(read_source(tmp_path))["eval/acc"].steps) == 9


def test_events_without_scalars_are_told(tmp_path):
    EventFileWriter(str(tmp_path)).close()
    with pytest.raises(ReadError, match="no scalars"):
        read_source(tmp_path)


def test_without_tensorboard_the_extra_is_named(tmp_path, monkeypatch):
    write(tmp_path, [("eval/acc", 1, 0.5)])
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_accumulator", None)
    with pytest.raises(MissingExtraError, match=r"evalstop\[tensorboard\]"):
        read_source(tmp_path)
