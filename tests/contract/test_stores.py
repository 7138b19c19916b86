from __future__ import annotations

import pytest

from evalstop.store.memory import MemoryStore
from evalstop.store.sqlite import SqliteStore
from evalstop.testing import StoreContract


class TestMemoryStore(StoreContract):
    def store(self):
        return MemoryStore()

    def reopened(self, store):
        return store


class TestSqliteStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.path = tmp_path / "log.sqlite"

    def store(self):
        return SqliteStore(self.path)

    def reopened(self, store):
        store.close()
        return SqliteStore(self.path)
