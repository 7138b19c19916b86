"""Whether a folder or file is a whole checkpoint, without loading it.

What is looked at, for every file: sentinels that say "incomplete"; every shard that an index
names, or that names with ranks promise (verl); safetensors headers against the file's length; the
central directory of zip files (torch.save, numpy.savez), which a torn write does not reach; JSON
that parses. The digest covers names, sizes, headers and the checksums that zip files carry.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import zipfile
from typing import TYPE_CHECKING

from msgspec import Struct

from evalstop.core.errors import TornCheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["SENTINEL", "WEIGHTS", "Inspected", "files_of", "inspect", "missing_ranks"]

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
    try:
        return _inspect(root, marker)
    except _UNREADABLE as error:
        raise TornCheckpointError(str(root), f"{type(error).__name__}: {error}") from error


def _inspect(root: Path, marker: str) -> Inspected:
    files = files_of(root)
    # verl's rotation takes the weights and leaves the data loader's state.
    if not any(path.suffix in WEIGHTS and path != root / _LOADER for path in files):
        raise TornCheckpointError(str(root), "no weights in it")
    missing = missing_ranks(files)
    if missing:
        raise TornCheckpointError(str(root), f"shards are missing: {', '.join(missing[:5])}")
    if marker and root.is_dir() and not (root / marker).exists():
        raise TornCheckpointError(str(root), f"its completion marker {marker!r} is missing")
    digest = hashlib.sha256()
    total, changed_at = 0, 0.0
    names = []
    for path in files:
        if path.name.startswith(SENTINEL):
            raise TornCheckpointError(str(root), f"{path.name} says it is incomplete")
        status = path.stat()
        name = path.name if path == root else str(path.relative_to(root))
        digest.update(f"{name}\0{status.st_size}\0".encode())
        digest.update(_content_digest(path, status.st_size))
        names.append(name)
        total += status.st_size
        changed_at = max(changed_at, status.st_mtime)
    return Inspected(tuple(names), total, digest.hexdigest(), changed_at)


def missing_ranks(files: Iterable[Path]) -> list[str]:
    """Return the names of shards that others promise: ``model_world_size_2_rank_1.pt`` and such.

    Example:
        >>> from pathlib import Path
        >>> missing_ranks([Path("actor/model_world_size_2_rank_0.pt")])
        ['actor/model_world_size_2_rank_1.pt']
    """
    there: dict[tuple[Path, str, int], set[int]] = {}
    for path in files:
        if match := _RANK.fullmatch(path.name):
            shards = (path.parent, match["kind"], min(int(match["world"]), _MOST_RANKS))
            there.setdefault(shards, set()).add(int(match["rank"]))
    return [
        f"{folder.name}/{kind}_world_size_{world}_rank_{rank}.pt"
        for (folder, kind, world), ranks in sorted(there.items())
        for rank in sorted(set(range(world)) - ranks)
    ]


def _content_digest(path: Path, size: int) -> bytes:
    if path.suffix == ".safetensors":
        return _safetensors_header(path, size)
    if path.suffix in _ZIPS:
        return _zip_directory(path)
    if path.suffix == ".json":
        content = path.read_bytes()
        data = json.loads(content)
        if path.name.endswith(".index.json"):
            _check_shards(path, data)
        return content
    return b""


def _safetensors_header(path: Path, size: int) -> bytes:
    """Return the header if the data it describes is all there.

    Format: 8 bytes length, that many bytes of JSON, then the tensors without gaps
    (https://github.com/huggingface/safetensors, "Format").
    """
    with path.open("rb") as file:
        start = file.read(_LENGTH_BYTES)
        if len(start) < _LENGTH_BYTES:
            raise TornCheckpointError(str(path), "shorter than its header's length")
        length = struct.unpack("<Q", start)[0]
        if length > min(_LONGEST_HEADER, size - _LENGTH_BYTES):
            raise TornCheckpointError(str(path), "its header is cut off")
        header = file.read(length)
    tensors = json.loads(header)
    ends = [tensor["data_offsets"][1] for name, tensor in tensors.items() if name != "__metadata__"]
    expected = _LENGTH_BYTES + length + max(ends, default=0)
    if size != expected:
        raise TornCheckpointError(str(path), f"expected {expected} bytes, found {size}")
    return header


def _zip_directory(path: Path) -> bytes:
    if not zipfile.is_zipfile(path):
        raise TornCheckpointError(
            str(path),
            "no readable zip: torn, or written by torch before 1.6, which none can verify",
        )
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    if not entries:
        raise TornCheckpointError(str(path), "an empty archive")
    return repr([(entry.filename, entry.CRC, entry.file_size) for entry in entries]).encode()


def _check_shards(path: Path, index: dict[str, dict[str, str]]) -> None:
    missing = sorted(
        shard for shard in set(index["weight_map"].values()) if not (path.parent / shard).is_file()
    )
    if missing:
        raise TornCheckpointError(str(path.parent), f"shards are missing: {', '.join(missing)}")
