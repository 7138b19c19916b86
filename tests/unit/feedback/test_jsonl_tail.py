"""Following a file that grows, is rotated, truncated, torn and full of garbage."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalstop.core.codec import decode_event, encode
from evalstop.core.errors import ReadError
from evalstop.core.events import EvalReported
from evalstop.feedback.jsonl import JsonlTail
from evalstop.feedback.scores import Watch

ACC = Watch(job="j", metric="acc", direction="max")


def line(step, score=0.5, **more):
    return json.dumps({"step": step, "score": score, **more}) + "\n"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "evals.jsonl"


@pytest.fixture
def tail(file):
    tail = JsonlTail(file, ACC)
    yield tail
    tail.close()


def steps(tail):
    return [reading.point.step for reading in tail.readings()]


def append(file, text):
    with file.open("a") as out:
        out.write(text)


def test_a_file_may_appear_later(file, tail):
    assert steps(tail) == []
    file.write_text(line(1))
    assert steps(tail) == [1]
    assert steps(tail) == []


def test_side_signals_come_with_a_line(file, tail):
    file.write_text(line(1, signals={"kl": 2, "note": "x", "b": None}) + line(2, signals=[1]))
    assert [reading.point.signals for reading in tail.readings()] == [(("kl", 2.0),), ()]


def test_half_a_line_waits_for_its_end(file, tail):
    whole = line(1) + line(2)
    for cut in range(1, len(whole)):
        file.write_text("")
        tail.close()
        file.write_text(whole[:cut])
        first = steps(tail)
        append(file, whole[cut:])
        assert first + steps(tail) == [1, 2]


def test_rotation_loses_nothing(file, tail, tmp_path):
    file.write_text(line(1))
    assert steps(tail) == [1]
    append(file, line(2))
    file.rename(tmp_path / "evals.jsonl.1")
    with (tmp_path / "evals.jsonl.1").open("a") as old:
        old.write(line(3))
    assert steps(tail) == [2, 3]
    file.write_text(line(4))
    assert steps(tail) == [4]


def test_a_file_replaced_between_polls_is_read_to_its_end_and_from_its_start(file, tail, tmp_path):
    file.write_text(line(1))
    assert steps(tail) == [1]
    append(file, line(2))
    new = tmp_path / "new"
    new.write_text(line(3))
    new.replace(file)
    assert steps(tail) == [2, 3]


def test_truncation_begins_anew(file, tail):
    file.write_text(line(1) + line(2))
    assert steps(tail) == [1, 2]
    with file.open("r+") as out:
        out.truncate(0)
        out.write(line(3))
    assert steps(tail) == [3]


def test_a_file_rewritten_longer_than_it_was_is_noticed(file, tail):
    file.write_text(line(1))
    assert steps(tail) == [1]
    with file.open("r+") as out:
        out.truncate(0)
        out.write(line(7) + line(8) + line(9))
    assert steps(tail) == [7, 8, 9]


def test_garbage_is_told_and_passed_over(file, tail):
    file.write_bytes(
        b"\n  \nnot json\n[1]\n"
        b'{"step": -1, "score": 1}\n{"step": 1.5, "score": 1}\n{"score": 1}\n'
        b'{"step": 2, "score": "high"}\n{"step": 2, "score": true}\n\xff\xfe\n' + line(3).encode()
    )
    assert steps(tail) == [3]
    assert len(tail.problems) == 8
    assert all(str(file) in problem for problem in tail.problems)


HUGE = "9" * 400
MONSTERS = {
    "score": f'{{"step": 1, "score": {HUGE}}}',
    "longer than Python writes": f'{{"step": 1, "score": {"9" * 5000}}}',
    "a score whose square is none": '{"step": 1, "score": 1e300}',
    "step": f'{{"step": {HUGE}, "score": 0.5}}',
    "step of 64 bits and more": '{"step": 100000000000000000000000, "score": 0.5}',
    "step as a float": '{"step": 1e300, "score": 0.5}',
    "step that is none": '{"step": NaN, "score": 0.5}',
    "step without end": '{"step": Infinity, "score": 0.5}',
    "n_items": f'{{"step": 1, "score": 0.5, "n_items": {HUGE}}}',
    "attempt": f'{{"step": 1, "score": 0.5, "attempt": {HUGE}}}',
    "stderr": f'{{"step": 1, "score": 0.5, "stderr": {HUGE}}}',
    "proxy": f'{{"step": 1, "score": 0.5, "proxy": {HUGE}}}',
    "signal": f'{{"step": 1, "score": 0.5, "signals": {{"kl": {HUGE}}}}}',
    "time": f'{{"step": 1, "score": 0.5, "time": {HUGE}}}',
    "flat": f'{{"step": 1, "eval/acc": {HUGE}, "eval/loss": {HUGE}}}',
    "half a surrogate": '{"step": 1, "score": 0.5, "epoch_key": "\\ud800"}',
    "half a surrogate as a checkpoint": '{"step": 1, "score": 0.5, "checkpoint": "c\\udcff"}',
    "a name of digits": f'{{"step": 1, "score": 0.5, "eval_id": {"9" * 5000}}}',
}


@pytest.mark.parametrize("monster", MONSTERS)
def test_no_line_costs_another_and_what_comes_of_one_can_be_logged(file, tail, monster):
    file.write_text(line(0) + MONSTERS[monster] + "\n" + line(2))
    readings = tail.readings()
    found = [reading.point.step for reading in readings]
    assert found in ([0, 2], [0, 1, 2])
    assert len(found) == 3 or len(tail.problems) == 1
    for reading in readings:
        event = EvalReported(
            time=0.0, job="j", point=reading.point, reported_at=reading.reported_at
        )
        again = decode_event(encode(event))
        assert encode(again) == encode(event)
        assert abs(reading.point.score) <= 1e100 or math.isnan(reading.point.score)


def test_a_monstrous_line_does_not_stop_the_rest(file, tail):
    file.write_bytes(b"x" * (2 << 20))
    assert steps(tail) == []
    append(file, "y" * 100)
    assert steps(tail) == []
    append(file, "\n" + line(4))
    assert steps(tail) == [4]
    assert "longer than" in tail.problems[-1]


def test_a_big_file_is_read_in_portions(file, tail):
    count = 60_000
    file.write_text("".join(line(step) for step in range(count)))
    found = steps(tail)
    assert 0 < len(found) < count
    while more := steps(tail):
        found += more
    assert found == list(range(count))


def test_an_unreadable_file_is_an_error(file, tail):
    file.mkdir()
    with pytest.raises(ReadError, match="cannot be read"):
        tail.readings()


def test_lower_is_better_is_turned_once(file):
    file.write_text(json.dumps({"step": 1, "eval/ppl": 3.5, "eval/ppl_stderr": 0.2}) + "\n")
    tail = JsonlTail(file, Watch(job="j", metric="eval_ppl", direction="min"))
    (reading,) = tail.readings()
    tail.close()
    assert reading.point.score == -3.5
    assert reading.point.stderr == 0.2


def test_every_field_of_a_report_is_kept(file, tail):
    file.write_text(
        line(
            7,
            0.5,
            stderr=0.01,
            n_items=100,
            proxy=2.5,
            epoch_key="v2",
            eval_id="a",
            time=12.5,
            checkpoint="checkpoint-7",
            attempt=2,
        )
    )
    (reading,) = tail.readings()
    point = reading.point
    assert (point.stderr, point.n_items, point.proxy, point.attempt) == (0.01, 100, 2.5, 2)
    assert (point.epoch_key, point.eval_id, point.checkpoint) == ("v2", "a", "checkpoint-7")
    assert (reading.job, reading.metric, reading.reported_at) == ("j", "", 12.5)


def test_verls_log_is_read_and_its_names_are_known(file):
    name = "val-core/openai/gsm8k/acc/mean@1"
    rows = [
        {"step": 0, "data": {name: 0.5, "actor/loss": 1.0}},
        {"step": 1, "data": {"actor/loss": 0.9}},
        {"step": 2, "data": {name: 0.6}},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    watch = Watch(job="j", metric="val-core_openai_gsm8k_acc_mean_at_1", direction="max")
    tail = JsonlTail(file, watch)
    assert [(r.point.step, r.point.score) for r in tail.readings()] == [(0, 0.5), (2, 0.6)]
    assert tail.names == {name, "actor/loss"}
    tail.close()


def test_one_file_may_hold_several_metrics(file):
    watch = Watch(job="j", metric="acc", direction="max", guards={"toxicity": "min"})
    file.write_text(
        line(1, 0.5, metric="acc") + line(1, 0.1, metric="toxicity") + line(1, 9.0, metric="x")
    )
    tail = JsonlTail(file, watch)
    assert [(r.metric, r.point.score) for r in tail.readings()] == [("", 0.5), ("toxicity", -0.1)]
    assert tail.names == {"acc", "toxicity", "x"}
    tail.close()


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "null", '"nan"', "1e999"])
@pytest.mark.parametrize("direction", ["max", "min"])
def test_what_is_not_finite_is_told_as_that(file, value, direction):
    file.write_text(f'{{"step": 1, "score": {value}}}\n')
    tail = JsonlTail(file, Watch(job="j", metric="acc", direction=direction))
    (reading,) = tail.readings()
    tail.close()
    assert math.isnan(reading.point.score)


@given(
    st.lists(st.integers(0, 99), max_size=12),
    st.lists(st.integers(1, 60), min_size=1, max_size=20),
)
def test_however_it_is_cut_each_line_comes_once_and_in_order(tmp_path_factory, numbers, cuts):
    file = tmp_path_factory.mktemp("cut") / "evals.jsonl"
    tail = JsonlTail(file, ACC)
    rest = "".join(line(number) for number in numbers).encode()
    found = []
    with file.open("ab", buffering=0) as out:
        for cut in cuts:
            out.write(rest[:cut])
            rest = rest[cut:]
            found += steps(tail)
        out.write(rest)
    found += steps(tail)
    tail.close()
    assert found == numbers


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", HUGE])
def test_a_row_of_many_metrics_tells_of_one_that_is_not_finite(file, tail, value):
    file.write_text(f'{{"step": 1, "eval/acc": {value}, "eval/loss": 0.5}}\n')
    (reading,) = tail.readings()
    assert reading.point.step == 1
    assert math.isnan(reading.point.score)


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ({"step": 1, "score": 0.5, "stderr": 0.1, "n_items": 9}, {"acc"}),
        ({"global_step": 1, "value": 0.5, "time": 1.0}, {"acc"}),
        ({"step": 1, "score": 0.5, "metric": "loss"}, {"loss"}),
        ({"step": 1, "eval/acc": 0.5, "eval/loss": 0.1}, {"eval/acc", "eval/loss"}),
        ({"step": 1, "data": {"val-core/acc": 0.5}}, {"val-core/acc"}),
    ],
)
def test_the_metrics_of_a_row_are_known_by_name(file, tail, row, names):
    file.write_text(json.dumps(row) + "\n")
    tail.readings()
    assert tail.names == names
