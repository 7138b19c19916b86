"""What every checkpoint store promises."""

from __future__ import annotations

import json
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
    """Subclass it, say how to make the store and where a trainer may write."""

    def custody(self) -> CheckpointStore:
        """Return an empty store."""
        raise NotImplementedError

    def folder(self) -> Path:
        """Return an empty folder for checkpoints."""
        raise NotImplementedError

    def test_a_pin_outlives_the_trainers_rotation(self) -> None:
        """The checkpoint is whole after its source is gone (R05)."""
        store, source = self.custody(), write_checkpoint(self.folder(), 10)
        pin = store.pin("a", 10, str(source))
        for path in source.iterdir():
            path.unlink()
        source.rmdir()
        assert store.verify(pin) == pin
        assert (Path(pin.path) / "model.safetensors").stat().st_size > 0

    def test_pinning_twice_is_once(self) -> None:
        """The same checkpoint has one pin."""
        store, source = self.custody(), write_checkpoint(self.folder(), 10)
        assert store.pin("a", 10, str(source)) == store.pin("a", 10, str(source))
        assert len(list(store.pins("a"))) == 1

    def test_torn_checkpoints_are_refused(self) -> None:
        """Nothing of a torn one is left in custody (R06)."""
        store, source = self.custody(), write_checkpoint(self.folder(), 10)
        weights = source / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
        with pytest.raises(TornCheckpointError):
            store.pin("a", 10, str(source))
        assert list(store.pins("a")) == []

    def test_pins_are_listed_by_job_and_step(self) -> None:
        """One job does not see another's."""
        store, folder = self.custody(), self.folder()
        for step in (20, 100, 3):
            store.pin("a", step, str(write_checkpoint(folder, step)))
        store.pin("b", 7, str(write_checkpoint(folder, 7)))
        assert [pin.step for pin in store.pins("a")] == [3, 20, 100]
        assert [pin.step for pin in store.pins("b")] == [7]
        assert list(store.pins("nobody")) == []

    def test_an_unpinned_checkpoint_is_gone_and_the_others_stay(self) -> None:
        """Unpinning twice is no error."""
        store, folder = self.custody(), self.folder()
        first = store.pin("a", 1, str(write_checkpoint(folder, 1)))
        second = store.pin("a", 2, str(write_checkpoint(folder, 2)))
        store.unpin(first)
        store.unpin(first)
        assert list(store.pins("a")) == [second]
        with pytest.raises(TornCheckpointError):
            store.verify(first)
        assert store.verify(second) == second

    def test_damage_in_custody_is_found(self) -> None:
        """Verify reads again."""
        store, source = self.custody(), write_checkpoint(self.folder(), 10)
        pin = store.pin("a", 10, str(source))
        (Path(pin.path) / "model.safetensors").unlink()
        with pytest.raises(TornCheckpointError):
            store.verify(pin)
