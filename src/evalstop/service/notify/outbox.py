"""What waits to be told: kept beside the log until its receiver has it.

A notice is put down once for each receiver, under the place in the log it comes from, and taken
away when it was sent. Where the log was read to is kept too; after a crash the rest is read again
and nothing is put down twice. So each notice is sent at least once, and a receiver that drops ids
it has seen gets it exactly once.

Every receiver has a thread and a queue of its own: one that hangs holds up no other. A notice is
tried again after 1, 2, 4 ... 300 seconds and given up after a day.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct

from evalstop.service.notify.notice import KINDS, Notice, is_worth_telling, notices_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evalstop.ports import Entry, EventStore, SnapshotStore
    from evalstop.service.controller import Controller

__all__ = ["Outbox", "Receiver", "Target"]

_log = logging.getLogger(__name__)

_KIND = "notice"
_CURSOR = "notice-cursor"
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 300.0
_GIVEN_UP_AFTER_S = 86_400.0


class Receiver(Protocol):
    """Somebody who can be told."""

    def send(self, notice: Notice) -> None:
        """Tell one notice; raises EvalStopError when it did not arrive."""
        ...


class Target(Struct, frozen=True, kw_only=True):
    """A receiver under a name, and what it wants to hear.

    Attributes:
        name: unique; waiting notices are kept under it.
        receiver: how it is told.
        kinds: kinds of notices it wants; see `evalstop.service.notify.notice.KINDS`.
        tenants: only notices of these tenants; empty for all.
    """

    name: str
    receiver: Receiver
    kinds: tuple[str, ...] = tuple(KINDS)
    tenants: tuple[str, ...] = ()

    def wants(self, notice: Notice) -> bool:
        """Return whether it wants to hear this."""
        return notice.kind in self.kinds and (not self.tenants or notice.tenant in self.tenants)


class Outbox:
    """Turns what the log says into notices, and sends them.

    Args:
        controller: whose entries are told.
        store: its log, for what was written while nobody listened.
        documents: where notices wait.
        targets: who is told.
        monotonic: seconds that never go back.
        now: seconds since 1970.
    """

    def __init__(
        self,
        controller: Controller,
        *,
        store: EventStore,
        documents: SnapshotStore,
        targets: Sequence[Target],
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._controller = controller
        self._store = store
        self._documents = documents
        self._lines = [_Line(target, documents, monotonic=monotonic, now=now) for target in targets]
        self.problem = ""
        self._heard: deque[Entry] = deque()
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        if documents.get(_CURSOR, "") is None:  # the first start: what was before is history
            documents.put(_CURSOR, "", str(store.last_sequence()).encode())
        self._unlisten = controller.listen(self._hear)

    def start(self) -> None:
        """Put down what was missed, and begin to tell."""
        self._thread.start()
        for line in self._lines:
            line.start()

    def close(self) -> None:
        """End; what waits is told by the next one."""
        if self._ended.is_set():
            return
        self._unlisten()
        self._ended.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)
        for line in self._lines:
            line.close()

    def waiting(self) -> int:
        """Return how many notices wait, each counted once a receiver."""
        return sum(1 for _ in self._documents.documents(_KIND))

    def troubles(self) -> list[str]:
        """Return which receivers are not reached, in sentences."""
        found = [self.problem, *(line.problem for line in self._lines)]
        return [problem for problem in found if problem]

    def _hear(self, entry: Entry) -> None:
        if is_worth_telling(entry):
            self._heard.append(entry)
            self._wake.set()

    def _run(self) -> None:
        self._until_done(self.catch_up)
        while not self._ended.is_set():
            self._wake.wait()
            self._wake.clear()
            while self._heard and not self._ended.is_set():
                entry = self._heard[0]
                self._until_done(lambda entry=entry: self._put_down(entry))  # type: ignore[misc]  # binds now
                self._heard.popleft()

    def _until_done(self, act: Callable[[], None]) -> None:
        """Do what a full disk may refuse, again and again: telling must outlive that.

        A notice that was put down already is not put down twice.
        """
        pause = _FIRST_PAUSE_S
        while not self._ended.is_set():
            try:
                act()
            except Exception as error:  # noqa: BLE001 -- whatever the store raises, telling goes on
                if not self.problem:
                    _log.warning("notices cannot be put down: %s", error)
                self.problem = f"notices cannot be put down: {error}"
                self._ended.wait(pause)
                pause = min(_LONGEST_PAUSE_S, 2.0 * pause)
            else:
                self.problem = ""
                return

    def catch_up(self) -> None:
        """Read the log from where it was last read to."""
        for entry in self._store.read(self._cursor()):
            if is_worth_telling(entry):
                self._put_down(entry)

    def _put_down(self, entry: Entry) -> None:
        if entry.sequence <= self._cursor():
            return  # heard while the log was being caught up with
        for notice in notices_of(entry, self._controller.ledger.jobs):
            for line in self._lines:
                if line.target.wants(notice):
                    line.put(notice)
        self._documents.put(_CURSOR, "", str(entry.sequence).encode())

    def _cursor(self) -> int:
        return int(self._documents.get(_CURSOR, "") or 0)


class _Line:
    """The queue and thread of one receiver."""

    def __init__(
        self,
        target: Target,
        documents: SnapshotStore,
        *,
        monotonic: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        self.target = target
        self.problem = ""
        self._documents = documents
        self._monotonic = monotonic
        self._now = now
        self._queue: deque[tuple[str, Notice]] = deque()
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"notify-{target.name}", daemon=True)
        suffix = f"|{target.name}"
        for key, data in documents.documents(_KIND):
            if key.endswith(suffix):
                self._queue.append((key, msgspec.json.decode(data, type=Notice)))

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def put(self, notice: Notice) -> None:
        key = f"{notice.id}|{self.target.name}"
        if self._documents.get(_KIND, key) is None:
            self._documents.put(_KIND, key, msgspec.json.encode(notice))
            self._queue.append((key, notice))
            self._wake.set()

    def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while not self._ended.is_set():
            if not self._queue:
                self._wake.wait()
                self._wake.clear()
                continue
            key, notice = self._queue[0]
            try:
                self.target.receiver.send(notice)
            except Exception as error:  # noqa: BLE001 -- whatever a receiver raises, telling goes on
                self.problem = f"{self.target.name} was not told of {notice.id}: {error}"
                if self._now() - notice.time < _GIVEN_UP_AFTER_S:
                    self._ended.wait(pause)
                    pause = min(_LONGEST_PAUSE_S, 2.0 * pause)
                    continue
                _log.warning("given up: %s", self.problem)
            else:
                self.problem = ""
            pause = _FIRST_PAUSE_S
            self._queue.popleft()
            try:
                self._documents.delete(_KIND, key)
            except Exception as error:  # noqa: BLE001 -- told again after a restart, at the worst
                _log.warning("%s was told of %s, but: %s", self.target.name, notice.id, error)
