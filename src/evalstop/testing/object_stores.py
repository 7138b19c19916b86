"""The contract of custody where checkpoints, and pins, lie in an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evalstop.custody import ObjectCustody
from evalstop.testing.custody import CustodyContract

if TYPE_CHECKING:
    from pathlib import Path

    from evalstop.custody.fsspec import FsspecObjects
    from evalstop.ports import CheckpointStore

__all__ = ["ObjectContract"]


class ObjectContract(CustodyContract):
    """Subclass it and set ``base``, an empty prefix, and ``root``, an empty local folder."""

    base: str
    root: Path

    def options(self) -> dict[str, Any]:
        """Return what fsspec's class of the protocol takes."""
        return {}

    def objects(self) -> FsspecObjects:
        """Return the store, opened anew."""
        from evalstop.custody.fsspec import FsspecObjects  # noqa: PLC0415 -- an extra

        return FsspecObjects(self.base.partition("://")[0], self.options())

    def custody(self) -> CheckpointStore:
        """Return custody beside the trainer's prefix."""
        return ObjectCustody(self.objects(), f"{self.base}/evalstop")

    def folder(self) -> Path:
        """Return where checkpoints are made before they are uploaded."""
        return self.root / "out"

    def source(self, path: Path) -> str:
        """Upload what is new, so that the store's times tell what was written anew."""
        objects, url = self.objects(), f"{self.base}/runs/{path.name}"
        there = objects.files(url)
        files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
        for one in files:
            name = "" if one == path else one.relative_to(path).as_posix()
            target, data = f"{url}/{name}".rstrip("/"), one.read_bytes()
            if name not in there or objects.read(target) != data:
                objects.write(target, data)
        return url

    def remove(self, address: str) -> None:
        """Delete all objects under a URL."""
        objects = self.objects()
        for name in objects.files(address):
            objects.delete(f"{address}/{name}".rstrip("/"))

    def size(self, address: str) -> int:
        """Return the size of one object."""
        return self.objects().stat(address).size
