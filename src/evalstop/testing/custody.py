"""What every checkpoint store promises."""

from __future__ import annotations

import json
import shutil
import struct
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from evalstop.core.errors import TornCheckpointError

if TYPE_CHECKING:
    from evalstop.ports import CheckpointStore

__all__ = ["CustodyContract", "write_checkpoint", "write_safetensors"]


def write_safetensors(path: Path, *, values: int = 4) -> None:
    """Write a small whole safetensors file: one tensor of ``values`` 32-bit floats."""
    size = 4 * values
    tensor = {"dtype": "F32", "shape": [values], "data_offsets": [0, size]}
    header = json.dumps({"weight": tensor}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\x01" * size)


def write_checkpoint(folder: Path, step: int, *, values: int = 4) -> Path:
    """Write a whole checkpoint as trainers do: weights, optimizer state, trainer state."""
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    write_safetensors(path / "model.safetensors", values=values)
    with zipfile.ZipFile(path / "optimizer.pt", "w") as archive:
        archive.writestr("archive/data.pkl", bytes(range(64)))
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


class CustodyContract:
    """Subclass it, say how to make the store and where a trainer may write.

    Where checkpoints do not lie on the file system, say too how one comes there, and goes.
    """

    def custody(self) -> CheckpointStore:
        """Return a store; the second one has what the first one kept."""
        raise NotImplementedError

    def folder(self) -> Path:
        """Return an empty folder for checkpoints."""
        raise NotImplementedError

    def source(self, path: Path) -> str:
        """Return the name of a trainer's checkpoint for the store; again, after a change."""
        return str(path)

    def remove(self, address: str) -> None:
        """Remove a folder or a file, the trainer's or one in custody."""
        path = Path(address)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()

    def size(self, address: str) -> int:
        """Return the size of one file, the trainer's or one in custody."""
        return Path(address).stat().st_size

    def test_a_pin_outlives_the_trainers_rotation(self) -> None:
        """The checkpoint is whole after its source is gone (R05)."""
        store, source = self.custody(), self.source(write_checkpoint(self.folder(), 10))
        pin = store.pin("a", 10, source)
        self.remove(source)
        assert store.verify(pin) == pin
        assert self.size(f"{pin.path}/model.safetensors") > 0

    def test_pinning_twice_is_once(self) -> None:
        """The same checkpoint has one pin."""
        store, source = self.custody(), self.source(write_checkpoint(self.folder(), 10))
        assert store.pin("a", 10, source) == store.pin("a", 10, source)
        assert len(list(store.pins("a"))) == 1

    def test_a_store_that_is_opened_again_has_its_pins(self) -> None:
        """What was kept before a restart is kept after it, and pinning it again is nothing new."""
        source = self.source(write_checkpoint(self.folder(), 10))
        pin = self.custody().pin("a", 10, source)
        again = self.custody()
        assert list(again.pins("a")) == [pin]
        assert again.verify(pin) == pin
        assert again.pin("a", 10, source) == pin

    def test_torn_checkpoints_are_refused(self) -> None:
        """Nothing of a torn one is left in custody (R06)."""
        store, path = self.custody(), write_checkpoint(self.folder(), 10)
        weights = path / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
        with pytest.raises(TornCheckpointError):
            store.pin("a", 10, self.source(path))
        assert list(store.pins("a")) == []

    def test_what_is_not_there_is_torn(self) -> None:
        """A checkpoint that was rotated away before anybody looked is none."""
        store, path = self.custody(), write_checkpoint(self.folder(), 10)
        source = self.source(path)
        self.remove(source)
        with pytest.raises(TornCheckpointError):
            store.pin("a", 10, source)

    def test_pins_are_listed_by_job_and_step(self) -> None:
        """One job does not see another's."""
        store, folder = self.custody(), self.folder()
        for step in (20, 100, 3):
            store.pin("a", step, self.source(write_checkpoint(folder, step)))
        store.pin("b", 7, self.source(write_checkpoint(folder, 7)))
        assert [pin.step for pin in store.pins("a")] == [3, 20, 100]
        assert [pin.step for pin in store.pins("b")] == [7]
        assert list(store.pins("nobody")) == []

    def test_an_unpinned_checkpoint_is_gone_and_the_others_stay(self) -> None:
        """Unpinning twice is no error."""
        store, folder = self.custody(), self.folder()
        first = store.pin("a", 1, self.source(write_checkpoint(folder, 1)))
        second = store.pin("a", 2, self.source(write_checkpoint(folder, 2)))
        store.unpin(first)
        store.unpin(first)
        assert list(store.pins("a")) == [second]
        with pytest.raises(TornCheckpointError):
            store.verify(first)
        assert store.verify(second) == second
        assert list(self.custody().pins("a")) == [second]

    def test_damage_in_custody_is_found(self) -> None:
        """Verify reads again."""
        store, source = self.custody(), self.source(write_checkpoint(self.folder(), 10))
        pin = store.pin("a", 10, source)
        self.remove(f"{pin.path}/model.safetensors")
        with pytest.raises(TornCheckpointError):
            store.verify(pin)

    def test_weights_that_were_written_anew_are_another_checkpoint(self) -> None:
        """A resumed run that goes through a step again takes nobody's place (R03)."""
        store, path = self.custody(), write_checkpoint(self.folder(), 5)
        first = store.pin("a", 5, self.source(path))
        shutil.rmtree(path)
        write_checkpoint(self.folder(), 5, values=9)
        second = store.pin("a", 5, self.source(path))
        assert [pin.attempt for pin in store.pins("a")] == [0, 1]
        assert [store.verify(pin) for pin in (first, second)] == [first, second]

    def test_a_checkpoint_that_grew_is_pinned_again_and_one_that_shrank_is_not(self) -> None:
        """A listing, or a look, may have come before the last file."""
        store, path = self.custody(), write_checkpoint(self.folder(), 5)
        state = path / "trainer_state.json"
        content = state.read_bytes()
        state.unlink()
        first = store.pin("a", 5, self.source(path))
        state.write_bytes(content)
        second = store.pin("a", 5, self.source(path))
        assert second.path != first.path
        assert list(store.pins("a")) == [second]
        source = self.source(path)
        self.remove(f"{source}/optimizer.pt")  # rotation has begun
        assert store.pin("a", 5, source) == second

    def test_one_file_is_a_checkpoint_too(self) -> None:
        """Some trainers write one, not a folder."""
        self.folder().mkdir(parents=True, exist_ok=True)
        path = self.folder() / "policy-0040.safetensors"
        write_safetensors(path)
        store = self.custody()
        pin = store.pin("a", 40, self.source(path))
        assert self.size(pin.path) == path.stat().st_size
        assert store.verify(pin) == pin
        store.unpin(pin)
        assert list(store.pins("a")) == []

    def test_any_names_and_empty_files_are_kept(self) -> None:
        """Folders in folders, files without a byte, names in any script."""
        path = write_checkpoint(self.folder(), 5)
        (path / "état" / "深い").mkdir(parents=True)
        for name in ("leer.txt", "état/深い/ファイル 1.bin.txt", "état/[a]{b}*+=&.txt"):
            (path / name).write_bytes(b"" if name.startswith("leer") else b"x")
        store = self.custody()
        pin = store.pin("job@host:1+2", 5, self.source(path))
        assert list(self.custody().pins("job@host:1+2")) == [pin]
        assert self.size(f"{pin.path}/leer.txt") == 0
        assert self.size(f"{pin.path}/état/深い/ファイル 1.bin.txt") == 1
        assert self.size(f"{pin.path}/état/[a]{{b}}*+=&.txt") == 1
        store.unpin(pin)
        with pytest.raises(TornCheckpointError):
            store.verify(pin)
