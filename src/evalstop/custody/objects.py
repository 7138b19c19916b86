"""What custody needs of an object store, and a checkpoint in one as a tree of files.

Files are read by ranges: the header of a safetensors file, the directory at the end of a zip.
"""

from __future__ import annotations

import io
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, Protocol

from evalstop.core.errors import TornCheckpointError
from evalstop.custody.verify import Stat, Tree

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["ObjectTree", "Objects", "RangeFile"]

_BLOCK = 64 * 1024
"""At least so much is read at once: one request costs more than these bytes."""

_LONGEST_JSON = 4 * 1024 * 1024
_ODD = {"", ".", ".."}


class Objects(Protocol):
    """An object store. Methods block within bounds.

    Each raises FileNotFoundError where there is nothing, and
    `evalstop.core.errors.CustodyError` where the store does not answer or refuses.
    """

    def files(self, url: str) -> Mapping[str, Stat]:
        """Return all objects under a URL by relative name; one object has the name ""."""
        ...

    def children(self, url: str) -> list[tuple[str, bool]]:
        """Return the names right under a URL, and whether each is a folder."""
        ...

    def stat(self, url: str) -> Stat:
        """Return the size and version of one object."""
        ...

    def read(self, url: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of one object from ``start`` up to ``end``."""
        ...

    def copy(self, source: str, target: str, *, size: int = 0) -> None:
        """Copy one object inside the store, which does not pass through here."""
        ...

    def write(self, url: str, data: bytes) -> None:
        """Write one small object in place of an older one."""
        ...

    def delete(self, url: str) -> None:
        """Delete one object; one that is gone is no error."""
        ...

    def tag(self, url: str, tags: Mapping[str, str]) -> None:
        """Set tags of one object beside those it has.

        Raises:
            CustodyError: also where the store has no tags.
        """
        ...


class RangeFile(io.RawIOBase):
    """One object as a file that can seek, read block by block.

    Near its end the whole end is read at once: there zip files have their directory.
    """

    def __init__(self, objects: Objects, url: str, size: int) -> None:
        super().__init__()
        self._objects, self._url, self._size = objects, url, size
        self._at = 0
        self._begin, self._block = 0, b""

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position; one before the beginning is refused as files do."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            message = f"negative seek in {self._url}"
            raise OSError(message)
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Return up to ``size`` bytes, all that are left where it is negative or None."""
        left = max(0, self._size - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        if not wanted:
            return b""
        begin = self._at - self._begin
        if not 0 <= begin <= begin + wanted <= len(self._block):
            near_end = self._size - self._at <= _BLOCK
            self._begin = max(0, self._size - _BLOCK) if near_end else self._at
            end = min(self._size, self._at + max(wanted, _BLOCK))
            self._block = self._objects.read(self._url, self._begin, end)
            begin = self._at - self._begin
        found = self._block[begin : begin + wanted]
        self._at += len(found)
        return found

    def readall(self) -> bytes:
        """Return all that is left."""
        return self.read()


class ObjectTree(Tree):
    """A checkpoint in an object store.

    Args:
        objects: the store.
        url: its folder, or its one file.
        names: files that are known to be there: looked for one by one where a listing, which may
            lag behind, leaves them out.
    """

    longest_json: int | None = _LONGEST_JSON

    def __init__(self, objects: Objects, url: str, *, names: Collection[str] = ()) -> None:
        self._objects = objects
        self._names = names
        self.where = url.rstrip("/")
        self.name = self.where.rpartition("/")[2]
        self._files: dict[str, Stat] | None = None
        self.is_folder = True

    def files(self) -> Mapping[str, Stat]:
        """Return its files by name; asked once.

        Raises:
            TornCheckpointError: it has a file with a name that leads elsewhere.
        """
        if self._files is None:
            self._files = self.listed()
        return self._files

    def listed(self) -> dict[str, Stat]:
        """Return its files by name as they are now."""
        found = dict(self._objects.files(self.where))
        if "" in found and len(found) == 1:
            self.is_folder = False
            return {self.name: found[""]}
        found.pop("", None)
        for name in found:
            if not _ODD.isdisjoint(name.split("/")) or not name.isprintable() or "?" in name:
                raise TornCheckpointError(self.where, f"{name!r} is no name of a file in a folder")
        self.is_folder = bool(found) or not set(self._names) <= {self.name}
        for name in set(self._names) - set(found):
            found[name] = self._objects.stat(self.url_of(name))
        return found

    def url_of(self, name: str) -> str:
        """Return the URL of one file."""
        return f"{self.where}/{name}" if self.is_folder else self.where

    def open(self, name: str) -> BinaryIO:
        """Open one of them."""
        size = self.files()[name].size
        file: io.RawIOBase = RangeFile(self._objects, self.url_of(name), size)
        if PurePosixPath(name).suffix == ".json":
            return io.BytesIO(file.readall() or b"")
        return file  # type: ignore[return-value]  # io.RawIOBase reads bytes as BinaryIO does
