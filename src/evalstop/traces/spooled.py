"""Sources that can be read only once, or are compressed: laid out as a file that readers know."""

from __future__ import annotations

import gzip
import shutil
import sys
import tempfile
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from evalstop.core.errors import ReadError
from evalstop.traces.series import Loaded
from evalstop.traces.text_files import GZIP_MAGIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["STDIN", "read_spooled"]

STDIN = "-"
"""Stands for the standard input."""

_STEM = "stdin"


def read_spooled(source: str | Path, read: Callable[[Path], Loaded]) -> Loaded:
    """Read standard input, a pipe or a file packed by gzip; messages name what was given.

    Args:
        source: ``-``, or a path.
        read: reads a plain file.

    Raises:
        ReadError: it cannot be read or unpacked, or what it holds cannot be read.
    """
    shown = str(source)
    with _laid_out(shown) as path:
        try:
            loaded = read(path)
        except ReadError as error:
            raise _renamed(error, path, shown) from error
        return Loaded(
            [replace(curve, source=shown) for curve in loaded.curves],
            [_renamed(error, path, shown) for error in loaded.errors],
        )


@contextmanager
def _laid_out(shown: str) -> Iterator[Path]:
    """Give the path of a plain copy, in a folder and under a name that runs may be called by."""
    given = Path(shown)
    packed = shown != STDIN and given.suffix == ".gz"
    with tempfile.TemporaryDirectory(prefix="evalstop-") as folder:
        home = Path(folder) / (given.absolute().parent.name if packed else _STEM)
        home.mkdir()
        path = home / (given.stem if packed else _STEM)
        try:
            _copy(shown, path)
        except (OSError, EOFError, zlib.error) as error:
            raise ReadError(shown, f"cannot be read: {error}") from error
        yield path


def _copy(shown: str, path: Path) -> None:
    with path.open("w+b") as file:
        if shown == STDIN and sys.stdin is None:
            message = "the standard input is closed: pipe the runs into it, or name files"
            raise ReadError(shown, message)
        if shown == STDIN:
            shutil.copyfileobj(sys.stdin.buffer, file)
        else:
            with Path(shown).open("rb") as given:
                shutil.copyfileobj(given, file)
        file.seek(0)
        if file.read(len(GZIP_MAGIC)) != GZIP_MAGIC:
            return
        file.seek(0)
        with tempfile.TemporaryFile() as plain:
            with gzip.GzipFile(fileobj=file) as packed:
                shutil.copyfileobj(packed, plain)
            plain.seek(0)
            file.seek(0)
            file.truncate()
            shutil.copyfileobj(plain, file)


def _renamed(error: ReadError, path: Path, shown: str) -> ReadError:
    source, message = (words.replace(str(path), shown) for words in (error.source, error.message))
    return ReadError(source, message)
