"""The log in PostgreSQL: for controllers on more than one host, and for those who have one.

A commit means that the server has it on disk, unless the server was set otherwise. A connection
that is lost is opened again, and what had been asked is asked once more; it may have been written
the first time, which is why writing the same entries again is no error.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from evalstop.core.errors import StoreConflictError, StoreError
from evalstop.store.rows import entry_of, jobs_of, migrations, newer_schema, row_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from evalstop.ports import Entry

__all__ = ["PostgresLease", "PostgresStore"]

_T = TypeVar("_T")

_READ_ROWS = 10_000
_CONNECT_S = 5
_MIGRATION_LOCK = 0x45564C53
_LEASE_LOCK = 0x45564C54
_TRY_EVERY_S = 0.2


def _connect(address: str) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(
        address,
        autocommit=True,
        connect_timeout=_CONNECT_S,
        keepalives_idle=5,
        keepalives_interval=2,
        keepalives_count=2,
        application_name="evalstop",
    )


def _is_sound(connection: psycopg.Connection[tuple[Any, ...]], error: psycopg.Error) -> bool:
    """Whether a connection may be used again after an error.

    One whose server was killed in the middle of a batch says that it is neither broken nor closed,
    and refuses whatever comes ("not allowed in pipeline mode"). To connect anew costs next to
    nothing.
    """
    if connection.broken or connection.closed:
        return False
    if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        return False
    return connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


class PostgresStore:
    """`evalstop.ports.EventStore` and `SnapshotStore` in the database at ``address``.

    Raises:
        SchemaError: if a newer evalstop wrote it.
        StoreError: if it cannot be reached.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._local = threading.local()
        self._writing = threading.Lock()
        try:
            with self._transaction() as connection:
                self._migrate(connection)
        except StoreError:
            self.close()
            raise

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """Yield this thread's connection; drop it when it breaks."""
        connection = getattr(self._local, "connection", None)
        try:
            if connection is None or connection.closed:
                connection = self._local.connection = _connect(self._address)
            yield connection
        except psycopg.Error as error:
            if connection is not None and not _is_sound(connection, error):
                connection.close()
                self._local.connection = None
            message = f"PostgreSQL: {str(error).strip()}; is the server up, and its disk not full?"
            raise StoreError(message) from error

    @contextmanager
    def _transaction(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        with self._writing, self._connection() as connection, connection.transaction():
            yield connection

    def _lasting(self, act: Callable[[], _T]) -> _T:
        """Act, and once more where the connection turns out to be to a server that is gone.

        All that is done here may be done twice: rows that are there already are no error.
        """
        known = getattr(self._local, "connection", None)
        try:
            return act()
        except StoreError:
            if known is None or self._local.connection is not None:
                raise  # a new connection failed as well, or this one is sound
            return act()

    def _migrate(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        scripts = migrations("postgres")
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
        connection.execute("CREATE TABLE IF NOT EXISTS evalstop_schema (version INT NOT NULL)")
        found = connection.execute("SELECT max(version) FROM evalstop_schema").fetchone()
        version = found[0] if found is not None and found[0] is not None else 0
        if version > len(scripts):
            where = "the PostgreSQL database"
            raise newer_schema(where, version, len(scripts))
        for number, statements in enumerate(scripts[version:], start=version + 1):
            for statement in statements:
                connection.execute(statement.encode())
            connection.execute("INSERT INTO evalstop_schema VALUES (%s)", (number,))

    def append(self, entries: Sequence[Entry]) -> None:
        """Write all of them or none, durably."""
        if not entries:
            return
        rows = [row_of(entry) for entry in entries]
        concerns = [(job, entry.sequence) for entry in entries for job in jobs_of(entry)]
        self._lasting(lambda: self._append(rows, concerns))

    def _append(
        self, rows: Sequence[tuple[int, float, bytes, bytes]], concerns: Sequence[tuple[str, int]]
    ) -> None:
        with self._transaction() as connection:
            found = connection.execute("SELECT coalesce(max(sequence), 0) FROM log").fetchone()
            last = 0 if found is None else int(found[0])
            if [row[0] for row in rows] != list(range(last + 1, last + 1 + len(rows))):
                if self._holds(connection, rows):
                    return
                raise _conflict(rows[0][0], last)
            try:
                with connection.transaction(), connection.cursor() as cursor:
                    cursor.executemany("INSERT INTO log VALUES (%s, %s, %s, %s)", rows)
                    cursor.executemany("INSERT INTO concerns VALUES (%s, %s)", concerns)
            except psycopg.errors.UniqueViolation as error:
                raise _conflict(rows[0][0], last) from error

    def _holds(
        self,
        connection: psycopg.Connection[tuple[Any, ...]],
        rows: Sequence[tuple[int, float, bytes, bytes]],
    ) -> bool:
        """Whether these very rows are there: a write whose answer was lost."""
        found = connection.execute(
            "SELECT sequence, time, event, actions FROM log "
            "WHERE sequence BETWEEN %s AND %s ORDER BY sequence",
            (rows[0][0], rows[-1][0]),
        ).fetchall()
        return [(row[0], row[1], bytes(row[2]), bytes(row[3])) for row in found] == list(rows)

    def read(self, after: int = 0) -> Iterator[Entry]:
        """Yield what follows ``after``, block by block."""
        while True:
            rows = self._all(
                "SELECT sequence, event, actions FROM log WHERE sequence > %s "
                "ORDER BY sequence LIMIT %s",
                (after, _READ_ROWS),
            )
            for sequence, event, actions in rows:
                yield entry_of(sequence, bytes(event), bytes(actions))
            if len(rows) < _READ_ROWS:
                return
            after = rows[-1][0]

    def read_job(self, job: str) -> Iterator[Entry]:
        """Yield what concerns one job."""
        rows = self._all(
            "SELECT sequence, event, actions FROM log JOIN concerns USING (sequence) "
            "WHERE job = %s ORDER BY sequence",
            (job,),
        )
        for sequence, event, actions in rows:
            yield entry_of(sequence, bytes(event), bytes(actions))

    def _all(self, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        def ask() -> list[tuple[Any, ...]]:
            with self._connection() as connection:
                return connection.execute(query.encode(), values).fetchall()

        return self._lasting(ask)

    def _do(self, command: str, values: tuple[Any, ...]) -> None:
        def act() -> None:
            with self._transaction() as connection:
                connection.execute(command.encode(), values)

        self._lasting(act)

    def last_sequence(self) -> int:
        """Return the highest sequence written."""
        return int(self._all("SELECT coalesce(max(sequence), 0) FROM log", ())[0][0])

    def put(self, kind: str, key: str, data: bytes) -> None:
        """Write one document, durably."""
        self._do(
            "INSERT INTO documents VALUES (%s, %s, %s) "
            "ON CONFLICT (kind, key) DO UPDATE SET data = EXCLUDED.data",
            (kind, key, data),
        )

    def get(self, kind: str, key: str) -> bytes | None:
        """Return one document."""
        rows = self._all("SELECT data FROM documents WHERE kind = %s AND key = %s", (kind, key))
        return bytes(rows[0][0]) if rows else None

    def delete(self, kind: str, key: str) -> None:
        """Remove one document."""
        self._do("DELETE FROM documents WHERE kind = %s AND key = %s", (kind, key))

    def documents(self, kind: str) -> Iterator[tuple[str, bytes]]:
        """Yield the documents of a kind, by key."""
        query = 'SELECT key, data FROM documents WHERE kind = %s ORDER BY key COLLATE "C"'
        for key, data in self._all(query, (kind,)):
            yield str(key), bytes(data)

    def close(self) -> None:
        """Close this thread's connection."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None


def _conflict(sequence: int, last: int) -> StoreConflictError:
    return StoreConflictError(
        f"entry {sequence} does not follow {last} in PostgreSQL: another controller writes this log"
    )


class PostgresLease:
    """`evalstop.ports.Lease` by an advisory lock: it ends with its holder's connection.

    A server that restarts drops it. Should two controllers be active for that reason, the first
    one to write makes the other's next write a conflict, and that one ends.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def acquire(self, wait_s: float) -> bool:
        """Wait up to ``wait_s`` seconds for the lock.

        Raises:
            StoreError: if the server cannot be reached.
        """
        if self.held():
            return True
        try:
            connection = _connect(self._address)
            deadline = time.monotonic() + wait_s
            while not self._try(connection):
                if time.monotonic() >= deadline:
                    connection.close()
                    return False
                time.sleep(_TRY_EVERY_S)
        except psycopg.Error as error:
            message = f"PostgreSQL: {str(error).strip()}; is the server up?"
            raise StoreError(message) from error
        self._connection = connection
        return True

    def _try(self, connection: psycopg.Connection[tuple[Any, ...]]) -> bool:
        found = connection.execute("SELECT pg_try_advisory_lock(%s)", (_LEASE_LOCK,)).fetchone()
        return bool(found and found[0])

    def held(self) -> bool:
        """Return whether it is still held: its connection lives."""
        if self._connection is None or self._connection.closed:
            return False
        try:
            self._connection.execute("SELECT 1")
        except psycopg.Error:
            self._connection.close()
            self._connection = None
            return False
        return True

    def release(self) -> None:
        """Give it up."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
