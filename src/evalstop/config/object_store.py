"""What ``[custody]`` says of an object store, checked: a mistake would touch what is not ours."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from evalstop.core.errors import InputError, SpecError
from evalstop.custody.allow import Allowed, locate
from evalstop.custody.probe import probe

if TYPE_CHECKING:
    from evalstop.config.settings import CustodySettings
    from evalstop.custody.objects import Objects

__all__ = ["allowed_of", "check_object_store", "open_objects", "probe_object_store"]

_SECRET = ("key", "secret", "token", "password", "credential")
_NO_STORE = frozenset({
    "http", "https", "data", "zip", "tar", "libarchive", "simplecache", "filecache", "blockcache",
    "cached", "dir", "reference", "git", "github", "jupyter", "generic", "async_wrapper",
})  # fmt: skip
"""Protocols of fsspec that read from elsewhere, or through another protocol, or cannot write."""

_SLASHES_OF_A_PLACE = 2
"""In protocol://bucket."""


def check_object_store(custody: CustodySettings) -> None:
    """Check what names an object store.

    Raises:
        SpecError: with what to write instead.
    """
    if not custody.store:
        if custody.allow:
            message = "custody.allow needs custody.store: the prefix that pins are kept under"
            raise SpecError(message)
        return
    try:
        store = locate(custody.store)
        allowed_of(custody)
        prefixes = [locate(_fixed_part(prefix)) for prefix in custody.allow]
    except InputError as error:
        message = f"custody.store and custody.allow: {error}"
        raise SpecError(message) from error
    if store.protocol in _NO_STORE or "{" in custody.store:
        message = f"custody.store must be a plain prefix of an object store, not {custody.store!r}"
        raise SpecError(message)
    if store.protocol not in {"memory", "file", "local"} and not store.segments:
        message = f"custody.store needs a prefix in its bucket: {store.url}/evalstop/"
        raise SpecError(message)
    for prefix, written in zip(prefixes, custody.allow, strict=True):
        if prefix.protocol != store.protocol:
            message = (
                f"custody.allow has {written!r}, but custody.store is on {store.protocol}://: "
                "pins are copied inside one store"
            )
            raise SpecError(message)
        if store.within(prefix) or prefix.within(store):
            message = (
                f"custody.store {custody.store!r} and {written!r} in custody.allow lie within each "
                "other: jobs could name what is kept for others; choose two prefixes side by side"
            )
            raise SpecError(message)
    secrets = [name for name in custody.options if any(word in name.lower() for word in _SECRET)]
    if secrets:
        message = (
            f"custody.options holds {secrets[0]!r}: leave credentials to the environment, such as "
            "AWS_PROFILE or an instance's role"
        )
        raise SpecError(message)


def allowed_of(custody: CustodySettings) -> Allowed:
    """Return which URLs of jobs may be touched."""
    return Allowed(custody.allow)


def open_objects(custody: CustodySettings) -> Objects:
    """Return the object store that ``custody.store`` lies in; it is not asked anything yet.

    Raises:
        MissingExtraError: fsspec, or its package for this store, is not installed.
        InputError: fsspec knows no such store or option.
    """
    fsspec = import_module("evalstop.custody.fsspec")  # an extra
    objects: Objects = fsspec.FsspecObjects(
        locate(custody.store).protocol, custody.options, timeout_s=custody.store_timeout_s
    )
    return objects


def probe_object_store(custody: CustodySettings) -> str:
    """Try in the store what custody must be able to do, and return what was tried.

    Raises:
        CustodyError, MissingExtraError, InputError: with what to fix.
    """
    check_object_store(custody)
    prefixes = [_fixed_part(prefix) for prefix in custody.allow]
    return probe(open_objects(custody), custody.store, prefixes)


def _fixed_part(prefix: str) -> str:
    """Return the segments of a prefix before the first that depends on a tenant or job."""
    head, brace, _ = prefix.partition("{")
    if brace and head.count("/") <= _SLASHES_OF_A_PLACE:
        message = f"in {prefix!r} the tenant or job must come after the bucket"
        raise InputError(message)
    return head.rpartition("/")[0] if brace else prefix
