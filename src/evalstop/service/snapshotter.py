"""Makes snapshots in a process of its own, so that the controller never pauses for one."""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import os
import threading
from importlib import resources
from typing import TYPE_CHECKING

from evalstop.service.snapshot import Snapshots, fold

if TYPE_CHECKING:
    from collections.abc import Callable

    from evalstop.core.policy import Policy
    from evalstop.ports import EventStore

__all__ = ["SnapshotKeeper", "fingerprint"]

_log = logging.getLogger(__name__)

EVERY_ENTRIES = 50_000
_LOOK_EVERY_S = 10.0
_DECIDING = ("core", "detectors", "schedulers", "policies", "service")


def fingerprint(words: str) -> str:
    """Return what a snapshot depends on beside the log: the settings and our own code."""
    digest = hashlib.blake2b(words.encode(), digest_size=16)
    for package in _DECIDING:
        folder = resources.files("evalstop") / package
        for file in sorted(folder.iterdir(), key=lambda file: file.name):
            if file.name.endswith(".py"):
                digest.update(file.read_bytes())
    return digest.hexdigest()


def make_snapshot(open_: Callable[[], tuple[EventStore, Policy, Snapshots]]) -> None:
    """Fold the log up to date and write a snapshot; runs in a process of its own."""
    os.nice(10)
    store, policy, snapshots = open_()
    snapshots.write(fold(store, policy, snapshots))


class SnapshotKeeper:
    """Has a snapshot made whenever the log has grown enough.

    Args:
        open_: opens log, policy and snapshots; must be picklable: it is called in the other
            process.
        sequence: returns the log's newest sequence.
        since: sequence of the newest snapshot of use; 0 where there is none.
    """

    def __init__(
        self,
        open_: Callable[[], tuple[EventStore, Policy, Snapshots]],
        sequence: Callable[[], int],
        *,
        since: int,
        every: int = EVERY_ENTRIES,
    ) -> None:
        self._open = open_
        self._sequence = sequence
        self._since = since
        self._every = every
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)

    def use(self, open_: Callable[[], tuple[EventStore, Policy, Snapshots]]) -> None:
        """Make the next snapshots by other settings, and the first of them soon.

        Those there are now are of no use any more: a restart would replay the whole log.
        """
        self._open = open_
        self._since = 0

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Begin no more."""
        self._ended.set()

    def _run(self) -> None:
        context = multiprocessing.get_context("spawn")
        while not self._ended.wait(_LOOK_EVERY_S):
            now = self._sequence()
            if now - self._since < self._every:
                continue
            self._since = now
            process = context.Process(target=make_snapshot, args=(self._open,), daemon=True)
            process.start()
            process.join()
            if process.exitcode != 0:
                _log.warning("no snapshot could be made; a restart replays the log instead")
