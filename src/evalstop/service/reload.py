"""New settings without a restart: the policy is folded afresh beside the running one, then swapped.

The new policy sees the whole log, as it would after a restart under the new settings; what was
decided stands. It takes over between two turns, once it has caught up. Only what decides is
reloaded (rules, modes, guards, scheduler); a change of backend, store or address is told and
needs a restart.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec

from evalstop.config.settings import Settings, make_policy, words_of
from evalstop.core.errors import EvalStopError, InputError
from evalstop.core.events import OperatorCommanded
from evalstop.service.controller import BusyError, Controller, Situation
from evalstop.service.platform import CONFIGURE
from evalstop.service.recover import recover
from evalstop.service.snapshot import fold

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from evalstop.core.events import Event
    from evalstop.ports import EventStore
    from evalstop.service.snapshot import Folded

__all__ = ["Reloader", "differences"]

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 2.0
_TRIES = 100


def differences(old: object, new: object, at: str = "") -> list[str]:
    """Return what changed between two settings, one line each: ``policy.mode: a -> b``."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for name in sorted(old.keys() | new.keys())
            for line in differences(old.get(name), new.get(name), f"{at}.{name}" if at else name)
        ]
    return [] if old == new else [f"{at}: {_shown(old)} -> {_shown(new)}"]


def _shown(value: object) -> str:
    return "(unset)" if value is None else msgspec.json.encode(value).decode()


class Reloader:
    """Watches the file of settings and swaps the policy when what decides has changed.

    Args:
        controller: whose policy is swapped.
        store: its log.
        read: reads the settings afresh; raises `InputError` when they do not fit.
        path: the file to watch; None to watch nothing.
        settings: those in force.
        reloaded: called with the new settings once they are in force.
    """

    def __init__(
        self,
        controller: Controller,
        store: EventStore,
        *,
        read: Callable[[], Settings],
        path: Path | None,
        settings: Settings,
        reloaded: Callable[[Settings], None] = lambda _: None,
    ) -> None:
        self._controller = controller
        self._store = store
        self._read = read
        self._path = path
        self._settings = settings
        self._reloaded = reloaded
        self._seen = self._state()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reload", daemon=True)
        self.problem = ""

    def start(self) -> None:
        """Begin to watch."""
        if self._path is not None:
            self._thread.start()

    def close(self) -> None:
        """Watch no more."""
        self._ended.set()

    def _state(self) -> tuple[float, int]:
        try:
            status = self._path.stat() if self._path is not None else None
        except FileNotFoundError:
            return (0.0, -1)
        return (0.0, 0) if status is None else (status.st_mtime, status.st_size)

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_EVERY_S):
            state = self._state()
            if state != self._seen:
                self._seen = state
                self.reload()

    def reload(self) -> list[str]:
        """Read the settings and put them in force; return what changed, one line each."""
        try:
            new = self._read()
            changed = self._swap(new)
        except EvalStopError as error:
            self.problem = f"the new settings are not in force: {error}"
            _log.warning(self.problem)
            return []
        self.problem = ""
        return changed

    def _swap(self, new: Settings) -> list[str]:
        old = self._settings
        deciding = differences(
            msgspec.json.decode(words_of(old)), msgspec.json.decode(words_of(new))
        )
        everything = differences(msgspec.to_builtins(old), msgspec.to_builtins(new))
        self._settings = new
        for line in everything:
            if line.startswith(("server.", "cluster.", "custody.")) and line not in deciding:
                _log.warning("%s needs a restart of evalstop up", line)
        if not deciding:
            return []
        folded = fold(self._store, make_policy(new), None)
        for _ in range(_TRIES):
            try:
                self._controller.ask(self._take_over(folded, new, deciding)).result()
            except BusyError:  # entries of this very turn are not in the log yet
                time.sleep(0.01)
                continue
            for line in deciding:
                _log.warning("reloaded: %s", line)
            self._reloaded(new)
            return deciding
        message = "the log did not come to rest: try again"
        raise InputError(message)

    def _take_over(
        self, folded: Folded, new: Settings, lines: list[str]
    ) -> Callable[[Situation], Sequence[Event]]:
        """Return what catches up and swaps, on the deciding thread, and logs the change."""
        position: list[Any] = [folded.recovered]

        def build(situation: Situation) -> Sequence[Event]:
            since = position[0]
            position[0] = recover(
                self._store.read(after=since.sequence), folded.kernel, folded.ledger, since
            )
            if position[0].sequence != self._controller.sequence:
                message = "the log is still being written"
                raise BusyError(message)
            self._controller.kernel.policy = folded.kernel.policy
            now = situation.now
            return [
                OperatorCommanded(
                    time=now, command="reload", actor="evalstop", note="; ".join(lines)
                ),
                OperatorCommanded(
                    time=now, command=CONFIGURE, actor="evalstop", note=words_of(new)
                ),
            ]

        return build

    def troubles(self) -> list[str]:
        """Return why the newest settings are not in force, if they are not."""
        return [self.problem] if self.problem else []
