"""What stands where text was expected: UTF-16, something packed, bytes; and what to do then."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from evalstop.core.errors import ReadError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["GZIP_MAGIC", "not_text", "opening_of", "packed", "two_byte_text"]

GZIP_MAGIC = b"\x1f\x8b"

_SNIFFED = 4096
_MARKS = (b"\xff\xfe", b"\xfe\xff")


def opening_of(path: Path, size: int = _SNIFFED) -> bytes:
    """Return the first bytes of a file.

    Raises:
        ReadError: it is a folder, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise ReadError(str(path), f"cannot be read: {error.strerror}") from error


def packed(opening: bytes) -> bool:
    """Return whether a file begins as gzip packs them."""
    return opening.startswith(GZIP_MAGIC)


def two_byte_text(opening: bytes) -> str | None:
    """Return what to do about text in UTF-16, as Windows programs write it; None if it is none."""
    latin = b"\x00" in opening and (not any(opening[:16:2]) or not any(opening[1:16:2]))
    if not opening.startswith(_MARKS) and not latin:
        return None
    return "text in UTF-16 where UTF-8 was expected: `iconv -f UTF-16 -t UTF-8` turns it into that"


def not_text(path: Path, error: UnicodeDecodeError | csv.Error) -> ReadError:
    """Return the error for a file that a parser of CSV gave up on."""
    if isinstance(error, csv.Error):
        return ReadError(str(path), f"not a readable CSV file: {error}")
    opening = opening_of(path)
    message = two_byte_text(opening)
    if packed(opening):
        message = "packed by gzip where plain text was expected: unpack it first (gunzip)"
    if message is None:
        byte = error.object[error.start]
        message = (
            f"not a text file in UTF-8 (byte 0x{byte:02x}): if it is text in another encoding, "
            "`iconv -f ENCODING -t UTF-8` turns it into that"
        )
    return ReadError(str(path), message)
