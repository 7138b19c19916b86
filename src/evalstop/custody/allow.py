"""Which URLs evalstop may touch with its own credentials: what the operator allows, nothing else.

A job's report may name any URL, and evalstop can reach more than the job can. So a URL is read or
copied only if it lies under a prefix that the operator allowed for the job's tenant, and is
spelled in the one plain way in which it cannot mean another place.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from evalstop.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Allowed", "Location", "is_url", "locate"]

_URL = re.compile(r"(?P<protocol>[a-z][a-z0-9+.-]*)://(?P<place>[^/]*)(?:/(?P<path>.*))?")
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\%?#*\[\]]|::")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]*")
_LONGEST = 2000


class Location(Struct, frozen=True):
    """A URL taken apart: protocol, bucket or host, and the segments of its path."""

    protocol: str
    place: str
    segments: tuple[str, ...]

    @property
    def url(self) -> str:
        """The URL, without a slash at its end."""
        return f"{self.protocol}://{'/'.join((self.place, *self.segments))}"

    def within(self, other: Location) -> bool:
        """Whether it is ``other``, or lies under it."""
        same = (self.protocol, self.place) == (other.protocol, other.place)
        return same and self.segments[: len(other.segments)] == other.segments


def is_url(text: str) -> bool:
    """Return whether a checkpoint is named by a URL, not by a path or a plain name."""
    return "://" in text


def locate(url: str) -> Location:
    """Take a URL apart.

    Raises:
        InputError: if it is none, or not spelled in the one plain way.

    Example:
        >>> locate("s3://bucket/runs/checkpoint-20/").segments
        ('runs', 'checkpoint-20')
    """
    match = _URL.fullmatch(url) if len(url) <= _LONGEST else None
    if match is None:
        message = f"expected a URL like s3://bucket/folder, but got {url[:200]!r}"
        raise InputError(message)
    if found := _FORBIDDEN.search(url):
        message = (
            f"{url!r} has {found.group()!r} in it: escapes, wildcards, queries and chained URLs "
            "are not followed; write the plain address"
        )
        raise InputError(message)
    path = (match["path"] or "").removesuffix("/")
    segments = tuple(path.split("/")) if path else ()
    if not {"", ".", ".."}.isdisjoint(segments) or match["place"] in {".", ".."}:
        message = f"{url!r} has an empty segment, '.' or '..' in it: write the plain address"
        raise InputError(message)
    if not match["place"] and not segments:
        message = f"expected a bucket or a folder after the protocol, but got {url!r}"
        raise InputError(message)
    return Location(match["protocol"], match["place"], segments)


class Allowed:
    """The prefixes under which jobs may have their checkpoints.

    Args:
        prefixes: URLs; ``{tenant}`` and ``{job}`` in them stand for the job's own.

    Raises:
        InputError: if one is no plain URL.

    Example:
        >>> allowed = Allowed(["s3://bucket/runs/{tenant}/"])
        >>> allowed.why_not("s3://bucket/runs/ada/job-7/checkpoint-20", tenant="ada", job="job-7")
        ''
        >>> print(allowed.why_not("s3://bucket/runs/ben/x", tenant="ada", job="job-7"))
        s3://bucket/runs/ben/x is not under a prefix that custody.allow gives tenant 'ada'
    """

    def __init__(self, prefixes: Sequence[str] = ()) -> None:
        for prefix in prefixes:
            locate(_filled(prefix, tenant="tenant", job="job"))
        self._prefixes = tuple(prefixes)

    def why_not(self, url: str, *, tenant: str, job: str) -> str:
        """Return why a URL may not be touched for a job, in a sentence; "" if it may."""
        if not self._prefixes:
            return f"{url} is not looked at: the operator allows no URL (custody.allow)"
        try:
            location = locate(url)
        except InputError as error:
            return str(error)
        names = {"tenant": tenant, "job": job}
        for prefix in self._prefixes:
            unsafe = any(
                f"{{{key}}}" in prefix and _NAME.fullmatch(name) is None
                for key, name in names.items()
            )
            if not unsafe and location.within(locate(_filled(prefix, **names))):
                return ""
        return f"{url} is not under a prefix that custody.allow gives tenant {tenant!r}"


def _filled(prefix: str, *, tenant: str, job: str) -> str:
    return prefix.replace("{tenant}", tenant).replace("{job}", job)
