"""Carry out actions: one errand after another for each job, in threads, until acknowledged.

The log is written by the time an action comes here. A backend may be slow, refuse, or hang: an
errand that fails is tried again with growing pauses, one that hangs holds up its own job alone.
That a command reached the backend is no acknowledgement; only an event is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from msgspec import Struct

from evalstop.core.actions import Action, Preempt, Start, Stop
from evalstop.core.errors import EvalStopError, StoreError

__all__ = ["Dispatcher", "Errand"]

_log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 10.0
START_TRIES = 30
"""A start that was refused this often is given up, and the job fails.

That the log cannot be read is no refusal: a database may be away for longer than that.
"""


class Errand(Struct, frozen=True, kw_only=True):
    """One action to carry out, under its key; ``act`` does it and may raise."""

    key: str
    job: str
    action: Action
    act: Callable[[], None]


class Dispatcher:
    """Runs errands.

    Args:
        wanted: whether an errand is still worth doing: its key is unacknowledged.
        inline: do everything at once in the caller's thread, for tests of order.
        slow_s: an errand that takes longer than this is told as hanging.
    """

    def __init__(
        self, wanted: Callable[[Errand], bool], *, inline: bool = False, slow_s: float = 30.0
    ) -> None:
        self._wanted = wanted
        self._inline = inline
        self._slow_s = slow_s
        self._lock = threading.Lock()
        self._queues: dict[str, deque[Errand]] = {}
        self._busy: dict[str, tuple[float, Errand]] = {}
        self._done: dict[str, bool] = {}
        self._closed = threading.Event()
        self._when_done: Callable[[], None] = lambda: None
        self._trouble: dict[str, str] = {}
        self.failed: dict[str, str] = {}

    def send(self, errand: Errand) -> None:
        """Put an errand at the end of its job's queue; a stop takes the place of a start."""
        with self._lock:
            queue = self._queues.setdefault(errand.job, deque())
            if isinstance(errand.action, Stop):
                queue.clear()
            if any(queued.key == errand.key for queued in queue):
                return
            queue.append(errand)
            if errand.job in self._busy:
                return
            self._busy[errand.job] = (time.monotonic(), errand)
        if self._inline:
            self._work(errand.job)
        else:
            name = f"errand-{errand.key}"
            threading.Thread(target=self._work, args=(errand.job,), name=name, daemon=True).start()

    def _work(self, job: str) -> None:
        while True:
            with self._lock:
                queue = self._queues.get(job)
                if not queue or self._closed.is_set():
                    self._busy.pop(job, None)
                    self._queues.pop(job, None)
                    return
                errand = queue.popleft()
                self._busy[job] = (time.monotonic(), errand)
            self._do(errand)

    def _do(self, errand: Errand) -> None:
        pause = FIRST_PAUSE_S
        refusals = 0
        while self._wanted(errand) and not self._closed.is_set():
            try:
                errand.act()
            except Exception as error:  # noqa: BLE001 -- a job must not hang because of a fault here
                known = isinstance(error, EvalStopError | OSError)
                told = str(error) if known else f"{type(error).__name__}: {error}"
                self._trouble[errand.job] = f"{_verb(errand)} ({errand.key}) fails: {told}"
                _log.warning(
                    "%s %s failed: %s", errand.key, _verb(errand), told, exc_info=not known
                )
                refusals += not isinstance(error, StoreError)
                if isinstance(errand.action, Start) and refusals >= START_TRIES:
                    self.failed[errand.job] = told
                    return
                if self._inline:
                    return
                self._closed.wait(pause)
                pause = min(LONGEST_PAUSE_S, 2 * pause)
            else:
                self._done[errand.key] = True
                self._trouble.pop(errand.job, None)
                self._when_done()
                return

    def when_done(self, hear: Callable[[], None]) -> None:
        """Call ``hear`` whenever a command has reached the backend; it must be quick."""
        self._when_done = hear

    def poke(self) -> None:
        """Have the backend looked at soon: something is known to have happened there."""
        self._when_done()

    def carried_out(self) -> dict[str, bool]:
        """Return the keys of errands that the backend has, as of now."""
        return dict(self._done)

    def started(self, job: str) -> None:
        """Hear that a job runs: earlier trouble with it is over."""
        self._trouble.pop(job, None)
        self.failed.pop(job, None)

    def ended(self, job: str, stop_key: str) -> None:
        """Forget what is over."""
        self._done.pop(stop_key, None)
        self.started(job)

    def troubles(self) -> list[str]:
        """Return what fails or hangs, in sentences."""
        now = time.monotonic()
        with self._lock:
            return list(self._trouble.values()) + [
                f"{_verb(errand)} ({errand.key}) has been under way for {now - since:.0f} s"
                for since, errand in self._busy.values()
                if now - since > self._slow_s
            ]

    def close(self) -> None:
        """Begin no more errands; what is pending is sent again by the next controller."""
        self._closed.set()


def _verb(errand: Errand) -> str:
    match errand.action:
        case Start():
            verb = "start of"
        case Stop():
            verb = "stop of"
        case Preempt():
            verb = "preemption of"
        case _:
            verb = "errand for"
    return f"{verb} {errand.job}"
