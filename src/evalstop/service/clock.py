"""The controller's time: smooth, and never behind its log."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evalstop.ports import Clock

__all__ = ["LogClock", "SystemClock"]


class SystemClock:
    """`evalstop.ports.Clock` of this machine."""

    def now(self) -> float:
        """Return seconds since 1970."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()


class LogClock:
    """Stamps events: the wall clock as it was at the start, moved on by the monotonic one.

    A wall clock that is set while the controller runs changes nothing; one that is behind the
    log at the start waits at the log's last time.

    Args:
        clock: where time comes from.
        last: time of the log's last entry; minus infinity for an empty log.
    """

    def __init__(self, clock: Clock, last: float) -> None:
        self._clock = clock
        self._base = max(clock.now(), last)
        self._started = clock.monotonic()

    def now(self) -> float:
        """Return the time to stamp."""
        return self._base + (self._clock.monotonic() - self._started)
