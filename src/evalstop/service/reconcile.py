"""Level as well as edge: hold the picture against what the backend lists, tell the difference.

A pure comparison; what it returns are facts for the log. It never undoes a promise that is still
being carried out, and it takes a job's absence for a fact only when it is seen again and again.

It is made in two steps. `Reconciler.glance` may run on any thread, while the picture moves on: it
drops the jobs that run and are listed as running, which in a large cluster are nearly all. What is
left is compared on the deciding thread, so that nobody waits there for ten thousand jobs at rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from evalstop.core.events import (
    CapacityChanged,
    Event,
    JobEnded,
    JobPreempted,
    JobStarted,
    JobSubmitted,
    OperatorCommanded,
)
from evalstop.core.job import Outcome, Phase
from evalstop.ports import JobReport, RunState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evalstop.core.job import JobView
    from evalstop.core.policy import ClusterView
    from evalstop.ports import Listing
    from evalstop.service.ledger import JobRecord, Ledger

__all__ = ["Difference", "Glance", "Look", "Reconciler"]

ABSENT_LISTINGS = 3
"""Listings in a row without a running job until it counts as lost."""

# Bound once: looking up a member of an Enum costs 0.25 us on CPython 3.11.
_RUNNING = Phase.RUNNING
_WAITING = Phase.WAITING
_LISTED_RUNNING = RunState.RUNNING

_OVER = (RunState.RELEASED, RunState.QUARANTINED)


class Difference(Struct, frozen=True, kw_only=True):
    """What a listing says beyond the picture.

    Attributes:
        events: facts for the log, in order.
        forget: jobs whose end is in the log and that the backend may drop.
        strays: jobs that run though the log says they ended.
        alerts: what people should know, in sentences.
    """

    events: tuple[Event, ...] = ()
    forget: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    alerts: tuple[str, ...] = ()


class Glance(Struct, frozen=True, kw_only=True):
    """The part of a listing that may say something new.

    Attributes:
        gpus: GPUs in service.
        listed: reports of jobs that are not known to be at rest, by job.
        absent: jobs of the picture that the listing does not hold.
    """

    gpus: int
    listed: Mapping[str, JobReport]
    absent: tuple[str, ...] = ()


class Look(Struct, frozen=True, kw_only=True):
    """What a comparison goes by, beside the listing.

    Attributes:
        now: the time to stamp.
        carried_out: keys of commands that were with the backend before the listing began.
        failed: jobs whose start was given up, with the reason.
    """

    now: float
    carried_out: Mapping[str, bool] = {}
    failed: Mapping[str, str] = {}


class Reconciler:
    """Compares listings with the picture; remembers only how often a job was absent."""

    def __init__(self) -> None:
        self._absent: dict[str, int] = {}

    def glance(self, listing: Listing, view: ClusterView, ledger: Ledger) -> Glance:
        """Leave out the jobs that run and are listed as running.

        The picture may move on meanwhile. That does no harm: a job left out was running when it
        was looked at, and what happens to it now shows in the next listing.
        """
        live, known = dict(view.jobs), ledger.jobs
        listed = {}
        for report in listing.jobs:
            job = live.pop(report.job, None)
            if (
                job is None
                or job.phase is not _RUNNING
                or report.state is not _LISTED_RUNNING
                or 0 < report.attempt < known[report.job].launched
                or report.job in self._absent
            ):
                listed[report.job] = report
        absent = tuple(name for name, job in live.items() if job.phase is not _WAITING)
        return Glance(gpus=listing.gpus, listed=listed, absent=absent)

    def compare(self, glance: Glance, view: ClusterView, ledger: Ledger, look: Look) -> Difference:
        """Return what the listing says beyond the picture."""
        events: list[Event] = []
        forget: list[str] = []
        strays: list[str] = []
        alerts: list[str] = []
        if glance.gpus != view.total_gpus:
            events.append(CapacityChanged(time=look.now, gpus=glance.gpus))
        for name, report in glance.listed.items():
            record = ledger.jobs.get(name)
            if record is None and report.spec is None:
                alerts.append(f"the backend runs {name!r}, which the log does not know")
            elif record is None:
                events += _first_sight(report, look)
            elif record.outcome is None:
                continue
            elif report.state in _OVER:
                forget.append(name)
            elif _is_stray(record, report):
                strays.append(name)
            else:
                events += _come_back(report, look)
        for name in (*glance.listed, *glance.absent):
            job = view.jobs.get(name)
            if job is not None:
                events += self._job(job, ledger.jobs[name], glance.listed.get(name), look)
        return Difference(
            events=tuple(events), forget=tuple(forget), strays=tuple(strays), alerts=tuple(alerts)
        )

    def _job(
        self, job: JobView, record: JobRecord, report: JobReport | None, look: Look
    ) -> Iterator[Event]:
        if job.phase is Phase.RELEASING and not look.carried_out.get(record.stop_key):
            return  # a start may still be on its way; the end counts once the stop has passed it
        if report is not None and 0 < report.attempt < record.launched:
            report = None  # the run before this one
        if report is None:
            yield from self._unlisted(job, record, look)
            return
        self._absent.pop(job.id, None)
        unseen = report.spec is None and report.attempt > record.began
        if job.phase is Phase.RELEASING and unseen:
            # It was stopped before anybody had seen it run; that it ran is a fact all the same.
            yield JobStarted(time=look.now, job=job.id, gpus=report.gpus or job.gpus)
        if report.state in _OVER:
            yield from _over(job, record, report, look)
        elif report.state is not RunState.QUEUED and job.phase in {Phase.STARTING, Phase.WAITING}:
            yield JobStarted(time=look.now, job=job.id, gpus=report.gpus or job.gpus)
        elif report.state is RunState.QUEUED and report.spec is not None and job.held_gpus:
            yield JobPreempted(time=look.now, job=job.id)  # requeued past us (attach mode)

    def _unlisted(self, job: JobView, record: JobRecord, look: Look) -> Iterator[Event]:
        match job.phase:
            case Phase.RELEASING:
                yield JobEnded(time=look.now, job=job.id, outcome=_outcome_of_stop(record))
            case Phase.STARTING if job.id in look.failed:
                yield JobEnded(time=look.now, job=job.id, outcome=Outcome.FAILED)
            case Phase.RUNNING | Phase.PREEMPTING:
                self._absent[job.id] = self._absent.get(job.id, 0) + 1
                if self._absent[job.id] >= ABSENT_LISTINGS:
                    del self._absent[job.id]
                    yield JobEnded(time=look.now, job=job.id, outcome=Outcome.FAILED)
            case _:
                pass


def _first_sight(report: JobReport, look: Look) -> Iterator[Event]:
    if report.spec is None:
        return
    yield JobSubmitted(time=look.now, job=report.spec)
    if report.state in {RunState.RUNNING, RunState.RELEASING}:
        yield JobStarted(time=look.now, job=report.job, gpus=report.gpus)
    elif report.state in _OVER:
        yield JobEnded(time=look.now, job=report.job, outcome=_own_outcome(report))


def _come_back(report: JobReport, look: Look) -> Iterator[Event]:
    """Tell that a job which had ended is in its cluster's queue again: its owner requeued it."""
    if report.spec is None or report.state is RunState.RELEASING:
        return  # releasing: after a restart nobody can prove the release of GPUs that others hold
    note = "requeued by its owner after it had ended"
    yield OperatorCommanded(
        time=look.now, command="undo", actor="its owner", job=report.job, note=note
    )
    yield from _first_sight(report, look)


def _over(job: JobView, record: JobRecord, report: JobReport, look: Look) -> Iterator[Event]:
    """Tell the end of a run whose GPUs are proven free, or written off."""
    if job.phase is Phase.STARTING and job.id not in look.failed:
        yield JobStarted(time=look.now, job=job.id, gpus=report.gpus or job.gpus)
    if job.phase is Phase.PREEMPTING and report.stopped and report.state is RunState.RELEASED:
        yield JobPreempted(time=look.now, job=job.id)
        return
    if job.phase is Phase.WAITING and record.launched and report.spec is None:
        return  # the run before this wait
    if job.id in look.failed:
        outcome = Outcome.FAILED
    elif record.stop is not None:
        outcome = _outcome_of_stop(record)  # R22: whatever the exit code says
    else:
        outcome = _own_outcome(report)
    yield JobEnded(time=look.now, job=job.id, outcome=outcome)


def _outcome_of_stop(record: JobRecord) -> Outcome:
    by_policy = record.stop is None or record.stop.author == "policy"
    return Outcome.STOPPED_BY_POLICY if by_policy else Outcome.CANCELLED


def _own_outcome(report: JobReport) -> Outcome:
    if report.reason == "cancelled":
        return Outcome.CANCELLED
    return Outcome.COMPLETED if report.exit_code == 0 else Outcome.FAILED


def _is_stray(record: JobRecord, report: JobReport) -> bool:
    """Whether a job runs again that was stopped, or one of ours that the log says is over.

    What its owner cancelled and requeued in a cluster of its own is not ours to end.
    """
    ours = record.launched > 0 and report.spec is None
    return ours or record.stop is not None
