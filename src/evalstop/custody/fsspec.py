"""Object stores, and whatever else fsspec opens, as custody needs them.

Listings and instances are not cached: what is there now counts. Every request of a file system
that is asynchronous inside (S3, GCS, Azure) is bounded in time; a copy gets more time by its size.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

try:
    import fsspec
    from fsspec.asyn import AsyncFileSystem, sync
    from fsspec.implementations.local import LocalFileSystem
except ModuleNotFoundError as missing:
    from evalstop.core.errors import MissingExtraError

    raise MissingExtraError(missing.name or "fsspec", "object-store") from missing

from evalstop.core.errors import CustodyError, InputError, MissingExtraError, TornCheckpointError
from evalstop.custody.verify import Stat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["FsspecObjects"]

_COPIED_PER_S = 10 * 1024 * 1024
"""A copy inside a store that is slower than this is given up, and tried again."""

_TIMES = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")
_TAGS = ("ETag", "etag", "md5Hash", "generation", "content_md5", "ino")
_OF_S3 = {"connect_timeout": 5, "read_timeout": 15, "retries": {"max_attempts": 1}}
"""Of botocore; s3fs itself tries each request five times."""


class FsspecObjects:
    """`evalstop.custody.objects.Objects` of one protocol.

    Args:
        protocol: as in the URLs: s3, gs, abfs, memory, file ...
        options: what fsspec's class of that protocol takes, such as ``endpoint_url``.
        timeout_s: bound of one request.

    Raises:
        MissingExtraError: fsspec or s3fs is not installed.
        InputError: there is no such protocol, its package is missing, or an option is none.
    """

    def __init__(
        self, protocol: str, options: Mapping[str, Any] | None = None, *, timeout_s: float = 60.0
    ) -> None:
        self._timeout_s = timeout_s
        given: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
        if protocol in {"s3", "s3a"}:
            given["config_kwargs"] = _OF_S3
        try:
            kind = fsspec.get_filesystem_class(protocol)
            if issubclass(kind, LocalFileSystem):
                given["auto_mkdir"] = True
            self._system = fsspec.filesystem(protocol, **(given | dict(options or {})))
        except ImportError as error:
            if protocol in {"s3", "s3a"}:
                package = "s3fs"
                raise MissingExtraError(package, "object-store") from error
            message = f"{protocol}:// needs a package that is not installed: {error}"
            raise InputError(message) from error
        except (ValueError, TypeError) as error:
            message = f"custody cannot open {protocol}:// with its options: {error}"
            raise InputError(message) from error

    def files(self, url: str) -> Mapping[str, Stat]:
        """Return all objects under a URL by relative name; one object has the name ""."""
        root = self._system._strip_protocol(url)  # noqa: SLF001 -- fsspec's own way to a path
        with _asking(url):
            found = self._call("find", url, detail=True)
        kept = {}
        for path, details in found.items():
            if details.get("type") == "directory" or (path.endswith("/") and path != root):
                continue
            self._keep_inside(url, path)
            name = path.removeprefix(root).removeprefix("/")
            kept[name] = _stat(details) if details else self.stat(url)
        return kept

    def _keep_inside(self, url: str, path: str) -> None:
        """Refuse links on the way to a folder of the local file system, and out of it.

        Where they lead was never allowed.
        """
        if isinstance(self._system, LocalFileSystem):
            root = self._system._strip_protocol(url)  # noqa: SLF001 -- as above
            inside = os.path.commonpath([root, os.path.realpath(path)]) == root
            if os.path.realpath(root) != root or not inside:
                raise TornCheckpointError(url, f"{path} is reached through a link: not followed")

    def children(self, url: str) -> list[tuple[str, bool]]:
        """Return the names right under a URL, and whether each is a folder."""
        root = self._system._strip_protocol(url)  # noqa: SLF001 -- as above
        try:
            with _asking(url):
                found = self._call("ls", url, detail=True)
        except FileNotFoundError:
            return []
        names = [
            (one["name"].rstrip("/").rpartition("/")[2], one["type"] == "directory")
            for one in found
            if one["name"].rstrip("/") != root
        ]
        return sorted(names)

    def stat(self, url: str) -> Stat:
        """Return the size and version of one object."""
        with _asking(url):
            return _stat(self._call("info", url))

    def read(self, url: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of one object from ``start`` up to ``end``."""
        bounds: dict[str, Any] = {"start": start, "end": end} if start or end is not None else {}
        with _asking(url):
            return bytes(self._call("cat_file", url, **bounds))

    def copy(self, source: str, target: str, *, size: int = 0) -> None:
        """Copy one object inside the store."""
        with _asking(source):
            self._call("cp_file", source, target, limit_s=size / _COPIED_PER_S)

    def write(self, url: str, data: bytes) -> None:
        """Write one small object."""
        with _asking(url):
            self._call("pipe_file", url, data)

    def delete(self, url: str) -> None:
        """Delete one object; one that is gone is no error."""
        try:
            with _asking(url):
                self._call("rm_file", url)
        except FileNotFoundError:
            return

    def tag(self, url: str, tags: Mapping[str, str]) -> None:
        """Set tags of one object beside those it has."""
        put: Callable[..., None] | None = getattr(self._system, "put_tags", None)
        if put is None:
            message = f'{url}: this store has no tags; set custody.pin = "copy"'
            raise CustodyError(message)
        with _asking(url):
            put(url, dict(tags), mode="m")

    def _call(self, name: str, *args: Any, limit_s: float = 0.0, **fields: Any) -> Any:  # noqa: ANN401 -- fsspec has no types
        system = self._system
        if isinstance(system, AsyncFileSystem) and system.async_impl:
            limit = self._timeout_s + limit_s
            return sync(system.loop, getattr(system, f"_{name}"), *args, timeout=limit, **fields)
        return getattr(system, name)(*args, **fields)


@contextmanager
def _asking(url: str) -> Iterator[None]:
    """Turn what stores raise into the two things that matter: it is not there, or no answer."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(url) from None
    except Exception as error:
        words = str(error) or type(error).__name__
        message = f"the store of {url} does not answer, or refuses: {words}"
        raise CustodyError(message) from error


def _stat(details: Mapping[str, Any]) -> Stat:
    times = [details[name] for name in _TIMES if details.get(name) is not None]
    marks = [str(details[name]) for name in _TAGS if details.get(name) is not None]
    when = times[0] if times else 0.0
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    changed_at = when.timestamp() if isinstance(when, datetime) else float(when)
    return Stat(int(details.get("size") or 0), changed_at, "|".join([*marks, repr(changed_at)]))
