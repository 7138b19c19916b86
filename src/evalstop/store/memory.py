"""A log that lives as long as its process: for tests, and to try evalstop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalstop.core.errors import StoreConflictError
from evalstop.store.rows import entry_of, jobs_of, row_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from evalstop.ports import Entry

__all__ = ["MemoryStore"]


class MemoryStore:
    """`evalstop.ports.EventStore` and `SnapshotStore` in lists; keeps the stored form."""

    def __init__(self) -> None:
        self._rows: list[tuple[bytes, bytes]] = []
        self._concerns: dict[str, list[int]] = {}
        self._documents: dict[tuple[str, str], bytes] = {}

    def append(self, entries: Sequence[Entry]) -> None:
        """Add all of them or none."""
        rows = [row_of(entry) for entry in entries]
        known = [self._rows[row[0] - 1] for row in rows if row[0] <= len(self._rows)]
        if rows and known == [(event, actions) for _, _, event, actions in rows]:
            return
        if [row[0] for row in rows] != [len(self._rows) + 1 + n for n in range(len(rows))]:
            message = f"entries {[row[0] for row in rows]} do not follow {len(self._rows)}"
            raise StoreConflictError(message)
        self._rows += [(event, actions) for _, _, event, actions in rows]
        for entry in entries:
            for job in jobs_of(entry):
                self._concerns.setdefault(job, []).append(entry.sequence)

    def read(self, after: int = 0) -> Iterator[Entry]:
        """Yield what follows ``after``."""
        for number, (event, actions) in enumerate(self._rows[after:], start=after + 1):
            yield entry_of(number, event, actions)

    def read_job(self, job: str) -> Iterator[Entry]:
        """Yield what concerns one job."""
        for sequence in self._concerns.get(job, []):
            yield entry_of(sequence, *self._rows[sequence - 1])

    def last_sequence(self) -> int:
        """Return how many entries there are."""
        return len(self._rows)

    def put(self, kind: str, key: str, data: bytes) -> None:
        """Write one document."""
        self._documents[kind, key] = data

    def get(self, kind: str, key: str) -> bytes | None:
        """Return one document."""
        return self._documents.get((kind, key))

    def delete(self, kind: str, key: str) -> None:
        """Remove one document."""
        self._documents.pop((kind, key), None)

    def documents(self, kind: str) -> Iterator[tuple[str, bytes]]:
        """Yield the documents of a kind, by key."""
        for (of_kind, key), data in sorted(self._documents.items()):
            if of_kind == kind:
                yield key, data
