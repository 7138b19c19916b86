"""The log in one SQLite file: the embedded default.

Write-ahead logging lets readers go on while the controller writes; ``synchronous=FULL`` makes a
commit mean that the disk has it. Every thread reads through a connection of its own.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from evalstop.core.errors import SchemaError, StoreConflictError, StoreError
from evalstop.store.rows import entry_of, jobs_of, migrations, newer_schema, row_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from evalstop.ports import Entry

__all__ = ["SqliteStore"]

_APPLICATION_ID = 0x45564C53  # "EVLS", written into the file's header
_BUSY_TIMEOUT_MS = 10_000
_READ_ROWS = 10_000


class SqliteStore:
    """`evalstop.ports.EventStore` and `SnapshotStore` in the file ``path``.

    Raises:
        SchemaError: if the file is not ours, or a newer evalstop wrote it.
        StoreError: if it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._local = threading.local()
        self._writing = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        with _told(path):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # tenants' data: ours alone
            self._migrate()

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = sqlite3.connect(self._path, isolation_level=None)
            connection.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            self._local.connection = connection
        return connection

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._writing, _told(self._path):
            connection = self._connection()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _migrate(self) -> None:
        scripts = migrations("sqlite")
        with self._transaction() as connection:
            version = self._version(connection, known=len(scripts))
            for statements in scripts[version:]:
                for statement in statements:
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id={_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={len(scripts)}")

    def _version(self, connection: sqlite3.Connection, *, known: int) -> int:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        owner = connection.execute("PRAGMA application_id").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables and owner != _APPLICATION_ID:
            message = f"{self._path} is an SQLite file of another program; name another file"
            raise SchemaError(message)
        if version > known:
            raise newer_schema(str(self._path), version, known)
        return version

    def append(self, entries: Sequence[Entry]) -> None:
        """Write all of them or none, and wait for the disk."""
        if not entries:
            return
        rows = [row_of(entry) for entry in entries]
        concerns = [(job, entry.sequence) for entry in entries for job in jobs_of(entry)]
        with self._transaction() as connection:
            last = connection.execute("SELECT max(sequence) FROM log").fetchone()[0] or 0
            if [row[0] for row in rows] != list(range(last + 1, last + 1 + len(rows))):
                if self._holds(connection, rows):
                    return
                message = (
                    f"entry {rows[0][0]} does not follow {last} in {self._path}: "
                    "another controller writes this log"
                )
                raise StoreConflictError(message)
            connection.executemany("INSERT INTO log VALUES (?, ?, ?, ?)", rows)
            connection.executemany("INSERT INTO concerns VALUES (?, ?)", concerns)

    def _holds(
        self, connection: sqlite3.Connection, rows: Sequence[tuple[int, float, bytes, bytes]]
    ) -> bool:
        """Whether these very rows are there: a write whose answer was lost."""
        found = connection.execute(
            "SELECT sequence, time, event, actions FROM log "
            "WHERE sequence BETWEEN ? AND ? ORDER BY sequence",
            (rows[0][0], rows[-1][0]),
        ).fetchall()
        return found == list(rows)

    def read(self, after: int = 0) -> Iterator[Entry]:
        """Yield what follows ``after``; blocks of rows, so that no reader holds the log up."""
        while True:
            with _told(self._path):
                rows = (
                    self._connection()
                    .execute(
                        "SELECT sequence, event, actions FROM log WHERE sequence > ? "
                        "ORDER BY sequence LIMIT ?",
                        (after, _READ_ROWS),
                    )
                    .fetchall()
                )
            for row in rows:
                yield entry_of(*row)
            if len(rows) < _READ_ROWS:
                return
            after = rows[-1][0]

    def read_job(self, job: str) -> Iterator[Entry]:
        """Yield what concerns one job."""
        with _told(self._path):
            rows = (
                self._connection()
                .execute(
                    "SELECT sequence, event, actions FROM log JOIN concerns USING (sequence) "
                    "WHERE job = ? ORDER BY sequence",
                    (job,),
                )
                .fetchall()
            )
        for row in rows:
            yield entry_of(*row)

    def last_sequence(self) -> int:
        """Return the highest sequence written."""
        with _told(self._path):
            found = self._connection().execute("SELECT max(sequence) FROM log").fetchone()[0]
        return int(found or 0)

    def put(self, kind: str, key: str, data: bytes) -> None:
        """Write one document, durably."""
        with self._transaction() as connection:
            connection.execute("REPLACE INTO documents VALUES (?, ?, ?)", (kind, key, data))

    def get(self, kind: str, key: str) -> bytes | None:
        """Return one document."""
        with _told(self._path):
            row = (
                self._connection()
                .execute("SELECT data FROM documents WHERE kind = ? AND key = ?", (kind, key))
                .fetchone()
            )
        return None if row is None else bytes(row[0])

    def delete(self, kind: str, key: str) -> None:
        """Remove one document."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM documents WHERE kind = ? AND key = ?", (kind, key))

    def documents(self, kind: str) -> Iterator[tuple[str, bytes]]:
        """Yield the documents of a kind, by key."""
        with _told(self._path):
            rows = (
                self._connection()
                .execute("SELECT key, data FROM documents WHERE kind = ? ORDER BY key", (kind,))
                .fetchall()
            )
        for key, data in rows:
            yield str(key), bytes(data)

    def close(self) -> None:
        """Close this thread's connection."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours."""
    try:
        yield
    except sqlite3.Error as error:
        message = f"{path}: {error}; is the disk full, or the folder not writable?"
        raise StoreError(message) from error
