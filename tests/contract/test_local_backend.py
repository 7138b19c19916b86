from __future__ import annotations

import pytest

from evalstop.backends.local import LocalBackend
from evalstop.testing import BackendContract


class TestLocalBackend(BackendContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder = tmp_path
        self.made = 0

    def backend(self):
        self.made += 1
        return LocalBackend(self.folder / str(self.made), ["0", "1"])

    def reopened(self, backend):
        return LocalBackend(backend._folder, ["0", "1"])
