"""What is kept of a job: its best checkpoint, verified now, and its last."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalstop.core.errors import CustodyError, TornCheckpointError
from evalstop.custody import is_url, scored_pins
from evalstop.service.explain import sign_of_job

if TYPE_CHECKING:
    from evalstop.custody.places import Place
    from evalstop.ports import CheckpointStore, Pin
    from evalstop.service.ledger import JobRecord
    from evalstop.service.named_urls import NamedUrls

__all__ = ["Kept"]

_log = logging.getLogger(__name__)


class Kept:
    """Answers from custody; never from the thread that decides, since a store may be far away.

    Args:
        store: custody.
        place: where trainers write.
        urls: what jobs named by URL.
    """

    def __init__(self, store: CheckpointStore, place: Place, urls: NamedUrls) -> None:
        self._store = store
        self._place = place
        self._urls = urls

    def best(self, job: str, record: JobRecord) -> dict[str, Any]:
        """Return the best score, the best saved score, and the verified path of the latter.

        ``unverified`` says in a sentence what could not be looked at, and why.
        """
        sign = sign_of_job(record.spec)
        best = record.best
        doubts = self._urls.doubts(record)
        try:
            saved = self._best_saved(job, record)
        except CustodyError as error:
            saved = None
            doubts.insert(0, str(error))
        attempt, step = (0, None) if saved is None else saved[0]
        score = math.nan if step is None else record.scored.get((attempt, step), math.nan)
        return {
            "job": job,
            "best": None if best is None else {"step": best.step, "score": sign * best.score},
            "best_saved": None
            if step is None
            else {"step": step, "score": sign * score if math.isfinite(score) else None},
            "path": None if saved is None else saved[1],
            "backed": best is not None and (attempt, step) == (best.attempt, best.step),
            "unverified": "; ".join(doubts),
        }

    def last(self, job: str) -> str | None:
        """Return the verified path of the newest whole checkpoint in custody, None without one."""
        pins = sorted(self._store.pins(job), key=lambda pin: (pin.attempt, pin.step))
        return next((pin.path for pin in reversed(pins) if self._whole(pin)), None)

    def _best_saved(self, job: str, record: JobRecord) -> tuple[tuple[int, int], str] | None:
        """Return (attempt, step) of the best score that has a whole checkpoint, and its path."""
        pins = list(self._store.pins(job))
        scored = self._urls.without_waiting(job, record.scored)
        given = scored_pins(pins, scored)
        by_key = {(pin.attempt, pin.step): pin for pin in pins}
        for key in sorted(given, key=lambda key: (-scored[given[key]], key[1], key[0])):
            if self._whole(by_key[key]):
                return given[key], by_key[key].path
        return self._best_elsewhere(record)

    def _best_elsewhere(self, record: JobRecord) -> tuple[tuple[int, int], str] | None:
        """Return the same for checkpoints that reporters name themselves, not in custody."""
        best, scored = record.best, dict(record.scored)
        for attempt, step in sorted(scored, key=lambda key: (-scored[key], key[1], key[0])):
            is_best = best is not None and (best.attempt, best.step) == (attempt, step)
            named = (best.checkpoint if best and is_best else None) or record.saved.get(step)
            if named is None or not self._may_look(record, named):
                continue
            try:
                self._place.inspect(named)
            except TornCheckpointError:
                continue
            return (attempt, step), named
        return None

    def _may_look(self, record: JobRecord, named: str) -> bool:
        if is_url(named):
            return not self._urls.why_not(record, named)
        return Path(named).is_absolute()

    def _whole(self, pin: Pin) -> bool:
        try:
            self._store.verify(pin)
        except TornCheckpointError as error:
            _log.warning("a pinned checkpoint is damaged: %s", error)
            return False
        return True
