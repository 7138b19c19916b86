"""A run that was resumed from an earlier step, told from repeats and late reports."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from evalstop.config.rules import parse_rule
from evalstop.traces.mlflow import History, curve_of_history
from evalstop.traces.replay import replay
from evalstop.traces.rewinds import attempts_of, current_branch
from evalstop.traces.series import normalise
from evalstop.traces.sources import read_source


@pytest.mark.parametrize(
    ("steps", "attempts"),
    [
        ([10, 20, 30, 20, 30, 40], [0, 0, 0, 1, 1, 1]),
        ([10, 20, 30, 20, 25, 35], [0, 0, 0, 1, 1, 1]),  # evaluated more often since
        ([0, 10, 20, 0, 10, 20, 10, 20], [0, 0, 0, 1, 1, 1, 2, 2]),
        ([10, 20, 30, 20, 20, 30], [0, 0, 0, 0, 1, 1]),
    ],
    ids=["resumed", "resumed-denser", "resumed-twice", "repeated-then-resumed"],
)
def test_a_run_that_goes_through_known_steps_again_is_a_new_attempt(steps, attempts):
    assert attempts_of(steps) == attempts


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [30, 10, 20, 40],
        [10, 20, 30, 30, 40],
        [10, 20, 30, 20, 40],
        [10, 20, 30, 40, 20, 40, 50],
        [10, 10, 10],
        [10, 20, 30, 20],
    ],
    ids=["none", "late", "newest-again", "old-again", "best-and-newest-again", "only", "open"],
)
def test_repeats_and_late_reports_are_no_attempt(steps):
    assert not any(attempts_of(steps))
    assert current_branch(steps, steps) == steps


@given(
    first=st.integers(2, 30),
    back=st.integers(0, 30),
    beyond=st.integers(1, 10),
    every=st.integers(1, 7),
)
def test_what_was_written_twice_counts_as_written_last(first, back, beyond, every):
    before = list(range(first))
    start = min(back, first - 2)  # at least one step is run through again
    after = list(range(start, first + beyond))
    steps = [every * step for step in [*before, *after]]
    names = [("old", step) for step in before] + [("new", step) for step in after]
    assert attempts_of(steps) == [0] * first + [1] * len(after)
    expected = [("old", step) for step in before[:start]] + [("new", step) for step in after]
    assert current_branch(names, steps) == expected


def test_mlflow_keeps_what_was_written_before_the_run_went_back():
    rows = [(10, 0.5, 1), (20, 0.9, 2), (30, 0.8, 3), (20, 0.6, 4), (30, 0.61, 5), (40, 0.62, 6)]
    curve = curve_of_history(History(rows), source="s", trace_id="t", metric="acc")
    points = normalise(curve, "max").points
    assert [(p.attempt, p.step, p.score) for p in points] == [
        (0, 10, 0.5), (0, 20, 0.9), (0, 30, 0.8), (1, 20, 0.6), (1, 30, 0.61), (1, 40, 0.62),
    ]  # fmt: skip


def write(folder, name, rows):
    aside = folder / f"aside-{name}"
    writer = EventFileWriter(str(aside))
    for tag, step, value in rows:
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
        writer.add_event(Event(step=step, summary=summary, wall_time=float(step)))
    writer.close()
    (written,) = aside.iterdir()
    written.rename(folder / f"events.out.tfevents.{name}")
    aside.rmdir()


def test_a_resumed_run_in_tensorboard_is_judged_by_its_newest_branch(tmp_path):
    """Neither attempt falls twice in a row; pooled they would."""
    first = {10: 0.5, 20: 0.9375, 30: 0.625, 40: 0.75}
    second = {20: 0.5, 30: 0.625, 40: 0.4375, 50: 0.625}
    write(tmp_path, "1", [("eval/acc", *row) for row in first.items()])
    for step in first:
        write(tmp_path, f"1.{step}", [("train/loss", step, 1.0)])
    write(tmp_path, "2", [("eval/acc", *row) for row in second.items()])
    write(tmp_path, "3", [("train/loss", step, 2.0) for step in second])
    (curve,) = [c for c in read_source(tmp_path).curves if c.metric == "eval/acc"]
    assert list(curve.attempts) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert list(curve.losses) == [(10, 1.0), (20, 2.0), (30, 2.0), (40, 2.0), (50, 2.0)]
    rule = parse_rule("consecutive:k=2")
    (result,) = replay(tmp_path, rule, direction="max", metric="eval/acc").results
    assert not result.fired
    assert (result.best_step, result.best_score) == (20, 0.9375)  # abandoned, and still the best
