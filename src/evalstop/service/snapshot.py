"""Snapshots: a fold of the log in a file, so that a restart need not fold it all.

A snapshot is made by a process of its own, which starts from the last one, folds the log up to
date, and writes the next one aside: the controller never pauses for it. One is used only by the
same version of evalstop under the same settings; without a usable one the log is replayed, which
takes longer and gives the same. So deleting all snapshots is always safe.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from evalstop.core.cluster import ClusterState
from evalstop.core.kernel import Kernel
from evalstop.service.graph import GraphError, from_node, to_node
from evalstop.service.ledger import Ledger
from evalstop.service.recover import Recovered, recover

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from evalstop.core.policy import Policy
    from evalstop.ports import Entry, EventStore

__all__ = ["Folded", "Snapshots", "fold"]

_log = logging.getLogger(__name__)

FORMAT = 1
_KEPT = 2

TOLD_FROM = 50_000
"""A replay of fewer entries takes a second or two, and nobody is told."""

TOLD_EVERY = 100_000


class Folded(Struct, frozen=True, kw_only=True):
    """A log, folded: all that a controller starts from.

    ``since`` is the sequence of the snapshot it was folded from, 0 where all was replayed.
    """

    kernel: Kernel
    ledger: Ledger
    recovered: Recovered
    since: int = 0


class Snapshots:
    """The snapshots of one log, in a folder.

    Args:
        folder: where they lie.
        fingerprint: of whoever makes and uses them: version and settings.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._folder = folder
        self._fingerprint = fingerprint

    def newest(self) -> Folded | None:
        """Return the newest usable snapshot."""
        for path in sorted(self._folder.glob("[0-9]*.json"), reverse=True):
            try:
                return self._read(path)
            except (OSError, ValueError, TypeError, KeyError, AttributeError, LookupError) as error:
                _log.warning("the snapshot %s is of no use (%s): going on without it", path, error)
        return None

    def _read(self, path: Path) -> Folded | None:
        data = msgspec.json.decode(path.read_bytes())
        if (data["format"], data["fingerprint"]) != (FORMAT, self._fingerprint):
            return None
        state, policy, ledger, recovered = from_node(data["graph"])
        return Folded(kernel=Kernel(_state_of(state), policy), ledger=ledger, recovered=recovered)

    def write(self, folded: Folded) -> Path:
        """Write a snapshot, atomically, and drop the oldest.

        Raises:
            GraphError: if the policy holds something that cannot be written.
            OSError: if the disk is full.
        """
        graph = to_node(
            [
                _parts_of(folded.kernel.state),
                folded.kernel.policy,
                folded.ledger,
                folded.recovered,
            ]
        )
        data = msgspec.json.encode(
            {"format": FORMAT, "fingerprint": self._fingerprint, "graph": graph}
        )
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{folded.recovered.sequence:015d}.json"
        aside = path.with_suffix(".aside")
        with aside.open("wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
        for old in sorted(self._folder.glob("[0-9]*.json"))[:-_KEPT]:
            old.unlink(missing_ok=True)
        return path


def _parts_of(state: ClusterState) -> dict[str, Any]:
    """Return a picture's own parts: its views of itself are made again."""
    return {
        "jobs": state._jobs,  # noqa: SLF001 -- the shell's half of ClusterState's snapshot
        "pool_of": state._pool_of,  # noqa: SLF001 -- same
        "resizing": state._resizing,  # noqa: SLF001 -- same
        "pools": state._pools,  # noqa: SLF001 -- same
        "ended": state.ended,
        "view": (state.view.now, state.view.total_gpus, state.view.free_gpus),
        "slots": sorted(set(ClusterState(0).__dict__)),
    }


def _state_of(parts: dict[str, Any]) -> ClusterState:
    state = ClusterState()
    if sorted(set(state.__dict__)) != parts["slots"]:
        message = "the picture of the cluster has other parts now"
        raise GraphError(message)
    state._jobs.update(parts["jobs"])  # noqa: SLF001 -- as above
    state._pool_of.update(parts["pool_of"])  # noqa: SLF001 -- as above
    state._resizing.update(parts["resizing"])  # noqa: SLF001 -- as above
    state._pools.clear()  # noqa: SLF001 -- as above
    state._pools.update(parts["pools"])  # noqa: SLF001 -- as above
    state.show_pools()
    state.ended.update(parts["ended"])
    for name, value in zip(("now", "total_gpus", "free_gpus"), parts["view"], strict=True):
        force_setattr(state.view, name, value)
    return state


def fold(store: EventStore, policy: Policy, snapshots: Snapshots | None) -> Folded:
    """Fold a log from its newest usable snapshot, or from the beginning.

    Args:
        store: the log.
        policy: as it is before the first event; a snapshot brings its own.
        snapshots: where to look; None to replay everything.

    Raises:
        IllegalEventError: if the log tells an impossible story.
    """
    start = snapshots.newest() if snapshots is not None else None
    if start is not None and start.recovered.sequence > store.last_sequence():
        _log.warning("the newest snapshot is ahead of the log (restored from a backup?): ignored")
        start = None
    if start is None:
        start = Folded(
            kernel=Kernel(ClusterState(), policy),
            ledger=Ledger(),
            recovered=Recovered(sequence=0, time=float("-inf"), changed=0, timers=[]),
        )
    since = start.recovered.sequence
    entries = _telling(store.read(after=since), since=since, last=store.last_sequence())
    recovered = recover(entries, start.kernel, start.ledger, start.recovered)
    return Folded(kernel=start.kernel, ledger=start.ledger, recovered=recovered, since=since)


def _telling(entries: Iterator[Entry], *, since: int, last: int) -> Iterator[Entry]:
    """Pass entries on; where there are many, say why, and how far it has got."""
    if last - since < TOLD_FROM:
        yield from entries
        return
    why = "" if since else " (no snapshot by these settings and this version of evalstop)"
    _log.warning("replaying %d entries of the log%s; no report is lost", last - since, why)
    for number, entry in enumerate(entries, start=1):
        if number % TOLD_EVERY == 0:
            _log.warning("replayed %d of %d entries", number, last - since)
        yield entry
