"""The thread that looks at the backend from time to time."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evalstop.service.carry_out import BackendCarryOut

__all__ = ["Poller"]

_log = logging.getLogger(__name__)

_SHARE = 9.0
"""The pause after a look is so many times as long as the look, for it takes a core; within bounds:
a look that took long since the machine or the backend stood still costs nobody a minute more."""

_SHORTEST_PAUSE_S = 0.02
_ANSWER_S = 30.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0


class Poller:
    """Looks at the backend every ``every_s`` seconds; less often where a look takes long.

    It looks at once when a command has reached the backend: something is about to happen.
    After a failure it looks again soon, after more of them more rarely, and says so once: jobs
    that were handed in while no controller ran are not guarded before the first look succeeds.
    """

    def __init__(self, carry_out: BackendCarryOut, *, every_s: float) -> None:
        self._carry_out = carry_out
        self._every_s = every_s
        self._ended = threading.Event()
        self._wake = threading.Event()
        carry_out.dispatcher.when_done(self._wake.set)
        self._thread = threading.Thread(target=self._run, name="poller", daemon=True)
        self.looked_at = float("-inf")
        self.problem = ""

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """End; a look that hangs in the backend is left behind."""
        self._ended.set()
        self._wake.set()
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        pause, failures = self._every_s, 0
        while not self._ended.is_set():
            began = time.monotonic()
            try:
                self._carry_out.look().result(timeout=_ANSWER_S)
                self._carry_out.tidy()
            except (Exception, FutureTimeoutError) as error:  # noqa: BLE001 -- looking must go on whatever a backend raises
                if not self.problem:
                    _log.exception("looking at the backend failed; trying again")
                self.problem = f"{type(error).__name__}: {error}"
                failures += 1
                pause = again_after(failures, every_s=self._every_s)
            else:
                self.looked_at = time.monotonic()
                self.problem, failures = "", 0
                pause = after_look(self.looked_at - began, every_s=self._every_s)
            self._ended.wait(_SHORTEST_PAUSE_S)
            self._wake.wait(pause)
            self._wake.clear()


def after_look(took_s: float, *, every_s: float) -> float:
    """Return the seconds to pause after a look that took so long.

    Example:
        >>> after_look(0.01, every_s=2.0), after_look(0.5, every_s=2.0)
        (2.0, 4.5)
        >>> after_look(7.0, every_s=2.0)
        10.0
    """
    return max(every_s, min(_LONGEST_PAUSE_S, _SHARE * took_s))


def again_after(failures: int, *, every_s: float) -> float:
    """Return the seconds to pause after so many failures in a row.

    Example:
        >>> again_after(1, every_s=2.0), again_after(4, every_s=2.0), again_after(9, every_s=2.0)
        (0.5, 4.0, 10.0)
    """
    first = min(_FIRST_PAUSE_S, every_s)
    return min(_LONGEST_PAUSE_S, first * 2.0 ** min(failures - 1, 32))
