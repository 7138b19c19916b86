"""Whether custody can do in its object store what it must: tried, under its own prefix."""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from evalstop.core.errors import CustodyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evalstop.custody.objects import Objects

__all__ = ["probe"]

T = TypeVar("T")

_CONTENT = b"evalstop doctor"


def probe(objects: Objects, root: str, prefixes: Sequence[str] = ()) -> str:
    """Write, list, read, copy and delete a probe; list where jobs have their checkpoints.

    Args:
        objects: the store.
        root: custody's own prefix.
        prefixes: where jobs may have their checkpoints.

    Returns:
        What was tried, in words.

    Raises:
        CustodyError: with what failed and what to fix.
    """
    folder = f"{root.rstrip('/')}/probe/{secrets.token_hex(8)}"
    first, second = f"{folder}/first", f"{folder}/second"
    _try("write there (s3:PutObject)", lambda: objects.write(first, _CONTENT), root)
    try:
        _try("copy there (s3:PutObject)", lambda: objects.copy(first, second), root)
        found = _try("list it (s3:ListBucket)", lambda: objects.files(folder), root)
        if set(found) != {"first", "second"}:
            message = (
                f"{root}: of two objects just written the listing has {len(found)}: it lags; "
                "custody copes, and sees new checkpoints later"
            )
            raise CustodyError(message)
        read = _try("read there (s3:GetObject)", lambda: objects.read(second, 9), root)
        if read != _CONTENT[9:]:
            message = f"{root}: a range of an object does not come back as it was written"
            raise CustodyError(message)
    finally:
        for url in (first, second):
            _try("delete there (s3:DeleteObject)", partial(objects.delete, url), root)
    for prefix in prefixes:
        _try("list it (s3:ListBucket)", partial(objects.children, prefix), prefix)
    tried = "wrote, copied, listed, read and deleted a probe"
    return f"{root}: {tried}; prefixes that jobs may use and that can be listed: {len(prefixes)}"


def _try(what: str, act: Callable[[], T], where: str) -> T:
    try:
        return act()
    except FileNotFoundError as error:
        message = f"{where}: evalstop cannot {what}: there is no such bucket or folder"
        raise CustodyError(message) from error
    except CustodyError as error:
        message = f"{where}: evalstop cannot {what}: {error}"
        raise CustodyError(message) from error
