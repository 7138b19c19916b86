"""R03, R15: what is best, in the ledger and among the pins, whatever comes in what order."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalstop.core.events import EvalReported, JobSubmitted, OperatorCommanded
from evalstop.core.job import JobSpec
from evalstop.core.points import EvalPoint
from evalstop.custody import FileCustody, scored_pins
from evalstop.ports import Entry, Pin
from evalstop.service.ledger import Ledger
from evalstop.testing.custody import write_checkpoint

KEYS = st.tuples(st.integers(0, 3), st.integers(0, 5))
SCORES = st.integers(-3, 3).map(float)


class Log:
    def __init__(self):
        self.ledger, self.sequence = Ledger(), 0
        self.tell(JobSubmitted(time=0.0, job=JobSpec(id="a")))

    @property
    def record(self):
        return self.ledger.jobs["a"]

    def tell(self, event):
        self.sequence += 1
        self.ledger.note(Entry(sequence=self.sequence, event=event, actions=()), {})

    def report(self, key, score, **fields):
        point = EvalPoint(attempt=key[0], step=key[1], score=score, **fields)
        self.tell(EvalReported(time=0.0, job="a", point=point))


@given(st.lists(st.tuples(KEYS, SCORES), max_size=30, unique_by=lambda one: one[0]))
def test_best_never_gets_worse_over_attempts_and_undos(reports):
    log = Log()
    highest = None
    for index, (key, score) in enumerate(reports):
        log.report(key, score)
        highest = score if highest is None else max(highest, score)
        assert log.record.best.score == highest
        if index % 7 == 6:
            log.tell(OperatorCommanded(time=0.0, command="undo", actor="ann", job="a"))
            log.tell(JobSubmitted(time=0.0, job=JobSpec(id="a")))
            assert log.record.best.score == highest


@given(st.lists(st.tuples(KEYS, SCORES), min_size=1, max_size=30))
def test_replicates_are_pooled_so_that_best_is_not_the_luckiest_look(reports):
    log = Log()
    seen = {}
    for number, (key, score) in enumerate(reports):
        log.report(key, score, eval_id=str(number))
        seen.setdefault(key, []).append(score)
    means = {key: sum(scores) / len(scores) for key, scores in seen.items()}
    assert log.record.scored == pytest.approx(means)
    best = log.record.best
    assert best.score == pytest.approx(max(means.values()))
    assert means[best.attempt, best.step] == pytest.approx(best.score)


@given(
    st.sets(KEYS, max_size=12),
    st.dictionaries(KEYS, SCORES, max_size=20),
)
def test_a_score_is_of_the_newest_checkpoint_of_its_step_that_was_there(keys, scores):
    pins = [
        Pin(job="a", step=step, name=f"c{step}", path=f"/{attempt}/{step}", attempt=attempt)
        for attempt, step in keys
    ]
    given_to = scored_pins(pins, scores)
    assert given_to.keys() <= keys
    for (attempt, step), key in given_to.items():
        assert key[1] == step
        assert key[0] >= attempt
    for key, score in scores.items():
        there = [attempt for attempt, step in keys if step == key[1] and attempt <= key[0]]
        if there:
            assert scores[given_to[max(there), key[1]]] >= score


def test_a_score_without_a_checkpoint_of_its_attempt_is_given_to_none():
    """What a later attempt wrote is not what an earlier one scored."""
    pin = Pin(job="a", step=6, name="c6", path="/6", attempt=1)
    assert scored_pins([pin], {(0, 6): 0.9}) == {}
    assert scored_pins([pin], {(0, 6): 0.9, (2, 6): 0.5}) == {(1, 6): (2, 6)}


@pytest.mark.parametrize("copy", [False, True])
def test_weights_written_anew_are_pinned_beside_the_first_though_their_headers_agree(
    tmp_path, copy
):
    store = FileCustody(tmp_path / "custody", copy=copy)
    source = write_checkpoint(tmp_path / "out", 5)
    first = store.pin("a", 5, str(source))
    assert store.pin("a", 5, str(source)) == first
    weights = source / "model.safetensors"
    other = bytes(weights.read_bytes()[:-1]) + b"\x02"
    aside = source / ".aside"
    aside.write_bytes(other)
    aside.rename(weights)
    os.utime(weights, ns=(1, 1))
    second = store.pin("a", 5, str(source), attempt=0)
    assert (first.attempt, second.attempt) == (0, 1)
    assert [pin.attempt for pin in store.pins("a")] == [0, 1]
    assert store.pin("a", 5, str(source)) == second
    held = [
        (tmp_path / "custody" / pin.path / "model.safetensors").read_bytes()[-1]
        for pin in store.pins("a")
    ]
    assert held == [1, 2]
    store.unpin(first)
    assert list(store.pins("a")) == [second]
