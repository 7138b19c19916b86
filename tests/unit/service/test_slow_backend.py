"""A backend that hangs or refuses holds up its own job alone."""

from __future__ import annotations

import threading
import time

import pytest

from evalstop.core.errors import BackendError, StoreError
from evalstop.ports import RunState
from evalstop.service import dispatch
from evalstop.service.carry_out import LAUNCH, BackendCarryOut
from evalstop.service.clock import SystemClock
from evalstop.service.controller import Controller
from evalstop.service.poller import Poller
from evalstop.testing.backend import eventually


@pytest.fixture
def threaded(make_platform, monkeypatch):
    """A platform with threads, on a real clock."""
    monkeypatch.setattr(dispatch, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(dispatch, "LONGEST_PAUSE_S", 0.02)

    class Threaded(make_platform):
        def restart(self):
            self.carry_out = BackendCarryOut(self.backend, self.documents)
            self.carry_out.dispatcher._slow_s = 0.2
            self.controller = Controller(
                store=self.store,
                policy=self.policy(),
                clock=SystemClock(),
                carry_out=self.carry_out,
            )
            self.controller.start()
            self.poller = Poller(self.carry_out, every_s=0.01)
            self.poller.start()

        def ask(self, build):
            return self.controller.ask(build).result(timeout=60)

        def until(self, job, phase):
            eventually(lambda: self.phase(job) == phase, 120.0)

    platform = Threaded(gpus=2)
    eventually(lambda: platform.controller.kernel.state.view.total_gpus == 2, 120.0)
    yield platform
    platform.poller.close()
    platform.controller.close()


def decline(platform, job):
    for step, score in enumerate((0.5, 0.6, 0.5, 0.4), start=1):
        platform.report(job, step, score)


def test_a_stop_that_hangs_holds_up_no_other_job(threaded):
    hang = threading.Event()
    stop = threaded.backend.stop

    def slow(order):
        if order.job == "a":
            hang.wait(120)
        stop(order)

    threaded.backend.stop = slow
    for job in ("a", "b"):
        threaded.submit(job)
        threaded.until(job, "running")
    decline(threaded, "a")
    decline(threaded, "b")
    threaded.until("b", "stopped_by_policy")
    threaded.submit("c")
    threaded.until("c", "running")
    assert not hang.is_set()
    eventually(lambda: any("stop of a" in t for t in threaded.carry_out.dispatcher.troubles()), 60)
    assert threaded.phase("a") == "releasing"
    hang.set()
    threaded.until("a", "stopped_by_policy")
    eventually(lambda: threaded.carry_out.dispatcher.troubles() == [], 120.0)


def test_a_start_that_is_refused_is_tried_again(threaded):
    refusals = iter(range(3))
    start = threaded.backend.start

    def refuse(order):
        if next(refusals, None) is not None:
            message = "not now"
            raise BackendError(message)
        start(order)

    threaded.backend.start = refuse
    threaded.submit("a")
    threaded.until("a", "running")
    eventually(lambda: threaded.carry_out.dispatcher.troubles() == [], 120.0)


def test_a_start_that_is_always_refused_fails_the_job_and_frees_its_gpus(threaded, monkeypatch):
    monkeypatch.setattr(dispatch, "START_TRIES", 3)

    def refuse(_order):
        message = "no such partition"
        raise BackendError(message)

    threaded.backend.start = refuse
    threaded.submit("a", gpus=2)
    threaded.until("a", "failed")
    assert threaded.controller.kernel.state.view.free_gpus == 2


def test_a_log_that_cannot_be_read_for_long_fails_no_job(threaded, monkeypatch):
    monkeypatch.setattr(dispatch, "START_TRIES", 3)
    monkeypatch.setattr(dispatch, "LONGEST_PAUSE_S", 0.01)
    read, away = threaded.documents.get, iter(range(50))

    def get(kind, key):
        if kind == LAUNCH and next(away, None) is not None:
            message = "the database is away"
            raise StoreError(message)
        return read(kind, key)

    threaded.documents.get = get
    threaded.submit("a")
    threaded.until("a", "running")
    assert next(away, None) is None, "it was away for more than START_TRIES"


def test_a_listing_that_hangs_or_fails_does_not_stop_reports_and_decisions(threaded):
    threaded.submit("a")
    threaded.until("a", "running")
    hang = threading.Event()
    listing = threaded.backend.listing

    def broken():
        message = "slurmctld is down"
        raise BackendError(message)

    def slow():
        hang.wait(120)
        broken()

    threaded.backend.listing = slow
    decline(threaded, "a")
    eventually(lambda: ("stop", "a") in [call[:2] for call in threaded.backend.log], 120.0)
    assert threaded.phase("a") == "releasing"
    threaded.backend.listing = broken
    hang.set()
    eventually(lambda: "slurmctld is down" in threaded.carry_out.backend_problem, 120.0)
    assert threaded.phase("a") == "releasing", "an end needs proof"
    threaded.backend.listing = listing
    threaded.until("a", "stopped_by_policy")


def test_neither_a_stop_nor_the_next_start_waits_for_a_round_of_polling(threaded):
    """One look finds the GPUs free and hands them on; how quick: benchmarks/bench_live.py."""
    for job in ("a", "b"):
        threaded.submit(job, gpus=2)
    threaded.until("a", "running")
    threaded.poller.close()
    decline(threaded, "a")
    eventually(lambda: threaded.backend.listing().jobs[0].state is RunState.RELEASED, 120.0)
    threaded.carry_out.look().result(120)
    eventually(lambda: ("start", "b") in [call[:2] for call in threaded.backend.log], 120.0)


def test_a_fault_of_ours_in_an_errand_is_told_and_tried_again(threaded, caplog):
    """R30: whatever an errand raises, its job is neither forgotten nor stuck."""
    start, tries = threaded.backend.start, []

    def faulty(order):
        tries.append(order.key)
        if len(tries) < 3:
            raise NameError(order.key)
        start(order)

    threaded.backend.start = faulty
    threaded.submit("a")
    threaded.until("a", "running")
    assert len(tries) == 3
    assert f"NameError: {tries[0]}" in caplog.text


def test_nothing_is_carried_out_before_the_controller_is_started(threaded):
    """R09: what errands reach may not stand yet while the log is being read."""
    threaded.backend.start = lambda _: time.sleep(600)  # promised, never acknowledged
    threaded.submit("a")
    threaded.poller.close()
    threaded.controller.close()
    done = []
    carry_out = BackendCarryOut(threaded.backend, threaded.documents)
    threaded.backend.start = lambda order: done.append(order.job)
    controller = Controller(
        store=threaded.store, policy=threaded.policy(), clock=SystemClock(), carry_out=carry_out
    )
    time.sleep(0.2)
    assert done == []
    controller.start()
    eventually(lambda: done == ["a"], 120.0)
    controller.close()
