"""Before a stop a save is asked for, and waited for within bounds (R23)."""

from __future__ import annotations

import threading
import time

import msgspec
import pytest

from evalstop.core.actions import Stop
from evalstop.ports import Launch, Order
from evalstop.service.carry_out import LAUNCH
from evalstop.service.last_save import LastSave
from evalstop.store.memory import MemoryStore

ORDER = Order(key="1.0", job="a")


class SavingBackend:
    """Saves ``after_s`` seconds after it was asked; never, if that is None."""

    def __init__(self, saved, after_s):
        self.saved, self.after_s = saved, after_s
        self.asked = 0

    def request_save(self, _order):
        self.asked += 1
        if self.after_s is not None:
            step = 100 + self.asked
            timer = threading.Timer(self.after_s, self.saved.__setitem__, (step, "x"))
            timer.daemon = True
            timer.start()


@pytest.fixture
def make():
    def made(after_s, *, first_s=60.0, **launch):
        documents, saved = MemoryStore(), {}
        fields = {"save_signal": "SIGUSR1", "checkpoints": "/out", "grace_s": 30.0} | launch
        documents.put(LAUNCH, "a", msgspec.json.encode(Launch(command=("x",), **fields)))
        backend = SavingBackend(saved, after_s)
        last = LastSave(
            backend, documents, saved=lambda _: saved, look_soon=lambda _: None, first_s=first_s
        )
        return last, backend

    return made


def timed(last):
    began = time.monotonic()
    last(Stop(job="a"), ORDER)
    return time.monotonic() - began


def test_it_waits_until_the_save_is_in_custody(make):
    last, backend = make(0.2)
    assert 0.15 < timed(last) < 5.0
    assert backend.asked == 1
    assert 0.15 < last.measured["a"] < 5.0


def test_a_trainer_that_does_not_save_is_not_waited_for_for_ever(make):
    last, backend = make(None, first_s=0.3)
    assert 0.25 < timed(last) < 20.0
    assert backend.asked == 1


def test_the_bound_follows_the_measured_time(make):
    last, backend = make(0.3, first_s=30.0)
    timed(last)
    backend.after_s = None
    assert timed(last) < 1.5 * last.measured["a"] + 20.0


@pytest.mark.parametrize(
    "launch", [{"save_signal": ""}, {"checkpoints": ""}, {"save_signal": "", "checkpoints": ""}]
)
def test_jobs_that_cannot_be_asked_are_not_waited_for(make, launch):
    last, backend = make(None, **launch)
    timed(last)
    assert backend.asked == 0


def test_zero_asks_for_nothing(make):
    last, backend = make(None, first_s=0.0)
    timed(last)
    assert backend.asked == 0


def test_a_grace_shorter_than_a_save_is_told(make):
    last, _ = make(0.2, grace_s=0.01)
    timed(last)
    assert "set a longer grace_s" in last.troubles()[0]
    last, _ = make(0.05)
    timed(last)
    assert last.troubles() == []
