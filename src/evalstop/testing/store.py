"""What every store of the log promises."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from evalstop.core.actions import Start, Stop, WakeAt
from evalstop.core.errors import StoreConflictError
from evalstop.core.events import (
    CapacityChanged,
    EvalReported,
    JobEnded,
    JobStarted,
    JobSubmitted,
    OperatorCommanded,
    TimerFired,
)
from evalstop.core.job import JobSpec, Outcome
from evalstop.core.points import EvalPoint, State, Verdict
from evalstop.ports import Entry

if TYPE_CHECKING:
    from evalstop.core.actions import Action
    from evalstop.core.events import Event
    from evalstop.store.memory import MemoryStore

__all__ = ["StoreContract", "story"]


def story() -> list[Entry]:
    """Return a log of two jobs: one is stopped, the other takes its place."""
    verdict = Verdict(state=State.ALARM, statistic=3.5, threshold=3.0, best_step=10, best_score=0.5)
    stop = Stop(job="a", rule="consecutive:k=2", verdict=verdict, best_step=10)
    lines: list[tuple[Event, tuple[Action, ...]]] = [
        (CapacityChanged(time=0.0, gpus=2), ()),
        (
            JobSubmitted(time=1.0, job=JobSpec(id="a", tenant="t", gpus=2)),
            (Start(job="a", gpus=2),),
        ),
        (JobStarted(time=1.25, job="a", gpus=2), ()),
        (JobSubmitted(time=2.0, job=JobSpec(id="b", labels={"queue": "night"}, gpus=2)), ()),
        (EvalReported(time=3.0, job="a", point=EvalPoint(step=10, score=0.5, stderr=0.1)), ()),
        (EvalReported(time=4.0, job="a", point=EvalPoint(step=20)), (WakeAt(time=9.0),)),
        (EvalReported(time=5.0, job="a", point=EvalPoint(step=30, score=-1.0)), (stop,)),
        (
            JobEnded(time=6.5, job="a", outcome=Outcome.STOPPED_BY_POLICY),
            (Start(job="b", gpus=2),),
        ),
        (TimerFired(time=9.0, token="x"), ()),  # noqa: S106 -- names a timer
        (OperatorCommanded(time=9.0, command="freeze", actor="ops"), ()),
    ]
    return [
        Entry(sequence=number, event=event, actions=actions)
        for number, (event, actions) in enumerate(lines, start=1)
    ]


class StoreContract:
    """Subclass it and say how to make an empty store, and how to open it again."""

    def store(self) -> MemoryStore:
        """Return an empty `EventStore` and `SnapshotStore` in one."""
        raise NotImplementedError

    def reopened(self, store: MemoryStore) -> MemoryStore:
        """Return the same store as another process would open it."""
        raise NotImplementedError

    def test_what_is_written_is_read_again(self) -> None:
        """Every kind of entry comes back as it was, in order, from any point."""
        store = self.store()
        written = story()
        store.append(written[:4])
        store.append(written[4:])
        store = self.reopened(store)
        read = list(store.read())
        assert repr(read) == repr(written)  # NaN is not equal to itself, its repr is
        assert [entry.sequence for entry in store.read(after=7)] == [8, 9, 10]
        assert store.last_sequence() == len(written)

    def test_a_missing_score_stays_missing(self) -> None:
        """NaN goes through JSON by absence."""
        store = self.store()
        store.append(story())
        event = list(self.reopened(store).read())[5].event
        assert isinstance(event, EvalReported)
        assert math.isnan(event.point.score)

    def test_an_empty_log_reads_as_nothing(self) -> None:
        """Nothing is in it, and appending nothing changes nothing."""
        store = self.store()
        store.append([])
        assert list(store.read()) == []
        assert store.last_sequence() == 0

    def test_a_second_writer_is_refused_and_leaves_no_trace(self) -> None:
        """Sequences are written once and without gaps; a batch goes in whole or not at all."""
        store = self.store()
        lines = story()
        store.append(lines[:5])
        for wrong in (lines[4:6], lines[6:8], [lines[5], lines[7]]):
            with pytest.raises(StoreConflictError):
                store.append(wrong)
        assert store.last_sequence() == 5  # noqa: PLR2004 -- as written
        store.append(lines[5:])
        assert [entry.sequence for entry in store.read()] == list(range(1, len(lines) + 1))

    def test_a_write_whose_answer_was_lost_can_be_repeated(self) -> None:
        """The very same entries again change nothing; others under their sequences do not pass."""
        store = self.store()
        lines = story()
        store.append(lines[:3])
        store.append(lines[1:3])
        assert store.last_sequence() == 3  # noqa: PLR2004 -- as written
        other = Entry(sequence=3, event=lines[0].event)
        with pytest.raises(StoreConflictError):
            store.append([other])
        store.append(lines[3:])
        assert store.last_sequence() == len(lines)

    def test_one_jobs_story_has_its_facts_and_what_was_decided_on_it(self) -> None:
        """Also entries of another job's event that started this one."""
        store = self.store()
        store.append(story())
        assert [entry.sequence for entry in store.read_job("a")] == [2, 3, 5, 6, 7, 8]
        assert [entry.sequence for entry in store.read_job("b")] == [4, 8]
        assert list(store.read_job("nobody")) == []

    def test_documents_are_kept_replaced_and_removed(self) -> None:
        """By kind and key; the last write wins."""
        store = self.store()
        store.put("launch", "b", b"1")
        store.put("launch", "a", b"\x00\xff")
        store.put("token", "a", b"other")
        store.put("launch", "b", b"2")
        store = self.reopened(store)
        assert list(store.documents("launch")) == [("a", b"\x00\xff"), ("b", b"2")]
        store.delete("launch", "a")
        store.delete("launch", "a")
        assert store.get("launch", "a") is None
        assert store.get("token", "a") == b"other"
