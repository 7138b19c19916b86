"""The thread that takes checkpoints into custody while jobs run, and lets losers go."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from evalstop.core.errors import CustodyError, EvalStopError, TornCheckpointError
from evalstop.core.events import CheckpointSaved
from evalstop.custody import Found, is_url, scored_pins, to_keep
from evalstop.custody.places import FilePlace
from evalstop.service.carry_out import launch_of
from evalstop.service.kept import Kept
from evalstop.service.lanes import Lanes
from evalstop.service.named_urls import NamedUrls, Wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

    from evalstop.core.events import Event
    from evalstop.custody.places import Place
    from evalstop.ports import CheckpointStore, SnapshotStore
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
        place: where trainers write; left out, the file system.
        urls: what jobs named by URL; left out, none may be touched.
        url_every_s: seconds between looks at a job in an object store: each costs requests.
        wait_s: seconds that a report, or a stop, waits for a pin in an object store.
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
        place: Place | None = None,
        urls: NamedUrls | None = None,
        url_every_s: float = 10.0,
        wait_s: float = 5.0,
    ) -> None:
        self._store = store
        self._place: Place = place or FilePlace()
        self._urls = urls or NamedUrls(documents)
        self.kept = Kept(store, self._place, self._urls)
        self._lanes = Lanes()
        self._url_every_s = url_every_s
        self._wait_s = wait_s
        self._next_url_round = 0.0
        self._to_tidy: set[str] = set()
        self._is_torn: dict[tuple[str, str], bool] = {}
        self._documents = documents
        self._every_s = every_s
        self._settle_s = settle_s
        self._top = top
        self._unscored = unscored
        self._in_use: Callable[[str], Collection[int]] = lambda _: ()
        self._controller: Controller | None = None
        self._folders: dict[str, str | None] = {}
        self._known: dict[str, dict[str, Hashable]] = {}
        self._first_seen: dict[tuple[str, str], tuple[Hashable, float]] = {}
        self._refused: dict[str, str] = {}
        self._fresh: dict[str, set[str]] = {}
        self._attempts: dict[tuple[str, str], int] = {}
        self._soon: set[str] = set()
        self._locks: dict[str, threading.Lock] = {}
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
        """End after the current look; one at an object store that hangs is left behind."""
        self._ended.set()
        self._wake.set()
        self._lanes.close()
        if self._thread is not None:
            self._thread.join(timeout=5.0)

    def look_soon(self, job: str) -> None:
        """Look at a job before its turn: it has just reported."""
        if self.folder_of(job) is not None or self._in_objects(job):
            self._soon.add(job)
            self._wake.set()

    def taking(self, job: str) -> threading.Lock:
        """Return what is held while a job's checkpoints are taken or let go."""
        return self._locks.setdefault(job, threading.Lock())

    def _run(self) -> None:
        next_round = time.monotonic()
        while not self._ended.is_set():
            self._wake.wait(max(0.0, next_round - time.monotonic()))
            self._wake.clear()
            if time.monotonic() >= next_round:
                self._soon.clear()
                jobs = self._due()
                next_round = time.monotonic() + self._every_s
            else:
                jobs = [self._soon.pop() for _ in range(len(self._soon))]
            for job in jobs:
                look = partial(self._safely, job, partial(self.look, job))
                if not self._in_objects(job):
                    look()
                elif self._lanes.is_idle(job):
                    self._lanes.submit(job, look)

    def _due(self) -> list[str]:
        """Return the jobs to look at in this round: those in object stores more rarely."""
        assert self._controller is not None
        running = [
            name
            for name, job in list(self._controller.kernel.state.view.jobs.items())
            if job.held_gpus
        ]
        if time.monotonic() >= self._next_url_round:
            self._next_url_round = time.monotonic() + self._url_every_s
            return list(dict.fromkeys([*running, *self._urls.waiting()]))
        return [job for job in running if not is_url(self.folder_of(job) or "://")]

    def _in_objects(self, job: str) -> bool:
        """Whether looking at a job may ask an object store; then no thread of ours must wait."""
        return is_url(self.folder_of(job) or "") or self._urls.has(job)

    def _safely(self, job: str, act: Callable[[], None]) -> None:
        """Do something for a job; whatever it raises, other jobs, reports and stops go on (R30)."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 -- as said
            known = isinstance(error, EvalStopError | OSError)
            self._refused[job] = str(error) if known else f"{type(error).__name__}: {error}"
            _log.warning("custody of %s: %s", job, self._refused[job], exc_info=not known)

    # -- one look

    def look(self, job: str) -> None:
        """Take new whole checkpoints of a job into custody, log them, and let losers go."""
        assert self._controller is not None
        folder = self.folder_of(job)
        record = self._controller.ledger.jobs.get(job)
        if record is None:
            return
        taken: list[bool | None] = [self._take_named(job, record)]
        if folder is not None:
            taken += [self._take(job, record, found) for found in self._place.find(folder)]
        if any(taken) or job in self._to_tidy:
            self._to_tidy.discard(job)
            self.let_go(job, record)

    def folder_of(self, job: str) -> str | None:
        """Return where a job writes its checkpoints, None where it is not known or not allowed."""
        assert self._controller is not None
        record = self._controller.ledger.jobs.get(job)
        if record is None:
            return None
        if job not in self._folders:
            launch = launch_of(self._documents, job)
            folder = None if launch is None or not launch.checkpoints else launch.checkpoints
            if folder is not None and is_url(folder):
                if self._urls.why_not(record, folder):
                    folder = None
                else:
                    self._urls.open(job)
            self._folders[job] = folder
        return self._folders[job]

    def secure(
        self, job: str, attempts: Mapping[int, int], named: Mapping[int, str] | None = None
    ) -> None:
        """Take the checkpoints of these steps into custody before their scores are answered.

        Whoever reports a score says that its checkpoint is written: it need not settle. So the
        best score that a reporter was ever answered for is backed, whatever happens next. A pin in
        an object store may take longer than a reporter should wait: then it is written down, goes
        on beside, and until it is made nothing says that the score is backed.

        Args:
            job: whose.
            attempts: the attempt that each step is reported under.
            named: the URL that a step's checkpoint is reported at, where it may be touched.
        """
        assert self._controller is not None
        record = self._controller.ledger.jobs.get(job)
        if record is None:
            return
        for step, url in (named or {}).items():
            attempt = attempts.get(step, 0)
            if not self._urls.is_kept(job, url, attempt):
                self._urls.note(job, url, Wanted(step, attempt, time.time()))
        if not self._in_objects(job):
            self._secure(job, record, attempts)
        else:
            self._wait_for(job, partial(self._secure, job, record, attempts))

    def settle(self, job: str) -> None:
        """Wait, within bounds, for the pins of a job in an object store; before it is stopped."""
        if self._in_objects(job):
            self._wait_for(job, partial(self.look, job))

    def _wait_for(self, job: str, act: Callable[[], None]) -> None:
        with suppress(FutureTimeoutError, CancelledError):
            self._lanes.submit(job, partial(self._safely, job, act)).result(timeout=self._wait_s)

    def _secure(self, job: str, record: JobRecord, attempts: Mapping[int, int]) -> None:
        self._take_named(job, record)
        folder = self.folder_of(job)
        if folder is None:
            return
        for found in self._place.find(folder):
            if found.step in attempts:
                self._take(job, record, found, attempt=attempts[found.step])
        with self.taking(job):
            self._fresh.pop(job, None)

    def _take_named(self, job: str, record: JobRecord) -> bool:
        """Take what was named by URLs, oldest first: the best before what came after it."""
        taken = [self._take_url(job, record, url) for url in self._urls.wanted(job)]
        return any(taken)

    def _take_url(self, job: str, record: JobRecord, url: str) -> bool:
        """Take a checkpoint that was named by its URL."""
        wanted = self._urls.wanted(job).get(url)
        if wanted is None:
            return False
        if record.newest[0] > wanted.attempt and self._is_another(url, wanted):
            _log.warning("%s was written again before it could be kept", url)
            self._urls.done(job, url, kept=False)
            return False
        found = Found(step=wanted.step, name=url, path=url)
        kept = self._take(job, record, found, attempt=wanted.attempt) is not None
        if kept:
            self._to_tidy.add(job)
            self._urls.done(job, url, kept=True)
        elif record.outcome is not None:
            self._urls.missed(job, url, torn=self._is_torn.pop((job, url), False))
        return kept

    def _is_another(self, url: str, wanted: Wanted) -> bool:
        """Whether what lies at a URL now is what a later attempt wrote."""
        with suppress(TornCheckpointError):
            return wanted.is_before(self._place.inspect(url).changed_at)
        return False

    def _take(
        self, job: str, record: JobRecord, found: Found, *, attempt: int | None = None
    ) -> bool | None:
        """Take one checkpoint, if it is new and whole; with an attempt it need not settle.

        Returns whether it was new, None where it is not in custody: torn, unsettled, no answer.
        """
        with self.taking(job):
            known = self._known.setdefault(job, {})
            # Taken since the last report, before it was heard of a new attempt: it is of that.
            fresh = attempt is not None and found.name in self._fresh.get(job, ())
            try:
                state = self._place.state(found.path)
                seen = known.get(found.name) == state and not fresh
                if seen and (attempt is None or self._is_pinned(job, found)):
                    return False
                if attempt is None and not self._settled(job, found, state):
                    return None
                run = max(0, record.newest[0]) if attempt is None else attempt
                if known.get(found.name) == state and not fresh:  # let go, and now scored
                    run = min(run, self._attempts[job, found.name])
                pin = self._store.pin(job, found.step, found.path, attempt=run, scored=not fresh)
            except (TornCheckpointError, CustodyError, OSError) as error:
                self._refused[job] = str(error)
                if is_url(found.name):
                    self._is_torn[job, found.name] = isinstance(error, TornCheckpointError)
                return None
            self._refused.pop(job, None)
            known[found.name] = state
            self._attempts[job, found.name] = pin.attempt
            # What is saved right after its own report belongs to that: evaluated, then saved.
            if attempt is None and record.newest[1] != found.step:
                self._fresh.setdefault(job, set()).add(found.name)
        if record.saved.get(found.step) != found.name:
            try:
                self._log_saved(job, found)
            except Exception:  # the log cannot be written now: looked at anew, and told then
                known.pop(found.name, None)
                raise
        return True

    def _settled(self, job: str, found: Found, state: Hashable) -> bool:
        """Whether a checkpoint has not changed for long enough, by its times or by our watch.

        A store's clock may be far from ours.
        """
        now = time.monotonic()
        first = self._first_seen.get((job, found.name))
        if first is None or first[0] != state:
            first = self._first_seen[job, found.name] = (state, now)
        changed_ago = time.time() - self._place.inspect(found.path).changed_at
        return changed_ago >= self._settle_s or now - first[1] >= self._settle_s

    def _is_pinned(self, job: str, found: Found) -> bool:
        """Whether a checkpoint is held; what was let go before it was scored is taken again."""
        name = found.path.rpartition("/")[2]
        held = {(pin.step, pin.name) for pin in self._store.pins(job)}
        return (found.step, name) in held

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
        with self.taking(job):  # what is just being secured for a report must not go
            self._let_go(job, record)

    def _let_go(self, job: str, record: JobRecord) -> None:
        pins = list(self._store.pins(job))
        keys = {(pin.attempt, pin.step) for pin in pins}
        scored = self._urls.without_waiting(job, record.scored)
        given = scored_pins(pins, scored)
        always = set()
        for epoch, best in list(record.bests.items()):  # also of earlier eval epochs
            of_epoch = scored_pins(pins, dict(record.scores_of[epoch]))
            wanted = (best.attempt, best.step)
            always |= {key for key, score in of_epoch.items() if score == wanted}
        if record.stop is not None:
            always |= {key for key in keys if key[1] == record.stop.best_step}
        in_use = set(self._in_use(job))
        always |= {key for key in keys if key[1] in in_use}
        scores = {key: scored[score] for key, score in given.items()}
        keep = to_keep(keys, scores, top=self._top, unscored=self._unscored, always=always)
        for pin in pins:
            if (pin.attempt, pin.step) not in keep:
                self._store.unpin(pin)

    # -- answers

    def may_touch(self, record: JobRecord, url: str) -> bool:
        """Return whether a URL is one that custody looks after for a job."""
        return not self._urls.why_not(record, url)

    def is_kept(self, job: str, url: str, attempt: int) -> bool:
        """Return whether what an attempt wrote at a URL is known to be in custody."""
        return self._urls.is_kept(job, url, attempt)

    def doubts(self, record: JobRecord) -> list[str]:
        """Return what of a job's checkpoints is not verified, and why, in sentences."""
        launch = launch_of(self._documents, record.spec.id)
        folder = "" if launch is None else launch.checkpoints
        return self._urls.doubts(record, [folder] if is_url(folder) else [])

    def troubles(self) -> list[str]:
        """Return what could not be taken into custody, in sentences."""
        assert self._controller is not None
        told = {*self._controller.kernel.state.view.jobs, *self._urls.waiting()}
        refused = list(self._refused.items())  # other threads go on meanwhile
        return [f"custody of {job!r}: {why}" for job, why in refused if job in told]
