"""Where trainers write, looked at alike on a file system and in an object store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from evalstop.core.errors import InputError
from evalstop.custody.allow import is_url, locate
from evalstop.custody.find import Found, find, named
from evalstop.custody.objects import ObjectTree
from evalstop.custody.verify import inspect, inspect_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from evalstop.custody.objects import Objects
    from evalstop.custody.verify import Inspected
    from evalstop.ports import CheckpointStore, Pin

__all__ = ["FilePlace", "ObjectPlace", "Place", "RoutedCustody", "RoutedPlace"]


class Place(Protocol):
    """What custody asks of where trainers write; addresses are paths or URLs."""

    def find(self, folder: str) -> list[Found]:
        """Return what looks like checkpoints in a folder, by step."""
        ...

    def state(self, address: str) -> Hashable:
        """Return what changes when a checkpoint does."""
        ...

    def inspect(self, address: str) -> Inspected:
        """Verify a checkpoint.

        Raises:
            TornCheckpointError: it is not whole.
        """
        ...


class FilePlace:
    """A local or shared file system."""

    def find(self, folder: str) -> list[Found]:
        """Return what looks like checkpoints in a folder."""
        return find(Path(folder))

    def state(self, address: str) -> Hashable:
        """Return times and number of its entries."""
        path = Path(address)
        if path.is_file():
            return (path.stat().st_mtime, path.stat().st_size)
        entries = list(path.rglob("*"))
        return (len(entries), max((entry.stat().st_mtime for entry in entries), default=0.0))

    def inspect(self, address: str) -> Inspected:
        """Verify a checkpoint."""
        return inspect(Path(address))


class ObjectPlace:
    """An object store."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def find(self, folder: str) -> list[Found]:
        """Return what looks like checkpoints under a prefix, and can be named plainly."""
        found = named(folder.rstrip("/"), self._objects.children(folder))
        return [one for one in found if _is_plain(one.path)]

    def state(self, address: str) -> Hashable:
        """Return its files with their versions."""
        return tuple(sorted((name, stat.tag) for name, stat in self._tree(address).files().items()))

    def inspect(self, address: str) -> Inspected:
        """Verify a checkpoint."""
        return inspect_tree(self._tree(address))

    def _tree(self, address: str) -> ObjectTree:
        return ObjectTree(self._objects, address)


class RoutedPlace:
    """Paths go to the file system, URLs to the object store."""

    def __init__(self, files: Place, objects: Place) -> None:
        self._files, self._objects = files, objects

    def _of(self, address: str) -> Place:
        return self._objects if is_url(address) else self._files

    def find(self, folder: str) -> list[Found]:
        """Return what looks like checkpoints in a folder."""
        return self._of(folder).find(folder)

    def state(self, address: str) -> Hashable:
        """Return what changes when a checkpoint does."""
        return self._of(address).state(address)

    def inspect(self, address: str) -> Inspected:
        """Verify a checkpoint."""
        return self._of(address).inspect(address)


class RoutedCustody:
    """`evalstop.ports.CheckpointStore` of both: a job's pins may lie here and there.

    Args:
        files: for paths.
        objects: for URLs.
        in_objects: whether a job ever named a URL that may be touched; others cost no request.
    """

    def __init__(
        self,
        files: CheckpointStore,
        objects: CheckpointStore,
        in_objects: Callable[[str], bool],
    ) -> None:
        self._files, self._objects = files, objects
        self._in_objects = in_objects

    def pin(
        self, job: str, step: int, source: str, *, attempt: int = 0, scored: bool = True
    ) -> Pin:
        """Verify a checkpoint and take it into custody, where it lies."""
        store = self._objects if is_url(source) else self._files
        return store.pin(job, step, source, attempt=attempt, scored=scored)

    def verify(self, pin: Pin) -> Pin:
        """Read a pinned checkpoint again and return it."""
        return (self._objects if is_url(pin.path) else self._files).verify(pin)

    def unpin(self, pin: Pin) -> None:
        """Let a checkpoint go."""
        (self._objects if is_url(pin.path) else self._files).unpin(pin)

    def pins(self, job: str) -> Iterable[Pin]:
        """Return the checkpoints of a job in custody, by step."""
        pins = list(self._files.pins(job))
        if self._in_objects(job):
            pins += self._objects.pins(job)
        return sorted(pins, key=lambda pin: (pin.step, pin.name, pin.attempt))


def _is_plain(url: str) -> bool:
    try:
        locate(url)
    except InputError:
        return False
    return True
