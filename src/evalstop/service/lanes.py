"""A few threads for work on object stores: one job's in order, another job's beside it.

What waits for a network must hold up neither the thread that decides nor custody on disks.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Lanes"]

_THREADS = 4


class Lanes:
    """Runs what is submitted; the threads begin with the first work and never hold up an exit."""

    def __init__(self, threads: int = _THREADS) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[tuple[Callable[[], None], Future[None]]]] = {}
        self._ready: SimpleQueue[str | None] = SimpleQueue()
        self._begun = False

    def submit(self, job: str, act: Callable[[], None]) -> Future[None]:
        """Do something for a job, after what was submitted for it before."""
        future: Future[None] = Future()
        with self._lock:
            if not self._begun:
                self._begun = True
                for _ in range(self._threads):
                    threading.Thread(target=self._work, name="custody-lane", daemon=True).start()
            lane = self._waiting.get(job)
            if lane is None:
                lane = self._waiting[job] = deque()
                self._ready.put(job)
            lane.append((act, future))
        return future

    def is_idle(self, job: str) -> bool:
        """Return whether nothing is being done for a job, or waits."""
        with self._lock:
            return job not in self._waiting

    def close(self) -> None:
        """Begin nothing more."""
        with self._lock:
            for lane in self._waiting.values():
                for _, future in lane:
                    future.cancel()
        for _ in range(self._threads):
            self._ready.put(None)

    def _work(self) -> None:
        while (job := self._ready.get()) is not None:
            with self._lock:
                act, future = self._waiting[job][0]
            if future.set_running_or_notify_cancel():
                try:
                    act()
                except BaseException as error:  # noqa: BLE001 -- whoever waits is told
                    future.set_exception(error)
                else:
                    future.set_result(None)
            with self._lock:
                lane = self._waiting[job]
                lane.popleft()
                if lane:
                    self._ready.put(job)
                else:
                    del self._waiting[job]
