from __future__ import annotations

import errno
from pathlib import Path

import pytest

from evalstop.custody import FileCustody
from evalstop.testing import CustodyContract
from evalstop.testing.custody import write_checkpoint
from evalstop.testing.object_stores import ObjectContract


class FileContract(CustodyContract):
    @pytest.fixture(autouse=True)
    def _root(self, tmp_path):
        self.root = tmp_path

    def folder(self):
        return self.root / "out"


class TestLinks(FileContract):
    def custody(self):
        return FileCustody(self.root / "custody")

    def test_links_cost_no_space(self):
        source = write_checkpoint(self.folder(), 1)
        pin = self.custody().pin("a", 1, str(source))
        linked = Path(pin.path) / "model.safetensors"
        assert linked.stat().st_ino == (source / "model.safetensors").stat().st_ino


class TestCopies(FileContract):
    def custody(self):
        return FileCustody(self.root / "custody", copy=True)

    def test_a_trainer_that_overwrites_in_place_does_no_harm(self):
        store = self.custody()
        source = write_checkpoint(self.folder(), 1)
        pin = store.pin("a", 1, str(source))
        (source / "model.safetensors").write_bytes(b"")
        assert store.verify(pin) == pin


class TestAcrossFileSystems(FileContract):
    @pytest.fixture(autouse=True)
    def _no_links(self, monkeypatch):
        def refuse(_path, _target):
            raise OSError(errno.EXDEV, "Invalid cross-device link")

        monkeypatch.setattr(Path, "hardlink_to", refuse)

    def custody(self):
        return FileCustody(self.root / "custody")


class TestObjectsInMemory(ObjectContract):
    @pytest.fixture(autouse=True)
    def _base(self, request, tmp_path):
        self.base, self.root = f"memory://{request.node.name}", tmp_path


class TestObjectsInFiles(ObjectContract):
    @pytest.fixture(autouse=True)
    def _base(self, tmp_path):
        self.base, self.root = f"file://{tmp_path}/objects", tmp_path
