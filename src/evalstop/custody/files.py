"""Custody on a local or shared file system.

A pin is a folder of hard links (copies across file systems, or on demand), made aside, verified
there, marked complete, synced, and renamed into place in one step. A newer pin of the same
checkpoint gets a new folder, and the older one goes only then. So at every instant, also when
the machine loses power, each folder with a marker is a whole checkpoint.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from evalstop.core.errors import TornCheckpointError
from evalstop.custody.again import attempt_of, held_already
from evalstop.custody.verify import WEIGHTS, files_of, inspect
from evalstop.ports import Pin

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FileCustody"]

_MARKER = ".pin.json"
_ASIDE = ".aside-"
_GOING = ".going-"
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES}


class FileCustody:
    """`evalstop.ports.CheckpointStore` in the folder ``root``.

    Args:
        root: where pins lie; on the file system of the checkpoints links cost no space.
        marker: a file that trainers write last into a checkpoint; empty for none.
        copy: copy instead of linking, for trainers that overwrite files in place.
    """

    def __init__(self, root: Path, *, marker: str = "", copy: bool = False) -> None:
        self._root = root
        self._marker = marker
        self._copy = copy
        root.mkdir(parents=True, exist_ok=True)
        for left in root.glob("*/.*-*"):  # of a writer that was killed
            if left.name.startswith((_ASIDE, _GOING)):
                shutil.rmtree(left, ignore_errors=True)

    def _folder(self, job: str) -> Path:
        name = quote(job, safe=" ")
        return self._root / (name if name.strip(".") else f"%{name}")

    def pin(
        self, job: str, step: int, source: str, *, attempt: int = 0, scored: bool = True
    ) -> Pin:
        """Verify a checkpoint and take it into custody; twice is once."""
        origin = Path(source)
        seen = inspect(origin, marker=self._marker)
        known = [pin for pin in self.pins(job) if (pin.step, pin.name) == (step, origin.name)]
        old = [pin for pin in known if not _written_anew(Path(pin.path), origin)]
        pin = held_already(old, seen, self._names)
        if pin is not None:
            return pin if scored or pin.attempt >= attempt else self._renumbered(pin, attempt)
        attempt = attempt_of(known, old, attempt)
        folder = self._folder(job)
        folder.mkdir(exist_ok=True)
        aside = folder / f"{_ASIDE}{secrets.token_hex(8)}"
        try:
            named = Pin(
                job=job,
                step=step,
                name=origin.name,
                path="",
                source=str(origin),
                bytes=seen.bytes,
                digest=seen.digest,
                attempt=attempt,
            )
            pin = self._make(aside, origin, named)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        for past in old:
            self.unpin(past)
        return pin

    def _make(self, aside: Path, origin: Path, named: Pin) -> Pin:
        body = aside / origin.name
        for path in files_of(origin):
            target = body if path == origin else body / path.relative_to(origin)
            target.parent.mkdir(parents=True, exist_ok=True)
            self._take(path, target)
        again = inspect(body, marker=self._marker)
        if again.digest != named.digest:
            raise TornCheckpointError(str(origin), "it changed while it was being pinned")
        place = aside.parent / f"{named.step}-{secrets.token_hex(4)}"
        pin = msgspec.structs.replace(named, path=str(place / origin.name))
        with (aside / _MARKER).open("wb") as file:
            file.write(msgspec.json.encode(pin))
            file.flush()
            os.fsync(file.fileno())
        for folder in {path.parent for path in files_of(aside)} | {aside}:
            _sync(folder)
        aside.rename(place)
        _sync(place.parent)
        return pin

    def _renumbered(self, pin: Pin, attempt: int) -> Pin:
        """Correct the attempt of a pin, in one step: its marker is replaced."""
        place = Path(pin.path).parent
        pin = msgspec.structs.replace(pin, attempt=attempt)
        aside = place / f"{_MARKER}-{secrets.token_hex(4)}"
        with aside.open("wb") as file:
            file.write(msgspec.json.encode(pin))
            file.flush()
            os.fsync(file.fileno())
        aside.replace(place / _MARKER)
        _sync(place)
        return pin

    def _take(self, path: Path, target: Path) -> None:
        if not self._copy:
            try:
                target.hardlink_to(path)
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
            else:
                return
        shutil.copy2(path, target)
        with target.open("rb") as file:
            os.fsync(file.fileno())

    def _names(self, pin: Pin) -> set[str]:
        root = Path(pin.path)
        return {
            path.name if path == root else str(path.relative_to(root)) for path in files_of(root)
        }

    def verify(self, pin: Pin) -> Pin:
        """Read a pinned checkpoint again and return it."""
        found = inspect(Path(pin.path), marker=self._marker)
        if found.digest != pin.digest:
            raise TornCheckpointError(pin.path, "it is not what was pinned: overwritten in place?")
        return pin

    def unpin(self, pin: Pin) -> None:
        """Let a checkpoint go: out of sight first, then file by file."""
        place = Path(pin.path).parent
        going = place.with_name(f"{_GOING}{secrets.token_hex(8)}")
        try:
            place.rename(going)
        except FileNotFoundError:
            return
        shutil.rmtree(going, ignore_errors=True)

    def pins(self, job: str) -> Iterable[Pin]:
        """Return the checkpoints of a job in custody, by step."""
        found = []
        for marker in self._folder(job).glob(f"[0-9]*/{_MARKER}"):
            pin = msgspec.json.decode(marker.read_bytes(), type=Pin)
            found.append(msgspec.structs.replace(pin, path=str(marker.parent / pin.name)))
        return sorted(found, key=lambda pin: (pin.step, pin.name, pin.attempt))


def _written_anew(pinned: Path, origin: Path) -> bool:
    """Whether the trainer wrote weights of a pinned checkpoint again since.

    By size and time: links share both, copies keep both, and a digest of headers does not tell
    one run's weights from another's.
    """
    for path in files_of(pinned):
        now = origin if path == pinned else origin / path.relative_to(pinned)
        if path.suffix in WEIGHTS and now.exists():
            then, there = path.stat(), now.stat()
            if (then.st_size, then.st_mtime_ns) != (there.st_size, there.st_mtime_ns):
                return True
    return False


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
