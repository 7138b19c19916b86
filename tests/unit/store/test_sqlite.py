from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys

import pytest

from evalstop.core.errors import SchemaError, StoreError
from evalstop.store.lease import FileLease
from evalstop.store.sqlite import SqliteStore
from evalstop.testing.store import story


def test_a_newer_schema_is_refused_with_what_to_do(tmp_path):
    path = tmp_path / "log.sqlite"
    SqliteStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(SchemaError, match=r"schema version 99.*install that version or a later"):
        SqliteStore(path)


def test_a_fact_of_a_newer_version_is_refused_not_skipped(tmp_path):
    path = tmp_path / "log.sqlite"
    store = SqliteStore(path)
    store.append(story()[:1])
    event = b'{"v":1,"type":"SomethingNew","time":1.0}'
    store._connection().execute("INSERT INTO log VALUES (2, 1.0, ?, ?)", (event, b"[]"))
    with pytest.raises(SchemaError, match="SomethingNew"):
        list(store.read())


def test_another_programs_file_is_left_alone(tmp_path):
    path = tmp_path / "theirs.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE log (x)")
    connection.close()
    with pytest.raises(SchemaError, match="another program"):
        SqliteStore(path)


def test_a_file_that_is_no_database_is_a_store_error(tmp_path):
    path = tmp_path / "text.sqlite"
    path.write_text("hello " * 200)
    with pytest.raises(StoreError, match="not a database"):
        SqliteStore(path)


def test_the_file_is_for_its_owner_alone(tmp_path):
    SqliteStore(tmp_path / "log.sqlite")
    assert stat.S_IMODE((tmp_path / "log.sqlite").stat().st_mode) == 0o600


def test_a_full_disk_is_told_and_leaves_the_log_as_it_was(tmp_path):
    store = SqliteStore(tmp_path / "log.sqlite")
    store.append(story()[:2])
    pages = store._connection().execute("PRAGMA page_count").fetchone()[0]
    store._connection().execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(StoreError, match="full"):
        store.put("launch", "big", b"x" * 100_000)
    with pytest.raises(StoreError, match="full"):
        store.append([story()[2], *_wide(story()[3:])])
    assert [entry.sequence for entry in store.read()] == [1, 2]
    store._connection().execute("PRAGMA max_page_count=100000")
    store.append(story()[2:])
    assert store.last_sequence() == 10


def _wide(entries):
    import msgspec

    note = "x" * 50_000
    last = entries[-1]
    event = msgspec.structs.replace(last.event, note=note)
    return [*entries[:-1], msgspec.structs.replace(last, event=event)]


def test_a_lease_passes_on_within_moments_of_a_kill(tmp_path):
    path = tmp_path / "lease"
    script = (
        "import sys, time; from pathlib import Path; from evalstop.store.lease import FileLease\n"
        "lease = FileLease(Path(sys.argv[1])); print(lease.acquire(60), flush=True)\n"
        "time.sleep(600)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, env=_environment()
    )
    with holder:
        assert holder.stdout.readline() == b"True\n"
        lease = FileLease(path)
        assert not lease.acquire(0.2)
        assert not lease.held()
        holder.kill()
        assert lease.acquire(180.0)
        assert not FileLease(path).acquire(0.0)
        lease.release()
        assert FileLease(path).acquire(0.0)


def _environment():
    import os
    from pathlib import Path

    import evalstop

    return dict(os.environ) | {"PYTHONPATH": str(Path(evalstop.__file__).parents[1])}
