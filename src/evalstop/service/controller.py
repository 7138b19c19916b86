"""The live driver: facts come in, are decided on and written, and only then acted upon.

One thread decides. Everything else - HTTP, the poller of the backend, timers, custody - asks it
to take in facts, and gets a future that is fulfilled when they are durably in the log. All facts
that wait when a turn begins share one transaction.

Order of every turn: build the events against the picture, apply and decide, write, act, answer.
Should the controller die before the write, nothing has happened; after it, the next controller
finds the commands unacknowledged and sends them again under the same keys.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from evalstop.core.codec import require_writable
from evalstop.core.errors import EvalStopError, StoreConflictError, StoreError
from evalstop.core.events import Event, TimerFired
from evalstop.core.policy import ClusterView
from evalstop.ports import Entry
from evalstop.service.clock import LogClock
from evalstop.service.ledger import Ledger, key_of
from evalstop.service.recover import decide, note_timers, promise
from evalstop.service.snapshot import Snapshots, fold

if TYPE_CHECKING:
    from evalstop.core.policy import Policy
    from evalstop.ports import Clock, EventStore
    from evalstop.service.carry_out import CarryOut

__all__ = ["BusyError", "Controller", "Situation"]

_log = logging.getLogger(__name__)

MOST_WAITING = 10_000
"""Asks that may wait; beyond, reporters are told to come back."""

MOST_A_TURN = 500
"""Asks that share one transaction."""

_IDLE_S = 1.0

_LOOKS = 100
"""How often another thread looks for a moment at which nothing changes in the picture."""

_Seen = TypeVar("_Seen")


class BusyError(EvalStopError):
    """The controller has too much to do, or cannot write its log now: try again."""


class Situation(Struct, frozen=True):
    """What a builder of facts may look at, on the deciding thread."""

    now: float
    view: ClusterView
    ledger: Ledger


Build = Callable[[Situation], Sequence[Event]]
"""Looks at the situation and returns facts to log; raises to refuse."""


class _Ask(Struct, frozen=True):
    build: Build
    future: Future[list[Entry]]


class Controller:
    """Owns the kernel, the ledger and the log of one cluster.

    Args:
        store: the log; nobody else may write it (see `evalstop.ports.Lease`).
        policy: what decides; its state is rebuilt from the log.
        clock: where time comes from.
        carry_out: told of every written entry, and asked to resume what is unacknowledged.
        snapshots: where a fold of the log may lie already; None to replay all of it.

    Attributes:
        deciding: held while a fact is taken in; and by whoever asks the policy itself for
            something from another thread, for as long as that takes.

    Raises:
        IllegalEventError: if the log tells an impossible story.
        StoreError: if it cannot be read.
    """

    def __init__(
        self,
        *,
        store: EventStore,
        policy: Policy,
        clock: Clock,
        carry_out: CarryOut,
        snapshots: Snapshots | None = None,
    ) -> None:
        self._store = store
        self._carry_out = carry_out
        folded = fold(store, policy, snapshots)
        self.kernel, self.ledger, recovered = folded.kernel, folded.ledger, folded.recovered
        self.changed_decisions = recovered.changed
        self.since_snapshot = folded.since
        self._sequence = recovered.sequence
        self._timers = recovered.timers
        self._clock = LogClock(clock, recovered.time)
        self._asks: queue.Queue[_Ask | None] = queue.Queue(MOST_WAITING)
        self._unwritten: list[Entry] = []
        self._listeners: list[Callable[[Entry], None]] = []
        self._thread: threading.Thread | None = None
        self._changes = 0  # odd while a fact is taken in
        self.deciding = threading.RLock()
        self.store_problem = ""
        self.failure = ""
        self.deposed = threading.Event()

    # -- asking

    @property
    def sequence(self) -> int:
        """Sequence of the newest entry."""
        return self._sequence

    def now(self) -> float:
        """Return the time that would be stamped now."""
        return self._clock.now()

    def steady(self, look: Callable[[], _Seen]) -> _Seen:
        """Return what ``look`` sees of the picture between two facts; any thread may call this.

        A fact changes the picture in several places: a look in the middle of it sees GPUs of a
        job that has ended both held and free. Under a flood of facts the last look counts.
        """
        for _ in range(_LOOKS):
            before = self._changes
            seen = look()
            if before % 2 == 0 and before == self._changes:
                break
            time.sleep(0.0)  # let the deciding thread get on
        return seen

    def ask(self, build: Build) -> Future[list[Entry]]:
        """Have facts built, decided on and written; any thread may call this.

        Raises:
            BusyError: if too many wait already.
        """
        ask = _Ask(build, Future())
        try:
            self._asks.put_nowait(ask)
        except queue.Full:
            message = "too many reports are waiting: try again in a second"
            raise BusyError(message) from None
        return ask.future

    def listen(self, listener: Callable[[Entry], None]) -> Callable[[], None]:
        """Call ``listener`` with every entry once it is written; return how to end it.

        It is called on the deciding thread: it must be quick and must not raise.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # -- turns

    def resume(self) -> None:
        """Have carried out what the log promises and no event has acknowledged.

        Errands begin at once, in threads: everything they reach must stand by now.
        """
        self._carry_out.resume(self)

    def start(self) -> None:
        """Resume, then begin to take turns in a thread of its own."""
        self.resume()
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End after the current turn."""
        self._carry_out.close()
        if self._thread is not None:
            self._asks.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        try:
            while not self.deposed.is_set():
                asks = self._gather()
                if asks is None:
                    break
                self.turn(asks)
        except Exception as error:  # noqa: BLE001 -- a bug; nobody may wait for ever because of it
            _log.critical("deciding ended by a bug; a restart takes up the log", exc_info=True)
            self.failure = f"deciding ended by a bug ({type(error).__name__}: {error})"
            self.deposed.set()
        self._refuse(self._gather_now())

    def _gather(self) -> list[_Ask] | None:
        """Wait for asks, or until a timer is due; None says that it is over."""
        wait = _IDLE_S
        if self._timers:
            wait = min(wait, max(0.0, self._timers[0][0] - self.now()))
        asks: list[_Ask] = []
        try:
            ask = self._asks.get(timeout=wait) if wait > 0 else self._asks.get_nowait()
            while True:
                if ask is None and asks:
                    self._asks.put(None)  # these first
                    break
                if ask is None:
                    return None
                asks.append(ask)
                if len(asks) >= MOST_A_TURN:
                    break
                ask = self._asks.get_nowait()
        except queue.Empty:
            pass
        return asks

    def settle(self) -> None:
        """Take turns until nothing waits; for drivers without a thread, such as tests."""
        self.turn(self._gather_now())
        while asks := self._gather_now():
            self.turn(asks)

    def _gather_now(self) -> list[_Ask]:
        asks = []
        while not self._asks.empty() and (ask := self._asks.get_nowait()) is not None:
            asks.append(ask)
        return asks

    def turn(self, asks: Sequence[_Ask]) -> None:
        """Take one turn: everything that waits, in one transaction."""
        if self._unwritten and not self._write(self._unwritten):
            self._refuse(asks)
            return
        now = self.now()
        entries: list[Entry] = []
        self._fire_timers(now, entries)
        answers: list[tuple[_Ask, list[Entry]]] = []
        for ask in asks:
            begin = len(entries)
            try:
                situation = Situation(now, self.kernel.state.view, self.ledger)
                for event in ask.build(situation):
                    require_writable(event)  # before it is part of the picture
                    self._take_in(event, entries)
            except EvalStopError as error:
                _answer(ask, error)
            except Exception as error:  # noqa: BLE001 -- told to the asker and to the log
                _log.exception("an ask failed")
                _answer(ask, error)
            else:
                answers.append((ask, entries[begin:]))
        if entries and not self._write(entries):
            self._refuse([ask for ask, _ in answers])
            return
        for ask, made in answers:
            _answer(ask, made)

    def _fire_timers(self, now: float, entries: list[Entry]) -> None:
        for _ in range(MOST_A_TURN):  # a policy that keeps asking must not keep everyone waiting
            if not self._timers or self._timers[0][0] > now:
                return
            self._take_in(TimerFired(time=now, token=self._timers[0][1]), entries)

    def _take_in(self, event: Event, entries: list[Entry]) -> None:
        """Apply and decide; the entry is part of the turn even if a later event is refused."""
        with self.deciding:
            self._changes += 1
            try:
                self.kernel.state.apply(event)
                actions = promise(self.kernel, decide(self.kernel, event))
                self._sequence += 1
                entry = Entry(sequence=self._sequence, event=event, actions=actions)
                entries.append(entry)
                self.ledger.note(entry, self.kernel.state.view.jobs)
            finally:
                self._changes += 1
        note_timers(self._timers, entry)

    def _write(self, entries: list[Entry]) -> bool:
        """Write, then act. What cannot be written is kept and tried again before all else."""
        try:
            self._store.append(entries)
        except StoreConflictError:
            _log.exception("another controller has taken over: this one ends")
            self.deposed.set()
            return False
        except Exception as error:  # noqa: BLE001 -- whatever a store raises, deciding goes on
            if entries is not self._unwritten:
                self._unwritten += entries
            self.store_problem = str(error)
            known = isinstance(error, StoreError)
            _log.error(
                "%d entries wait for the log: %s", len(self._unwritten), error, exc_info=not known
            )
            return False
        self._unwritten = []
        self.store_problem = ""
        for entry in entries:
            self._act(entry)
        return True

    def _act(self, entry: Entry) -> None:
        for index, action in enumerate(entry.actions):
            self._carry_out.do(key_of(entry.sequence, index), action)
        self._carry_out.heard(entry.event)
        for listener in tuple(self._listeners):
            listener(entry)

    def _refuse(self, asks: Sequence[_Ask]) -> None:
        for ask in asks:
            why = self.store_problem or self.failure or "this controller has ended"
            _answer(ask, BusyError(f"the log cannot be written now: {why}"))


def _answer(ask: _Ask, answer: list[Entry] | Exception) -> None:
    try:
        if isinstance(answer, Exception):
            ask.future.set_exception(answer)
        else:
            ask.future.set_result(answer)
    except InvalidStateError:  # the asker has given up
        pass
