"""Follow a JSONL file that a run appends its scores to: evalstop's own form, or verl's.

The file may not be there yet, be rotated (another inode under the name), truncated and written
anew, or end in half a line. Only whole lines are read. After a rotation the rest of the old file
is read first; a file that is not the one we know, by its first bytes, is read from the start:
repeats do no harm (R15).
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, BinaryIO

from evalstop.core.errors import ReadError
from evalstop.feedback.scores import Watch, names_of_object, readings_of_object

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from evalstop.ports import Reading

__all__ = ["JsonlTail"]

_MOST_A_POLL = 1 << 20  # read in about a third of a second
_LONGEST_LINE = 1 << 18
_HEAD = 256
_MOST_PROBLEMS = 20


class JsonlTail:
    """Readings of one file.

    Args:
        path: the file; it may appear later.
        watch: what of it counts.

    Attributes:
        names: metrics seen so far, watched or not: what to suggest when the watched one is
            never there.
        problems: what could not be read, in sentences, the newest last.
    """

    def __init__(self, path: Path, watch: Watch) -> None:
        self._path = path
        self._watch = watch
        self._file: BinaryIO | None = None
        self._offset = 0
        self._head = b""
        self._skipping = False
        self.names: set[str] = set()
        self.problems: list[str] = []

    def readings(self) -> list[Reading]:
        """Return what whole lines were added since the last call.

        Raises:
            ReadError: the file is there and cannot be opened or read.
        """
        try:
            return list(self._poll())
        except OSError as error:
            self.close()
            message = f"cannot be read: {error.strerror}"
            raise ReadError(str(self._path), message) from error

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _poll(self) -> Iterator[Reading]:
        if self._file is None and not self._open():
            return
        yield from self._lines()
        if self._is_replaced():
            yield from self._lines()  # what came between our read and the rotation
            self.close()
            if self._open():
                yield from self._lines()

    def _open(self) -> bool:
        try:
            self._file = self._path.open("rb")
        except (FileNotFoundError, NotADirectoryError):
            return False
        self._offset, self._head, self._skipping = 0, b"", False
        return True

    def _is_replaced(self) -> bool:
        assert self._file is not None
        ours = os.fstat(self._file.fileno())
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False  # rotated away, and nothing new yet
        return (ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino)

    def _is_rewritten(self, file: BinaryIO) -> bool:
        """Whether the file was truncated, and perhaps filled again since."""
        if os.fstat(file.fileno()).st_size < self._offset:
            return True
        file.seek(0)
        head = hashlib.sha256(file.read(min(_HEAD, self._offset))).digest()
        return bool(self._head) and head != self._head

    def _lines(self) -> Iterator[Reading]:
        file = self._file
        assert file is not None
        if self._is_rewritten(file):
            self._offset, self._head, self._skipping = 0, b"", False
        file.seek(self._offset)
        data = file.read(_MOST_A_POLL)
        whole, newline, rest = data.rpartition(b"\n")
        if not newline:
            if len(rest) > _LONGEST_LINE:
                self._skipping = True
                self._advance(file, len(data))
                self._problem(f"a line is longer than {_LONGEST_LINE} bytes: left out")
            return
        lines = whole.split(b"\n")
        if self._skipping:
            del lines[0]
            self._skipping = False
        self._advance(file, len(whole) + 1)
        for line in lines:
            if line.strip():
                yield from self._line(line)

    def _advance(self, file: BinaryIO, count: int) -> None:
        self._offset += count
        file.seek(0)
        self._head = hashlib.sha256(file.read(min(_HEAD, self._offset))).digest()

    def _line(self, line: bytes) -> list[Reading]:
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                message = f"expected an object, got {line[:60]!r}"
                raise ValueError(message)  # noqa: TRY004, TRY301 -- one kind for all that a line can be
            self.names |= names_of_object(row, self._watch)
            return readings_of_object(row, self._watch)
        except (ValueError, RecursionError) as error:
            self._problem(str(error))
            return []

    def _problem(self, sentence: str) -> None:
        self.problems = [*self.problems, f"{self._path}: {sentence}"][-_MOST_PROBLEMS:]
