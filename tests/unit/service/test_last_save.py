"""Before a stop a save is asked for, and waited for within bounds (R23)."""

from __future__ import annotations

import msgspec
import pytest

from evalstop.core.actions import Stop
from evalstop.ports import Launch, Order
from evalstop.service.carry_out import LAUNCH
from evalstop.service.last_save import LastSave
from evalstop.store.memory import MemoryStore

ORDER = Order(key="1.0", job="a")


class Clock:
    """Time that passes only while somebody sleeps; what is due then happens."""

    def __init__(self):
        self.now = 0.0
        self.due = []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        for at, act in [one for one in self.due if one[0] <= self.now]:
            self.due.remove((at, act))
            act()


class SavingBackend:
    """Saves ``after_s`` seconds after it was asked; never, if that is None."""

    def __init__(self, clock, saved, after_s):
        self.clock, self.saved, self.after_s = clock, saved, after_s
        self.asked = 0

    def request_save(self, _order):
        self.asked += 1
        if self.after_s is not None:
            step = 100 + self.asked
            self.clock.due.append((self.clock.now + self.after_s, lambda: self.saved.add(step)))


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("evalstop.service.last_save.time", clock)
    return clock


@pytest.fixture
def make(clock):
    def made(after_s, *, first_s=60.0, **launch):
        documents, saved = MemoryStore(), set()
        fields = {"save_signal": "SIGUSR1", "checkpoints": "/out", "grace_s": 30.0} | launch
        documents.put(LAUNCH, "a", msgspec.json.encode(Launch(command=("x",), **fields)))
        backend = SavingBackend(clock, saved, after_s)
        last = LastSave(
            backend, documents, saved=lambda _: saved, look_soon=lambda _: None, first_s=first_s
        )
        return last, backend

    return made


def timed(last, clock):
    began = clock.now
    last(Stop(job="a"), ORDER)
    return clock.now - began


LOOK_S = pytest.approx(0.0, abs=0.11)
"""It looks every 0.05 s."""


def test_it_waits_until_the_save_is_in_custody(make, clock):
    last, backend = make(20.0)
    assert timed(last, clock) - 20.0 == LOOK_S
    assert backend.asked == 1
    assert last.measured["a"] - 20.0 == LOOK_S


def test_a_trainer_that_does_not_save_is_not_waited_for_for_ever(make, clock):
    last, backend = make(None, first_s=60.0)
    assert timed(last, clock) - 60.0 == LOOK_S
    assert backend.asked == 1


def test_the_bound_follows_the_measured_time(make, clock):
    last, backend = make(4.0, first_s=60.0)
    timed(last, clock)
    backend.after_s = None
    assert timed(last, clock) - 1.5 * last.measured["a"] == LOOK_S


@pytest.mark.parametrize(
    "launch", [{"save_signal": ""}, {"checkpoints": ""}, {"save_signal": "", "checkpoints": ""}]
)
def test_jobs_that_cannot_be_asked_are_not_waited_for(make, clock, launch):
    last, backend = make(None, **launch)
    assert timed(last, clock) == 0.0
    assert backend.asked == 0


def test_zero_asks_for_nothing(make, clock):
    last, backend = make(None, first_s=0.0)
    assert timed(last, clock) == 0.0
    assert backend.asked == 0


def test_a_grace_shorter_than_a_save_is_told(make, clock):
    last, _ = make(20.0, grace_s=10.0)
    timed(last, clock)
    assert "set a longer grace_s" in last.troubles()[0]
    last, _ = make(20.0, grace_s=30.0)
    timed(last, clock)
    assert last.troubles() == []
