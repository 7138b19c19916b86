"""The log in a real PostgreSQL, started here."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import evalstop
from evalstop.core.errors import SchemaError, StoreConflictError, StoreError
from evalstop.store.postgres import PostgresLease, PostgresStore
from evalstop.testing import StoreContract
from evalstop.testing.store import story

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from postgres_server import PostgresServer


@pytest.fixture(scope="module")
def server():
    with PostgresServer.temporary() as server:
        yield server


@pytest.fixture
def address(server, request):
    name = f"db{abs(hash(request.node.name)) % 10**9}"
    server.run("createdb", "-h", server.folder, "-U", "postgres", name)
    return server.address(name)


class TestPostgresStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _address(self, address):
        self.address = address
        self.opened = []
        yield
        for store in self.opened:
            store.close()

    def store(self):
        self.opened.append(PostgresStore(self.address))
        return self.opened[-1]

    def reopened(self, store):
        store.close()
        return self.store()


def test_a_newer_schema_is_refused_with_what_to_do(address):
    store = PostgresStore(address)
    with store._transaction() as connection:
        connection.execute("INSERT INTO evalstop_schema VALUES (99)")
    store.close()
    with pytest.raises(SchemaError, match=r"schema version 99.*install that version or a later"):
        PostgresStore(address)


def test_two_writers_at_once_leave_one_story(address):
    first, second = PostgresStore(address), PostgresStore(address)
    lines = story()
    first.append(lines[:4])
    with pytest.raises(StoreConflictError):
        second.append([lines[0], lines[2]])
    second.append(lines[4:6])
    with pytest.raises(StoreConflictError):
        first.append(lines[4:5] + lines[6:7])
    assert [entry.sequence for entry in first.read()] == [1, 2, 3, 4, 5, 6]
    first.close()
    second.close()


def test_a_server_that_was_started_again_is_spoken_to_at_once(server, address):
    store = PostgresStore(address)
    lines = story()
    for act in (
        lambda: store.append(lines[:2]),
        lambda: store.append(lines[2:4]),
        lambda: store.put("kind", "key", b"data"),
        store.last_sequence,
        lambda: list(store.read()),
        lambda: store.delete("kind", "key"),
    ):
        server.kill()
        server.start()
        act()
    assert list(store.read()) == lines[:4]
    store.close()


def test_the_server_may_be_killed_and_nothing_that_was_answered_is_lost(server, address):
    store = PostgresStore(address)
    lines = story()
    store.append(lines[:4])
    server.kill()
    with pytest.raises(StoreError, match="is the server up"):
        store.append(lines[4:])
    server.start()
    deadline = time.monotonic() + 180
    while True:
        try:
            store.append(lines[4:])
            break
        except StoreError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert [entry.sequence for entry in store.read()] == list(range(1, 11))
    store.close()


def test_a_connection_that_a_kill_left_in_the_middle_of_a_batch_is_not_used_again(address):
    store = PostgresStore(address)
    store.append(story()[:2])
    store._local.connection.pgconn.enter_pipeline_mode()
    store.append(story()[2:4])
    assert list(store.read()) == story()[:4]
    store.close()


def test_a_lease_passes_on_within_moments_of_a_kill(address):
    script = (
        "import sys, time; from evalstop.store.postgres import PostgresLease\n"
        "lease = PostgresLease(sys.argv[1]); print(lease.acquire(60), flush=True)\n"
        "time.sleep(600)"
    )
    environment = dict(os.environ) | {"PYTHONPATH": str(Path(evalstop.__file__).parents[1])}
    holder = subprocess.Popen(
        [sys.executable, "-c", script, address], stdout=subprocess.PIPE, env=environment
    )
    with holder:
        assert holder.stdout.readline() == b"True\n"
        lease = PostgresLease(address)
        assert not lease.acquire(0.3)
        assert not lease.held()
        holder.kill()
        assert lease.acquire(180.0)
        assert lease.held()
        lease.release()
        assert not lease.held()
