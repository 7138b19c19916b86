"""Whether a folder or file is a whole checkpoint, without loading it.

What is looked at, for every file: sentinels that say "incomplete"; every shard that an index
names, or that names with ranks promise (verl); safetensors headers against the file's length; the
central directory of zip files (torch.save, numpy.savez), which a torn write does not reach; JSON
that parses. The digest covers names, sizes, headers and the checksums that zip files carry.

A checkpoint is a `Tree`: here on a file system, in `evalstop.custody.objects` in an object store,
where the same is read by ranges.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import struct
import zipfile
from pathlib import PurePath, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, Protocol

from msgspec import Struct

from evalstop.core.errors import TornCheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = [
    "SENTINEL",
    "WEIGHTS",
    "FileTree",
    "Inspected",
    "Stat",
    "Tree",
    "files_of",
    "inspect",
    "inspect_tree",
    "missing_ranks",
]

SENTINEL = "checkpoint-is-incomplete"
"""Transformers writes a file of this name first and removes it last."""

WEIGHTS = frozenset({".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz"})
_ZIPS = WEIGHTS - {".safetensors"}
_UNREADABLE = (
    OSError, ValueError, LookupError, TypeError, AttributeError, zipfile.BadZipFile, EOFError,
)  # fmt: skip
_LENGTH_BYTES = 8
_LOADER = "data.pt"
_RANK = re.compile(r"(?P<kind>\w+)_world_size_(?P<world>\d+)_rank_(?P<rank>\d+)\.pt")
_MOST_RANKS = 100_000
_LONGEST_HEADER = 100_000_000


class Inspected(Struct, frozen=True):
    """A whole checkpoint: its files relative to its root, bytes, and digest."""

    files: tuple[str, ...]
    bytes: int
    digest: str
    changed_at: float


class Stat(Struct, frozen=True):
    """One file: its size, when it changed (seconds since 1970), and what else tells versions."""

    size: int
    changed_at: float = 0.0
    tag: str = ""


class Tree(Protocol):
    """A checkpoint as files under one root.

    Attributes:
        where: its path or URL, for people.
        is_folder: whether it is one, not a single file.
        longest_json: JSON of more bytes is not read; None to read all.
    """

    where: str
    is_folder: bool
    longest_json: int | None

    def files(self) -> Mapping[str, Stat]:
        """Return its files by name relative to the root; a single file under its own name."""
        ...

    def open(self, name: str) -> BinaryIO:
        """Open one of them to read; it can seek."""
        ...


class FileTree:
    """A checkpoint on a file system."""

    longest_json: int | None = None

    def __init__(self, root: Path) -> None:
        self._root = root
        self.where = str(root)
        self.is_folder = not root.is_file()

    def files(self) -> Mapping[str, Stat]:
        """Return its files by name."""
        found = {}
        for path in files_of(self._root):
            status = path.stat()
            name = path.relative_to(self._root) if self.is_folder else path.name
            found[str(name)] = Stat(status.st_size, status.st_mtime)
        return found

    def open(self, name: str) -> BinaryIO:
        """Open one of them."""
        return (self._root / name if self.is_folder else self._root).open("rb")


def files_of(root: Path) -> list[Path]:
    """Return the files of a checkpoint, hidden ones of ours left out, by name."""
    if root.is_file():
        return [root]
    return sorted(path for path in root.rglob("*") if path.is_file() and path.name != ".pin.json")


def inspect(root: Path, *, marker: str = "") -> Inspected:
    """Verify a checkpoint.

    Args:
        root: a folder, or one file.
        marker: a file that the trainer writes last into the folder; empty for none.

    Raises:
        TornCheckpointError: it is not whole, with what is missing.
    """
    return inspect_tree(FileTree(root), marker=marker)


def inspect_tree(tree: Tree, *, marker: str = "") -> Inspected:
    """Verify a checkpoint, wherever it lies.

    Raises:
        TornCheckpointError: it is not whole, with what is missing.
    """
    try:
        return _inspect(tree, marker)
    except _UNREADABLE as error:
        raise TornCheckpointError(tree.where, f"{type(error).__name__}: {error}") from error


def _inspect(tree: Tree, marker: str) -> Inspected:
    files = tree.files()
    names = sorted(files, key=lambda name: PurePosixPath(name).parts)
    # verl's rotation takes the weights and leaves the data loader's state.
    loader = _LOADER if tree.is_folder else ""
    if not any(PurePosixPath(name).suffix in WEIGHTS and name != loader for name in names):
        raise TornCheckpointError(tree.where, "no weights in it")
    missing = missing_ranks(PurePosixPath(tree.where, name) for name in names)
    if missing:
        raise TornCheckpointError(tree.where, f"shards are missing: {', '.join(missing[:5])}")
    if marker and tree.is_folder and marker not in files:
        raise TornCheckpointError(tree.where, f"its completion marker {marker!r} is missing")
    digest = hashlib.sha256()
    for name in names:
        if PurePosixPath(name).name.startswith(SENTINEL):
            raise TornCheckpointError(tree.where, f"{name} says it is incomplete")
        digest.update(f"{name}\0{files[name].size}\0".encode())
        digest.update(_content_digest(tree, name, files))
    total = sum(stat.size for stat in files.values())
    changed_at = max(stat.changed_at for stat in files.values())
    return Inspected(tuple(names), total, digest.hexdigest(), changed_at)


def missing_ranks(files: Iterable[PurePath]) -> list[str]:
    """Return the names of shards that others promise: ``model_world_size_2_rank_1.pt`` and such.

    Example:
        >>> from pathlib import Path
        >>> missing_ranks([Path("actor/model_world_size_2_rank_0.pt")])
        ['actor/model_world_size_2_rank_1.pt']
    """
    there: dict[tuple[PurePath, str, int], set[int]] = {}
    for path in files:
        if match := _RANK.fullmatch(path.name):
            shards = (path.parent, match["kind"], min(int(match["world"]), _MOST_RANKS))
            there.setdefault(shards, set()).add(int(match["rank"]))
    return [
        f"{folder.name}/{kind}_world_size_{world}_rank_{rank}.pt"
        for (folder, kind, world), ranks in sorted(there.items())
        for rank in sorted(set(range(world)) - ranks)
    ]


def _content_digest(tree: Tree, name: str, files: Mapping[str, Stat]) -> bytes:
    suffix, size = PurePosixPath(name).suffix, files[name].size
    where = posixpath.join(tree.where, name) if tree.is_folder else tree.where
    if suffix == ".safetensors":
        with tree.open(name) as file:
            return _safetensors_header(file, where, size)
    if suffix in _ZIPS:
        with tree.open(name) as file:
            return _zip_directory(file, where)
    if suffix != ".json":
        return b""
    is_index = name.endswith(".index.json")
    if not is_index and tree.longest_json is not None and size > tree.longest_json:
        return b""
    with tree.open(name) as file:
        content = file.read()
    data = json.loads(content)
    if is_index:
        _check_shards(tree, name, files, data)
    return content


def _safetensors_header(file: BinaryIO, where: str, size: int) -> bytes:
    """Return the header if the data it describes is all there.

    Format: 8 bytes length, that many bytes of JSON, then the tensors without gaps
    (https://github.com/huggingface/safetensors, "Format").
    """
    start = file.read(_LENGTH_BYTES)
    if len(start) < _LENGTH_BYTES:
        raise TornCheckpointError(where, "shorter than its header's length")
    length = struct.unpack("<Q", start)[0]
    if length > min(_LONGEST_HEADER, size - _LENGTH_BYTES):
        raise TornCheckpointError(where, "its header is cut off")
    header = file.read(length)
    tensors = json.loads(header)
    ends = [tensor["data_offsets"][1] for key, tensor in tensors.items() if key != "__metadata__"]
    expected = _LENGTH_BYTES + length + max(ends, default=0)
    if size != expected:
        raise TornCheckpointError(where, f"expected {expected} bytes, found {size}")
    return header


def _zip_directory(file: BinaryIO, where: str) -> bytes:
    if not zipfile.is_zipfile(file):
        raise TornCheckpointError(
            where, "no readable zip: torn, or written by torch before 1.6, which none can verify"
        )
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
    if not entries:
        raise TornCheckpointError(where, "an empty archive")
    return repr([(entry.filename, entry.CRC, entry.file_size) for entry in entries]).encode()


def _check_shards(
    tree: Tree, name: str, files: Mapping[str, Stat], index: dict[str, dict[str, str]]
) -> None:
    folder = posixpath.dirname(name)
    missing = sorted(
        shard
        for shard in set(index["weight_map"].values())
        if posixpath.normpath(posixpath.join(folder, shard)) not in files
    )
    if missing:
        raise TornCheckpointError(tree.where, f"shards are missing: {', '.join(missing)}")
