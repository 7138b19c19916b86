"""The thread that pulls scores in: from the files of each job, and from the evaluator.

A source that raises, or that takes long, holds up no other: each is polled in a small pool, and
not again before it has answered. What it finds goes to the controller as facts; what the log has
already is left out there.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from evalstop.core.events import EvalReported
from evalstop.feedback.evaluator import Evaluator, EvaluatorSettings
from evalstop.service.candidates import Candidates
from evalstop.service.carry_out import launch_of
from evalstop.service.facts import in_order
from evalstop.service.ledger import report_identity, with_checkpoint
from evalstop.service.sources import sources_of
from evalstop.traces.names import find, unknown_metric

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from evalstop.config.settings import FeedbackSettings
    from evalstop.core.events import Event
    from evalstop.ports import (
        CheckpointStore,
        EventStore,
        FeedbackSource,
        Reading,
        SnapshotStore,
    )
    from evalstop.service.controller import Controller, Situation
    from evalstop.service.live_watches import Watched

__all__ = ["Puller", "SourcesOf", "make_puller"]

_log = logging.getLogger(__name__)

BEFORE_UNDO = "before-undo"
"""Kind of the documents that count what a job's sources held when it was undone."""

_AT_ONCE = 4
_EMPTY_ANSWERS = 3
_ANSWER_S = 30.0
_PATIENCE_S = 2.0
"""Seconds that sources may take to answer when all ends."""

SourcesOf = Callable[[str], Sequence["FeedbackSource"]]
"""Returns the sources of a job's own scores; asked once, when the job is first seen to run."""


def make_puller(
    settings: FeedbackSettings,
    *,
    controller: Controller,
    documents: SnapshotStore,
    store: EventStore,
    pins: CheckpointStore,
    watches: Mapping[str, Watched],
    folder: Path,
) -> Puller:
    """Return a puller of everything that the settings and the jobs name.

    Args:
        settings: ``[feedback]``.
        controller: who takes facts.
        documents: where launch records lie.
        store: the log.
        pins: custody of checkpoints.
        watches: curves so far, by job.
        folder: where evaluations are kept.

    Raises:
        InputError: the evaluator's command cannot be used.
    """

    def of_job(job: str) -> Sequence[FeedbackSource]:
        watch = watches.get(job)
        logged = [] if watch is None else watch.series
        return sources_of(controller.ledger.jobs[job].spec, launch_of(documents, job), logged)

    def logged_of(job: str) -> set[int]:
        return {
            report_identity(entry.event.metric, entry.event.point)
            for entry in store.read_job(job)
            if isinstance(entry.event, EvalReported)
        }

    shared: list[FeedbackSource] = []
    if settings.evaluate:
        how = EvaluatorSettings(
            command=settings.evaluate,
            folder=folder,
            gpus=settings.gpus,
            devices=settings.devices,
            at_once=settings.at_once,
            time_limit_s=settings.time_limit_s,
            tries=settings.tries,
            suite=settings.suite,
        )
        shared.append(Evaluator(how, Candidates(controller, pins)))
    return Puller(
        controller,
        of_job,
        logged_of=logged_of,
        documents=documents,
        shared=shared,
        every_s=settings.every_s,
    )


class Before(Struct):
    """Reports of a job that are no news, though its sources hold them.

    Attributes:
        always: identities of reports that never are.
        times: how often a report is no news yet: so often was it there before an undo.
    """

    always: set[int] = msgspec.field(default_factory=set)
    times: Counter[int] = msgspec.field(default_factory=Counter)

    def has(self, identity: int) -> bool:
        """Return whether a report, met once more, is no news."""
        if self.times.get(identity, 0):
            self.times[identity] -= 1
            return True
        return identity in self.always


_NOTHING = Before()


class Puller:
    """Polls sources and hands what they say to the controller.

    Args:
        controller: who takes facts.
        sources_of: the sources of one job.
        logged_of: identities of all reports of a job in the log, those before an undo included:
            its files still hold them, and told again they would stop it again.
        documents: where is kept what a job's sources held when it was undone.
        shared: sources that speak for all jobs: the evaluator, trackers.
        every_s: seconds between polls of each source.
    """

    def __init__(
        self,
        controller: Controller,
        sources_of: SourcesOf,
        *,
        logged_of: Callable[[str], set[int]] = lambda _: set(),
        documents: SnapshotStore | None = None,
        shared: Sequence[FeedbackSource] = (),
        every_s: float = 1.0,
    ) -> None:
        self._controller = controller
        self._sources_of = sources_of
        self._logged_of = logged_of
        self._documents = documents
        self._logged: dict[str, Before] = {}
        self._apart: dict[str, Sequence[FeedbackSource]] = {}
        self._shared = list(shared)
        self._every_s = every_s
        self._of_job: dict[str, Sequence[FeedbackSource]] = {}
        self._under_way: dict[int, Future[None]] = {}
        self._untold: dict[int, Sequence[Reading]] = {}
        self._problems: dict[tuple[str, int], str] = {}
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="puller")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="puller", daemon=True)

    def start(self) -> None:
        """Begin to poll."""
        self._thread.start()

    def close(self) -> None:
        """End; a source that hangs is left behind."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)
        wait(self._under_way.values(), timeout=_PATIENCE_S)
        self._pool.shutdown(wait=False, cancel_futures=True)
        of_jobs = [*self._of_job.values(), *self._apart.values()]
        for source in [*self._shared, *(source for each in of_jobs for source in each)]:
            if not self._is_under_way(source):
                _close(source)

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            try:
                self.poll()
            except Exception:  # noqa: BLE001 -- fail open (R30): one job's sources must not end everybody's
                _log.exception("a round of polling was broken off; it begins again")

    def poll(self) -> None:
        """Ask every source that is not being asked still; does not wait for answers."""
        live = self._controller.kernel.state.view.jobs
        running = [name for name, job in list(live.items()) if job.held_gpus]
        for name in running:
            if name not in self._of_job:
                self._of_job[name] = self._open(name)
        for name in self._of_job.keys() - set(running):
            if not any(self._is_under_way(source) for source in self._of_job[name]):
                self._last_look(name)
        for name, sources in self._of_job.items():
            for source in sources:
                self._ask(name, source)
        for source in self._shared:
            self._ask("", source)

    def wait(self, timeout: float = 120.0) -> None:
        """Wait until every source that is being asked has answered; for tests of order."""
        for future in list(self._under_way.values()):
            future.result(timeout)

    def in_use(self, job: str) -> set[int]:
        """Return the steps of a job whose checkpoints a source reads now: custody keeps them."""
        asked = (getattr(source, "in_use", None) for source in self._shared)
        return set().union(*(in_use(job) for in_use in asked if in_use is not None))

    def troubles(self) -> list[str]:
        """Return what could not be read or found, in sentences."""
        found = [sentence for sentence in list(self._problems.values()) if sentence]
        for source in self._shared:
            found += [
                f"evaluation of {job!r} at step {step}: {why}"
                for (job, step), why in list(getattr(source, "problems", {}).items())
            ]
        return found

    def set_apart(self, job: str) -> None:
        """Read what a job's sources hold now, and never tell it: the job is about to be undone.

        What they hold from then on is news, be it the same to the last digit: a run that is
        repeated from its best checkpoint with its old seeds gives the same scores.
        """
        sources = self._sources_of(job)
        held: Counter[int] = Counter()
        try:
            for source in sources:
                held.update(_drained(source))
        except Exception as error:  # noqa: BLE001 -- then what the log has is left out, as ever
            _log.warning("what %s said before its undo cannot be set apart: %s", job, error)
            return
        if self._documents is not None:
            data = msgspec.json.encode([[str(one), count] for one, count in held.items()])
            self._documents.put(BEFORE_UNDO, job, data)
        self._apart[job] = sources

    def _open(self, job: str) -> Sequence[FeedbackSource]:
        try:
            if job in self._apart:
                self._logged[job] = Before()
                return self._apart.pop(job)
            self._logged[job] = self._before(job)
            return self._sources_of(job)
        except Exception as error:  # noqa: BLE001 -- as in _look
            self._problems[job, 0] = f"the scores of {job!r} cannot be followed: {error}"
            return ()

    def _before(self, job: str) -> Before:
        """Return what of a job's sources, read from their beginning, is no news."""
        kept = None if self._documents is None else self._documents.get(BEFORE_UNDO, job)
        if kept is None:
            return Before(always=self._logged_of(job))
        rows = msgspec.json.decode(kept, type=list[tuple[str, int]])
        return Before(times=Counter({int(one): count for one, count in rows}))

    def _last_look(self, job: str) -> None:
        """Read to the end what a job wrote before it was gone, and let its files go."""
        for source in self._of_job.pop(job):
            self._look(job, source)
            self._problems.pop((job, id(source)), None)
            self._under_way.pop(id(source), None)
            self._untold.pop(id(source), None)
            _close(source)
        self._problems.pop((job, 0), None)
        self._logged.pop(job, None)

    def _ask(self, job: str, source: FeedbackSource) -> None:
        if not self._is_under_way(source):
            self._under_way[id(source)] = self._pool.submit(self._look, job, source)

    def _is_under_way(self, source: FeedbackSource) -> bool:
        future = self._under_way.get(id(source))
        return future is not None and not future.done()

    def _look(self, job: str, source: FeedbackSource) -> None:
        try:
            readings = [*self._untold.pop(id(source), ()), *source.readings()]
            if readings:
                self._tell(source, readings)
        except Exception as error:  # noqa: BLE001 -- fail open (R30): whatever a source raises, polling goes on
            if not self._problems.get((job, id(source))):
                _log.warning("a source of %s fails: %s", job or "all jobs", error)
            self._problems[job, id(source)] = f"the scores of {job or 'all jobs'!r}: {error}"
        else:
            self._problems[job, id(source)] = self._missing(job, source)

    def _tell(self, source: FeedbackSource, readings: Sequence[Reading]) -> None:
        """Have readings logged; those that the controller did not look at are told again.

        A source tells each reading once, and a disk may be full, or a database away, for hours.
        What it has looked at it writes itself, as soon as it can.
        """
        looked_at = given_up = False

        def build(situation: Situation) -> Sequence[Event]:
            nonlocal looked_at
            if given_up:
                return ()
            looked_at = True
            return _facts(readings, situation, self._logged)

        try:
            self._controller.ask(build).result(timeout=_ANSWER_S)
        finally:
            given_up = True
            if not looked_at:
                self._untold[id(source)] = readings

    def _missing(self, job: str, source: FeedbackSource) -> str:
        """Return a sentence where a source has metrics, and the watched one is not among them."""
        names = getattr(source, "names", None)
        record = self._controller.ledger.jobs.get(job)
        if not names or record is None:
            return ""
        wanted = record.spec.labels.get("metric", "")
        if find(wanted, names) is not None:
            return ""
        return f"job {job!r} is blind: {unknown_metric(wanted, names)}"


def _facts(
    readings: Sequence[Reading], situation: Situation, logged: Mapping[str, Before]
) -> list[EvalReported]:
    events: list[EvalReported] = []
    taken: set[tuple[str, int]] = set()
    for reading in readings:
        record = situation.ledger.jobs.get(reading.job)
        if record is None:
            continue
        identity = report_identity(reading.metric, reading.point)
        known = identity in record.reports or (reading.job, identity) in taken
        if known or logged.get(reading.job, _NOTHING).has(identity):
            continue
        taken.add((reading.job, identity))
        events.append(
            EvalReported(
                time=situation.now,
                job=reading.job,
                point=with_checkpoint(reading.point, record.saved.get(reading.point.step)),
                metric=reading.metric,
                reported_at=reading.reported_at,
            )
        )
    return in_order(events)


def _drained(source: FeedbackSource) -> Iterator[int]:
    """Yield the identities of everything that a source holds now; it may answer in pieces."""
    empty = 0
    while empty < _EMPTY_ANSWERS:
        readings = source.readings()
        empty = 0 if readings else empty + 1
        for reading in readings:
            yield report_identity(reading.metric, reading.point)


def _close(source: FeedbackSource) -> None:
    close = getattr(source, "close", None)
    if close is not None:
        close()
