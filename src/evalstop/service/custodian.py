"""The thread that takes checkpoints into custody while jobs run, and lets losers go."""

from __future__ import annotations

import logging
import math
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalstop.core.errors import EvalStopError, TornCheckpointError
from evalstop.core.events import CheckpointSaved
from evalstop.custody import find, inspect, scored_pins, to_keep
from evalstop.service.carry_out import launch_of
from evalstop.service.explain import sign_of_job

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from evalstop.core.events import Event
    from evalstop.custody import Found
    from evalstop.ports import CheckpointStore, Pin, SnapshotStore
    from evalstop.service.controller import Controller, Situation
    from evalstop.service.ledger import JobRecord

__all__ = ["Custodian"]

_log = logging.getLogger(__name__)

_ANSWER_S = 30.0


class Custodian:
    """Looks into the checkpoint folders of running jobs.

    Args:
        store: where pins are made.
        documents: where launch records lie: they name the folders.
        every_s: seconds between looks at each job.
        settle_s: a checkpoint that changed less than this long ago may still be growing.
        top: how many of a job's best to keep, beside its last.
        unscored: how many of the newest that have no score yet to keep.
    """

    def __init__(
        self,
        store: CheckpointStore,
        documents: SnapshotStore,
        *,
        every_s: float = 1.0,
        settle_s: float = 1.0,
        top: int = 1,
        unscored: int = 3,
    ) -> None:
        self._store = store
        self._documents = documents
        self._every_s = every_s
        self._settle_s = settle_s
        self._top = top
        self._unscored = unscored
        self._in_use: Callable[[str], Collection[int]] = lambda _: ()
        self._controller: Controller | None = None
        self._folders: dict[str, Path | None] = {}
        self._known: dict[str, dict[str, tuple[float, ...]]] = {}
        self._refused: dict[str, str] = {}
        self._fresh: dict[str, set[str]] = {}
        self._attempts: dict[tuple[str, str], int] = {}
        self._soon: set[str] = set()
        self._taking = threading.Lock()
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def attach(self, controller: Controller) -> None:
        """Name the controller that facts go to."""
        self._controller = controller

    def keep_in_use(self, in_use: Callable[[str], Collection[int]]) -> None:
        """Never let go of the steps that ``in_use`` names: somebody reads them now."""
        self._in_use = in_use

    def start(self) -> None:
        """Begin to look."""
        self._thread = threading.Thread(target=self._run, name="custodian", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End after the current look."""
        self._ended.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)

    def look_soon(self, job: str) -> None:
        """Look at a job before its turn: it has just reported."""
        if self.folder_of(job) is not None:
            self._soon.add(job)
            self._wake.set()

    def _run(self) -> None:
        next_round = time.monotonic()
        while not self._ended.is_set():
            self._wake.wait(max(0.0, next_round - time.monotonic()))
            self._wake.clear()
            if time.monotonic() >= next_round:
                self._soon.clear()
                jobs = self._running()
                next_round = time.monotonic() + self._every_s
            else:
                jobs = [self._soon.pop() for _ in range(len(self._soon))]
            for job in jobs:
                try:
                    self.look(job)
                except (EvalStopError, OSError) as error:
                    self._refused[job] = str(error)
                    _log.warning("custody of %s: %s", job, error)

    def _running(self) -> list[str]:
        assert self._controller is not None
        return [
            name
            for name, job in list(self._controller.kernel.state.view.jobs.items())
            if job.held_gpus
        ]

    # -- one look

    def look(self, job: str) -> None:
        """Take new whole checkpoints of a job into custody, log them, and let losers go."""
        assert self._controller is not None
        folder = self.folder_of(job)
        record = self._controller.ledger.jobs.get(job)
        if folder is None or record is None:
            return
        taken = [self._take(job, record, found) for found in find(folder)]
        if any(taken):
            self.let_go(job, record)

    def folder_of(self, job: str) -> Path | None:
        """Return where a job writes its checkpoints, None where that is not known."""
        assert self._controller is not None
        if job not in self._controller.ledger.jobs:
            return None
        if job not in self._folders:
            launch = launch_of(self._documents, job)
            folder = None if launch is None or not launch.checkpoints else Path(launch.checkpoints)
            self._folders[job] = folder
        return self._folders[job]

    def secure(self, job: str, attempts: Mapping[int, int]) -> None:
        """Take the checkpoints of these steps into custody before their scores are answered.

        Whoever reports a score says that its checkpoint is written: it need not settle. So the
        best score that a reporter was ever answered for is backed, whatever happens next.

        Args:
            job: whose.
            attempts: the attempt that each step is reported under.
        """
        assert self._controller is not None
        folder = self.folder_of(job)
        record = self._controller.ledger.jobs.get(job)
        if folder is None or record is None:
            return
        for found in find(folder):
            if found.step in attempts:
                self._take(job, record, found, attempt=attempts[found.step])
        with self._taking:
            self._fresh.pop(job, None)

    def _take(
        self, job: str, record: JobRecord, found: Found, *, attempt: int | None = None
    ) -> bool:
        """Take one checkpoint, if it is new and whole; with an attempt it need not settle."""
        with self._taking:
            known = self._known.setdefault(job, {})
            # Taken since the last report, before it was heard of a new attempt: it is of that.
            fresh = attempt is not None and found.name in self._fresh.get(job, ())
            try:
                state = _state(Path(found.path))
                seen = known.get(found.name) == state and not fresh
                if seen and (attempt is None or self._is_pinned(job, found)):
                    return False
                changed_ago = time.time() - inspect(Path(found.path)).changed_at
                if changed_ago < self._settle_s and attempt is None:
                    return False
                run = max(0, record.newest[0]) if attempt is None else attempt
                if known.get(found.name) == state and not fresh:  # let go, and now scored
                    run = min(run, self._attempts[job, found.name])
                pin = self._store.pin(job, found.step, found.path, attempt=run, scored=not fresh)
            except (TornCheckpointError, OSError) as error:
                self._refused[job] = str(error)
                return False
            self._refused.pop(job, None)
            known[found.name] = state
            self._attempts[job, found.name] = pin.attempt
            # What is saved right after its own report belongs to that: evaluated, then saved.
            if attempt is None and record.newest[1] != found.step:
                self._fresh.setdefault(job, set()).add(found.name)
        if record.saved.get(found.step) != found.name:
            self._log_saved(job, found)
        return True

    def _is_pinned(self, job: str, found: Found) -> bool:
        """Whether a checkpoint is held; what was let go before it was scored is taken again."""
        held = {(pin.step, pin.name) for pin in self._store.pins(job)}
        return (found.step, found.name) in held

    def _log_saved(self, job: str, found: Found) -> None:
        assert self._controller is not None

        def build(situation: Situation) -> Sequence[Event]:
            if situation.ledger.jobs[job].saved.get(found.step) == found.name:
                return []
            return [
                CheckpointSaved(time=situation.now, job=job, step=found.step, checkpoint=found.name)
            ]

        self._controller.ask(build).result(timeout=_ANSWER_S)

    def let_go(self, job: str, record: JobRecord) -> None:
        """Unpin what is neither best nor last nor waiting for its score."""
        with self._taking:  # what is just being secured for a report must not go
            self._let_go(job, record)

    def _let_go(self, job: str, record: JobRecord) -> None:
        pins = list(self._store.pins(job))
        keys = {(pin.attempt, pin.step) for pin in pins}
        given = scored_pins(pins, record.scored)
        always = set()
        for epoch, best in record.bests.items():  # also of earlier eval epochs
            of_epoch = scored_pins(pins, record.scores_of[epoch])
            wanted = (best.attempt, best.step)
            always |= {key for key, score in of_epoch.items() if score == wanted}
        if record.stop is not None:
            always |= {key for key in keys if key[1] == record.stop.best_step}
        in_use = set(self._in_use(job))
        always |= {key for key in keys if key[1] in in_use}
        scores = {key: record.scored[score] for key, score in given.items()}
        keep = to_keep(keys, scores, top=self._top, unscored=self._unscored, always=always)
        for pin in pins:
            if (pin.attempt, pin.step) not in keep:
                self._store.unpin(pin)

    # -- answers

    def best(self, job: str, record: JobRecord) -> dict[str, Any]:
        """Return the best score, the best saved score, and the verified path of the latter."""
        sign = sign_of_job(record.spec)
        best = record.best
        saved = self._best_saved(job, record)
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
        }

    def last(self, job: str) -> str | None:
        """Return the verified path of the newest whole checkpoint in custody, None without one."""
        pins = sorted(self._store.pins(job), key=lambda pin: (pin.attempt, pin.step))
        return next((pin.path for pin in reversed(pins) if self._whole(pin)), None)

    def _best_saved(self, job: str, record: JobRecord) -> tuple[tuple[int, int], str] | None:
        """Return (attempt, step) of the best score that has a whole checkpoint, and its path."""
        pins = list(self._store.pins(job))
        given = scored_pins(pins, record.scored)
        by_key = {(pin.attempt, pin.step): pin for pin in pins}
        for key in sorted(given, key=lambda key: (-record.scored[given[key]], key[1], key[0])):
            if self._whole(by_key[key]):
                return given[key], by_key[key].path
        return self._best_elsewhere(record)

    @staticmethod
    def _best_elsewhere(record: JobRecord) -> tuple[tuple[int, int], str] | None:
        """Return the same for checkpoints that reporters name by absolute paths, not in custody."""
        best, scored = record.best, record.scored
        for attempt, step in sorted(scored, key=lambda key: (-scored[key], key[1], key[0])):
            is_best = best is not None and (best.attempt, best.step) == (attempt, step)
            named = (best.checkpoint if best and is_best else None) or record.saved.get(step)
            if named is None or not Path(named).is_absolute():
                continue
            try:
                inspect(Path(named))
            except TornCheckpointError:
                continue
            return (attempt, step), named
        return None

    def _whole(self, pin: Pin) -> bool:
        try:
            self._store.verify(pin)
        except TornCheckpointError as error:
            _log.warning("a pinned checkpoint is damaged: %s", error)
            return False
        return True

    def troubles(self) -> list[str]:
        """Return what could not be taken into custody, in sentences."""
        assert self._controller is not None
        live = self._controller.kernel.state.view.jobs
        return [f"custody of {job!r}: {why}" for job, why in self._refused.items() if job in live]


def _state(path: Path) -> tuple[float, ...]:
    """Return what changes when a checkpoint does: times and number of its entries."""
    if path.is_file():
        return (path.stat().st_mtime, path.stat().st_size)
    entries = list(path.rglob("*"))
    return (len(entries), max((entry.stat().st_mtime for entry in entries), default=0.0))
