"""A run's events followed while TensorBoard's own writer writes them."""

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from evalstop.core.errors import ReadError
from evalstop.feedback.scores import Watch
from evalstop.feedback.tensorboard import TensorBoardTail

WATCH = Watch(job="j", metric="eval_acc", direction="max", guards={"eval/loss": "min"})


def add(writer, tag, step, value):
    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
    writer.add_event(Event(step=step, summary=summary, wall_time=1000.0 + step))
    writer.flush()


def seen(readings):
    return [(r.metric, r.point.attempt, r.point.step, r.point.score) for r in readings]


def test_each_event_is_read_once_as_it_comes(tmp_path):
    source = TensorBoardTail(tmp_path / "run", WATCH)
    assert source.readings() == []
    writer = EventFileWriter(str(tmp_path / "run"))
    add(writer, "eval/acc", 10, 0.5)
    add(writer, "eval/loss", 10, 2.0)
    add(writer, "train/lr", 10, 1.0)
    (acc, loss) = source.readings()
    assert seen([acc, loss]) == [("", 0, 10, 0.5), ("eval/loss", 0, 10, -2.0)]
    assert acc.reported_at == 1010.0
    assert source.readings() == []
    add(writer, "eval/acc", 20, 0.25)
    assert seen(source.readings()) == [("", 0, 20, 0.25)]
    assert source.names == {"eval/acc", "eval/loss", "train/lr"}
    writer.close()


def test_a_resumed_run_opens_an_attempt_and_loses_nothing(tmp_path):
    writer = EventFileWriter(str(tmp_path))
    for step in (10, 20, 30):
        add(writer, "eval/acc", step, 0.5)
    writer.close()
    source = TensorBoardTail(tmp_path, WATCH)
    assert len(source.readings()) == 3
    aside = tmp_path / "aside"
    again = EventFileWriter(str(aside))
    for step in (20, 30, 40):
        add(again, "eval/acc", step, 0.75)
    again.close()
    (written,) = aside.iterdir()
    written.rename(tmp_path / "events.out.tfevents.9999999999.later")  # resumed in another second
    found = source.readings() + source.readings()
    assert seen(found) == [("", 1, step, 0.75) for step in (20, 30, 40)]


def test_the_first_step_of_an_attempt_is_told_again_once_it_is_known(tmp_path):
    writer = EventFileWriter(str(tmp_path))
    source = TensorBoardTail(tmp_path, WATCH)
    for step in (10, 20, 30, 20):
        add(writer, "eval/acc", step, 0.5)
    assert [r.point.attempt for r in source.readings()] == [0, 0, 0, 0]
    add(writer, "eval/acc", 30, 0.75)
    assert seen(source.readings()) == [("", 1, 20, 0.5), ("", 1, 30, 0.75)]
    add(writer, "eval/acc", 40, 0.75)
    assert seen(source.readings()) == [("", 1, 40, 0.75)]
    writer.close()


def test_nan_is_a_reading_without_score(tmp_path):
    writer = EventFileWriter(str(tmp_path))
    add(writer, "eval/acc", 10, float("nan"))
    writer.close()
    (reading,) = TensorBoardTail(tmp_path, WATCH).readings()
    assert reading.point.score != reading.point.score


def test_events_that_break_the_parser_are_told(tmp_path, monkeypatch):
    writer = EventFileWriter(str(tmp_path))
    add(writer, "eval/acc", 10, 0.5)
    writer.close()
    source = TensorBoardTail(tmp_path, WATCH)
    source.readings()

    def broken():
        msg = "corrupt"
        raise RuntimeError(msg)

    monkeypatch.setattr(source._events, "Reload", broken)
    with pytest.raises(ReadError, match="corrupt"):
        source.readings()


def errors(readings):
    return [(r.point.attempt, r.point.step, r.point.stderr) for r in readings]


def test_a_sibling_metric_says_the_standard_error(tmp_path):
    writer = EventFileWriter(str(tmp_path))
    source = TensorBoardTail(tmp_path, WATCH)
    for step in (10, 20):
        add(writer, "eval/acc", step, 0.5)
        add(writer, "eval/acc_stderr", step, 0.125)
    assert errors(source.readings()) == [(0, 10, 0.125), (0, 20, 0.125)]
    add(writer, "eval/acc", 30, 0.5)  # its error is not written yet
    assert source.readings() == []
    add(writer, "eval/acc_stderr", 30, 0.25)
    assert errors(source.readings()) == [(0, 30, 0.25)]
    add(writer, "eval/acc", 40, 0.5)  # and of this one never
    assert source.readings() == []
    assert errors(source.readings()) == [(0, 40, None)]
    assert source.readings() == []
    writer.close()


def test_after_a_rewind_the_error_is_the_new_attempts(tmp_path):
    writer = EventFileWriter(str(tmp_path))
    for place, step in enumerate((10, 20, 30, 20, 30)):
        add(writer, "eval/acc", step, 0.5)
        add(writer, "eval/acc_stderr", step, (place + 1) / 16)
    writer.close()
    assert errors(TensorBoardTail(tmp_path, WATCH).readings()) == [
        (0, 10, 1 / 16), (0, 20, 2 / 16), (0, 30, 3 / 16), (1, 20, 4 / 16), (1, 30, 5 / 16),
    ]  # fmt: skip
