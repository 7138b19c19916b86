"""Custody in an object store, under a prefix of evalstop's own.

    ROOT/pins/JOB/PLACE.json        the marker: a pin is what has one
    ROOT/under-way/JOB/PLACE.json   what is being made, or let go
    ROOT/data/JOB/PLACE/NAME/...    the copy

An object store has no rename. So what is to be made is written down first, then the files are
copied inside the store and verified there, and the marker is written last. A writer that was
killed leaves its note under way: the next one finishes the pin if the copy is whole, and removes
it if not. Whatever is read is read again: nothing here trusts a listing to be complete.
"""

from __future__ import annotations

import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

import msgspec
from msgspec import Struct

from evalstop.core.errors import CustodyError, TornCheckpointError
from evalstop.custody.again import attempt_of, held_already
from evalstop.custody.objects import ObjectTree
from evalstop.custody.verify import WEIGHTS, Stat, inspect_tree
from evalstop.ports import Pin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from evalstop.custody.objects import Objects
    from evalstop.custody.verify import Inspected

__all__ = ["PINNED", "RELEASED", "TAG", "ObjectCustody"]

TAG, PINNED, RELEASED = "evalstop", "pinned", "released"
"""The tag of objects that are pinned where they lie, and its values."""

_AT_ONCE = 16
_RELIST_S = 60.0
_PAUSE_S = 2.0
"""Seconds for which a store that did not answer is not asked again to list."""


class _Marker(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is written of a pin: the pin, the state of its source then, and what is meant."""

    pin: Pin
    files: dict[str, Stat]
    how: Literal["copy", "tag"] = "copy"
    going: bool = False


class ObjectCustody:
    """`evalstop.ports.CheckpointStore` under the URL ``root``.

    Args:
        objects: the store, of the checkpoints and of ``root`` alike.
        root: a prefix that nobody else writes under.
        marker: a file that trainers write last into a checkpoint; empty for none.
        how: copy, or tag the objects where they lie. A tag keeps off a lifecycle rule that goes
            by it, and nobody who deletes or overwrites.
    """

    def __init__(
        self,
        objects: Objects,
        root: str,
        *,
        marker: str = "",
        how: Literal["copy", "tag"] = "copy",
        relist_s: float = _RELIST_S,
    ) -> None:
        self._objects = objects
        self._root = root.rstrip("/")
        self._marker = marker
        self._how = how
        self._relist_s = relist_s
        self._lock = threading.RLock()
        self._recovered = False
        self._busy: set[str] = set()
        self._kept: dict[str, dict[str, _Marker]] = {}
        self._own: set[str] = set()
        self._gone: set[str] = set()
        self._listed: dict[str, float] = {}
        self._down: tuple[float, str] = (0.0, "")

    def pin(
        self, job: str, step: int, source: str, *, attempt: int = 0, scored: bool = True
    ) -> Pin:
        """Verify a checkpoint and take it into custody; twice is once.

        Raises:
            TornCheckpointError: it is not complete, or was rotated away meanwhile.
            CustodyError: the store does not answer.
        """
        tree = ObjectTree(self._objects, source)
        seen = inspect_tree(tree, marker=self._marker)
        kept = self._markers(job)
        known = {
            place: one
            for place, one in kept.items()
            if (one.pin.step, one.pin.name) == (step, tree.name)
        }
        old = {place: one for place, one in known.items() if not _written_anew(one, tree.files())}
        names = {one.pin.path: set(one.files) for one in old.values()}
        pins = _by_step(one.pin for one in old.values())
        pin = held_already(pins, seen, lambda pin: names[pin.path])
        if pin is not None:
            return pin if scored or pin.attempt >= attempt else self._renumbered(pin, attempt)
        attempt = attempt_of([one.pin for one in known.values()], pins, attempt)
        made = self._make(job, step, tree, seen, attempt)
        for past in old.values():
            self.unpin(past.pin)
        return made

    def _make(self, job: str, step: int, tree: ObjectTree, seen: Inspected, attempt: int) -> Pin:
        place = f"{_quoted(job)}/{step}-{secrets.token_hex(6)}"
        body = tree.where if self._how == "tag" else f"{self._root}/data/{place}/{tree.name}"
        pin = Pin(
            job=job,
            step=step,
            name=tree.name,
            path=body,
            source=tree.where,
            bytes=seen.bytes,
            digest=seen.digest,
            attempt=attempt,
        )
        wanted = _Marker(pin=pin, files=dict(tree.files()), how=self._how)
        self._busy.add(place)
        try:
            self._write("under-way", place, wanted)
            try:
                self._take(tree, wanted)
                self._check_whole(wanted)
                _check_same(tree, wanted)
            except (TornCheckpointError, FileNotFoundError) as error:
                self._remove(place, wanted)
                why = "it was rotated away while it was being pinned"
                torn = isinstance(error, TornCheckpointError)
                raise error if torn else TornCheckpointError(tree.where, why) from error
            self._write("pins", place, wanted)
            self._remember(job, place, wanted)
            with suppress(CustodyError):  # the next one finds marker and note: that is whole
                self._objects.delete(f"{self._root}/under-way/{place}.json")
        finally:
            self._busy.discard(place)
        return pin

    def _take(self, tree: ObjectTree, wanted: _Marker) -> None:
        if wanted.how == "tag":
            _all(lambda name: self._objects.tag(tree.url_of(name), {TAG: PINNED}), wanted.files)
            return
        body = wanted.pin.path

        def copy(name: str) -> None:
            target = f"{body}/{name}" if tree.is_folder else body
            self._objects.copy(tree.url_of(name), target, size=wanted.files[name].size)

        _all(copy, wanted.files)

    def _check_whole(self, wanted: _Marker) -> None:
        pin = wanted.pin
        try:
            found = inspect_tree(self._tree_of(wanted), marker=self._marker)
        except FileNotFoundError as error:
            raise TornCheckpointError(pin.path, f"{error} is missing") from error
        if found.digest != pin.digest:
            raise TornCheckpointError(pin.path, "it is not what was pinned")

    def _tree_of(self, marker: _Marker) -> ObjectTree:
        return ObjectTree(self._objects, marker.pin.path, names=marker.files)

    def _renumbered(self, pin: Pin, attempt: int) -> Pin:
        """Correct the attempt of a pin: its marker is replaced."""
        place, marker = self._marker_of(pin)
        pin = msgspec.structs.replace(pin, attempt=attempt)
        marker = msgspec.structs.replace(marker, pin=pin)
        self._write("pins", place, marker)
        self._remember(pin.job, place, marker)
        return pin

    def verify(self, pin: Pin) -> Pin:
        """Read a pinned checkpoint again and return it.

        Raises:
            TornCheckpointError: it is gone or damaged.
            CustodyError: the store does not answer.
        """
        self._check_whole(self._marker_of(pin)[1])
        return pin

    def unpin(self, pin: Pin) -> None:
        """Let a checkpoint go: its marker first, then file by file."""
        try:
            place, marker = self._marker_of(pin)
        except TornCheckpointError:
            return
        going = msgspec.structs.replace(marker, going=True)
        self._write("under-way", place, going)
        with self._lock:
            self._gone.add(place)
            self._kept.get(pin.job, {}).pop(place, None)
        self._remove(place, going)

    def _remove(self, place: str, marker: _Marker) -> None:
        """Remove marker, files and note, in this order; what is gone already is no error."""
        self._objects.delete(f"{self._root}/pins/{place}.json")
        if marker.how == "tag":
            self._release(marker)
        else:
            folder = f"{self._root}/data/{place}"
            pin = marker.pin
            single = set(marker.files) == {pin.name} and pin.path == f"{folder}/{pin.name}"
            names = {pin.name} if single else set()
            names |= {f"{pin.name}/{name}" for name in marker.files}
            names |= set(self._objects.files(folder)) - {""}
            _all(lambda name: self._objects.delete(f"{folder}/{name}"), names)
        self._objects.delete(f"{self._root}/under-way/{place}.json")

    def _release(self, marker: _Marker) -> None:
        """Tag the objects of a pin as free, unless another pin holds the same ones."""
        held = [one for one in self._kept.get(marker.pin.job, {}).values() if one.how == "tag"]
        if any(one.pin.path == marker.pin.path for one in held if one.pin != marker.pin):
            return
        tree = self._tree_of(marker)
        tree.is_folder = set(marker.files) != {marker.pin.name}

        def release(name: str) -> None:
            with suppress(FileNotFoundError):
                self._objects.tag(tree.url_of(name), {TAG: RELEASED})

        _all(release, marker.files)

    def pins(self, job: str) -> Iterable[Pin]:
        """Return the checkpoints of a job in custody, by step.

        Raises:
            CustodyError: the store does not answer, and has not been listed yet.
        """
        return _by_step(one.pin for one in self._markers(job).values())

    # -- markers

    def _marker_of(self, pin: Pin) -> tuple[str, _Marker]:
        for place, marker in self._markers(pin.job).items():
            if marker.pin.path == pin.path and marker.pin.digest == pin.digest:
                return place, marker
        raise TornCheckpointError(pin.path, "it is not in custody")

    def _markers(self, job: str) -> dict[str, _Marker]:
        """Return the markers of a job; listed anew now and then, not for every question."""
        with self._lock:
            listed = self._listed.get(job)
            if listed is None or time.monotonic() - listed > self._relist_s:
                try:
                    self._ask(job)
                except CustodyError:
                    if listed is None:
                        raise
            return dict(self._kept.get(job, {}))

    def _ask(self, job: str) -> None:
        """List anew, unless the store did not answer a moment ago: others wait for this."""
        until, why = self._down
        if time.monotonic() < until:
            raise CustodyError(why)
        try:
            self._recover()
            self._list(job)
        except CustodyError as error:
            self._down = (time.monotonic() + _PAUSE_S, str(error))
            raise

    def _list(self, job: str) -> None:
        began = time.monotonic()
        kept = self._kept.setdefault(job, {})
        found = {
            f"{_quoted(job)}/{name.removesuffix('.json')}"
            for name in self._objects.files(f"{self._root}/pins/{_quoted(job)}")
        }
        for place in found - set(kept) - self._gone:
            marker = self._read("pins", place)
            if marker is not None:
                kept[place] = marker
        for place in set(kept) - found - self._own:  # listings may lag behind what we wrote
            del kept[place]
        self._listed[job] = began

    def _remember(self, job: str, place: str, marker: _Marker) -> None:
        with self._lock:
            self._own.add(place)
            self._kept.setdefault(job, {})[place] = marker

    def _write(self, kind: str, place: str, marker: _Marker) -> None:
        self._objects.write(f"{self._root}/{kind}/{place}.json", msgspec.json.encode(marker))

    def _read(self, kind: str, place: str) -> _Marker | None:
        try:
            data = self._objects.read(f"{self._root}/{kind}/{place}.json")
            return msgspec.json.decode(data, type=_Marker)
        except (FileNotFoundError, msgspec.DecodeError):  # gone, or cut off by a kill
            return None

    def _recover(self) -> None:
        """Finish or remove what a writer that was killed left under way; once."""
        if self._recovered:
            return
        for name in self._objects.files(f"{self._root}/under-way"):
            place = name.removesuffix(".json")
            if place in self._busy or not name.endswith(".json"):
                continue
            noted, marker = self._read("under-way", place), self._read("pins", place)
            if noted is None:  # cut off before anything was copied
                self._objects.delete(f"{self._root}/under-way/{name}")
            elif noted.going:
                self._remove(place, noted)
            elif marker is not None:
                self._objects.delete(f"{self._root}/under-way/{name}")
            else:
                self._finish(place, noted)
        self._recovered = True

    def _finish(self, place: str, noted: _Marker) -> None:
        try:
            self._check_whole(noted)
        except TornCheckpointError:
            self._remove(place, noted)
            return
        self._write("pins", place, noted)
        self._objects.delete(f"{self._root}/under-way/{place}.json")


def _check_same(tree: ObjectTree, wanted: _Marker) -> None:
    if tree.listed() != wanted.files:
        raise TornCheckpointError(tree.where, "it changed while it was being pinned")


def _all(act: Callable[[str], None], names: Iterable[str]) -> None:
    """Do something for each of many files, several at a time; the first error is raised."""
    wanted = list(names)
    if not wanted:
        return
    with ThreadPoolExecutor(min(_AT_ONCE, len(wanted)), thread_name_prefix="objects") as pool:
        futures = [pool.submit(act, name) for name in wanted]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _by_step(pins: Iterable[Pin]) -> Sequence[Pin]:
    return sorted(pins, key=lambda pin: (pin.step, pin.name, pin.attempt))


def _quoted(job: str) -> str:
    name = quote(job, safe="")
    return name if name.strip(".") else f"%{name}"


def _written_anew(kept: _Marker, files: Mapping[str, Stat]) -> bool:
    """Whether the trainer wrote weights of a pinned checkpoint again since."""
    return any(
        files[name] != then
        for name, then in kept.files.items()
        if "." + name.rpartition(".")[2] in WEIGHTS and name in files
    )
