"""Stand-ins that run in memory, at the speed of the test, and pass the contract suites."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from evalstop.core.errors import BackendError
from evalstop.ports import JobReport, Listing, RunState

if TYPE_CHECKING:
    from evalstop.ports import Order

__all__ = ["FakeBackend", "FakeClock"]

_KILLED = -9
_TERMINATED = -15


class FakeClock:
    """Time that moves when the test says so."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._now = start
        self._monotonic = 0.0

    def now(self) -> float:
        """Return the faked seconds since 1970."""
        return self._now

    def monotonic(self) -> float:
        """Return the faked seconds that never go back."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock off, forwards or backwards, as an administrator does."""
        self._now += seconds


@dataclass
class _Run:
    order: Order
    devices: tuple[str, ...]
    state: RunState = RunState.RUNNING
    exit_code: int | None = None
    stubborn: bool = False
    stopped: bool = False
    kill_at: float = float("inf")


@dataclass
class FakeBackend:
    """A backend in memory, for any thread. ``finish`` ends a job; what it was told is in ``log``.

    A launch whose command is ``("exit", CODE)`` ends at once; with "stubborn" in front it
    ignores SIGTERM until its grace is over; anything else lasts.

    Attributes:
        gpus: how many there are.
        log: every call that changed something, as (verb, job, key): the spy of observe mode.
        stuck: jobs whose GPUs are never proven free: they end up quarantined.
    """

    gpus: int = 8
    log: list[tuple[str, str, str]] = field(default_factory=list)
    stuck: set[str] = field(default_factory=set)
    _runs: dict[str, _Run] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def start(self, order: Order) -> None:
        """Run a job on free GPUs; the same key twice runs once."""
        with self._lock:
            self._start(order)

    def _start(self, order: Order) -> None:
        old = self._runs.get(order.job)
        if old is not None and old.order.attempt >= order.attempt:
            return
        taken = {name for run in self._runs.values() for name in self._held(run)}
        free = [name for name in map(str, range(self.gpus)) if name not in taken]
        if len(free) < order.gpus:
            message = f"{order.job} asks for {order.gpus} GPUs, {len(free)} are free"
            raise BackendError(message)
        self.log.append(("start", order.job, order.key))
        command = order.launch.command if order.launch else ()
        run = _Run(order=order, devices=tuple(free[: order.gpus]))
        run.stubborn = "stubborn" in command
        self._runs[order.job] = run
        if command[:1] == ("exit",):
            self.finish(order.job, int(command[1]))

    def stop(self, order: Order) -> None:
        """End a run; a stubborn one after its grace, a stuck one never."""
        with self._lock:
            self._stop(order)

    def _stop(self, order: Order) -> None:
        run = self._runs.get(order.job)
        if run is None or run.state is not RunState.RUNNING:
            return
        self.log.append(("stop", order.job, order.key))
        run.stopped = True
        if order.job in self.stuck:
            run.state = RunState.QUARANTINED
        elif run.stubborn:
            run.state = RunState.RELEASING
            run.kill_at = time.monotonic() + order.grace_s
        else:
            self.finish(order.job, _TERMINATED)

    def preempt(self, order: Order) -> None:
        """Take a run off its GPUs."""
        self.stop(order)

    def finish(self, job: str, exit_code: int = 0) -> None:
        """Let a job end by itself."""
        with self._lock:
            run = self._runs[job]
            run.state, run.exit_code = RunState.RELEASED, exit_code

    def listing(self) -> Listing:
        """Return the newest run of each job."""
        with self._lock:
            return self._listing()

    def _listing(self) -> Listing:
        for job, run in self._runs.items():
            if run.state is RunState.RELEASING and time.monotonic() >= run.kill_at:
                self.finish(job, _KILLED)
        lost = [
            name
            for run in self._runs.values()
            if run.state is RunState.QUARANTINED
            for name in run.devices
        ]
        reports = tuple(
            JobReport(
                job=job,
                attempt=run.order.attempt,
                state=run.state,
                gpus=run.order.gpus,
                devices=run.devices,
                exit_code=run.exit_code,
                stopped=run.stopped,
            )
            for job, run in self._runs.items()
        )
        return Listing(jobs=reports, gpus=self.gpus - len(lost), quarantined=tuple(lost))

    def forget(self, job: str) -> None:
        """Drop a released job."""
        with self._lock:
            run = self._runs.get(job)
            if run is not None and run.state is RunState.RELEASED:
                del self._runs[job]

    def _held(self, run: _Run) -> tuple[str, ...]:
        return () if run.state is RunState.RELEASED else run.devices
