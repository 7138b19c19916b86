"""A last save before a stop (R23): asked for, looked for, and waited for within bounds."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from evalstop.ports import CanRequestSave
from evalstop.service.carry_out import launch_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from evalstop.core.actions import Stop
    from evalstop.ports import Backend, Launch, Order, SnapshotStore

__all__ = ["LastSave"]

_log = logging.getLogger(__name__)

_PATIENCE = 1.5
"""A save may take so many times as long as the longest one measured of this job."""

_LOOK_EVERY_S = 0.05


class LastSave:
    """Asks a trainer for a checkpoint before its job is stopped.

    Jobs without a save signal and a checkpoint folder are not waited for.

    Args:
        backend: who passes the wish on.
        documents: where launch records lie.
        saved: the steps of a job whose checkpoints are verified and in custody.
        look_soon: has custody look at a job now.
        first_s: how long to wait where nothing has been measured yet; 0 asks for no save.
    """

    def __init__(
        self,
        backend: Backend,
        documents: SnapshotStore,
        *,
        saved: Callable[[str], Collection[int]],
        look_soon: Callable[[str], None],
        first_s: float,
    ) -> None:
        self._backend = backend
        self._documents = documents
        self._saved = saved
        self._look_soon = look_soon
        self._first_s = first_s
        self.measured: dict[str, float] = {}

    def __call__(self, stop: Stop, order: Order) -> None:
        """Ask, and wait until a new checkpoint is in custody or the bound is reached."""
        backend = self._backend
        launch = launch_of(self._documents, stop.job)
        if not self._first_s or not isinstance(backend, CanRequestSave) or not _can_save(launch):
            return
        before = set(self._saved(stop.job))
        began = time.monotonic()
        backend.request_save(order)
        longest = self.measured.get(stop.job)
        bound = self._first_s if longest is None else _PATIENCE * longest
        while time.monotonic() - began < bound:
            self._look_soon(stop.job)
            if set(self._saved(stop.job)) - before:
                took = time.monotonic() - began
                self.measured[stop.job] = max(took, longest or 0.0)
                return
            time.sleep(_LOOK_EVERY_S)
        _log.warning("%s saved nothing within %.1f s of being asked: stopping it", stop.job, bound)

    def troubles(self) -> list[str]:
        """Return the jobs whose grace is shorter than a save takes them, in sentences."""
        found = []
        for job, took in list(self.measured.items()):
            launch = launch_of(self._documents, job)
            if launch is not None and launch.grace_s < took:
                found.append(
                    f"job {job!r} saves in {took:.1f} s, but its grace is {launch.grace_s:g} s: "
                    "a preemption would kill it in the middle of a save; set a longer grace_s"
                )
        return found


def _can_save(launch: Launch | None) -> bool:
    return launch is not None and bool(launch.save_signal and launch.checkpoints)
