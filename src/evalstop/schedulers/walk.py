"""The greedy walk: who starts and who is preempted, from the first job on that fits.

Walk all jobs, running and waiting, in order of their keys; each whole gang that fits into the
GPUs left over by those before it gets them. A running job that no longer fits is preempted.

Jobs before the first waiting one that fits keep what they have, so that the walk starts there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from evalstop.core.actions import Action, Preempt, Start
from evalstop.core.job import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from evalstop.core.job import JobView
    from evalstop.core.policy import ClusterView
    from evalstop.schedulers.waiting import Entry, WaitingJobs

__all__ = [
    "PlacedEntry",
    "Plan",
    "all_but",
    "displace",
    "preempt_last",
    "start_who_fits",
    "take",
    "waits",
    "walk",
]

PlacedEntry: TypeAlias = "tuple[Entry, JobView]"
"""A running job and its key of now: compares with those who wait, as no two share a number."""

# Bound once: looking up a member of an Enum costs 0.25 us on CPython 3.11.
_PREEMPTING = Phase.PREEMPTING
_RUNNING = Phase.RUNNING
_WAITING = Phase.WAITING


class Plan:
    """What a walk has chosen, until its preemptions are facts.

    Attributes:
        time: when it was; at another time keys are others.
        leaving: who is to be preempted and runs still.
        chosen: who is to start and waits still, in order; not among those who wait otherwise.
    """

    __slots__ = ("chosen", "leaving", "time")

    def __init__(self, time: float, preempts: Sequence[Action], chosen: list[Entry]) -> None:
        self.time = time
        self.leaving = {action.job for action in preempts if type(action) is Preempt}
        self.chosen = chosen


def take(entry: Entry, waiting: WaitingJobs, view: ClusterView) -> int:
    """Let a job wait no longer; return its GPUs, 0 if it does not wait in truth."""
    waiting.discard(entry[2])
    job = view.jobs.get(entry[2])
    return 0 if job is None or job.phase is not _WAITING else entry[3]


def waits(entry: Entry, view: ClusterView) -> bool:
    """Return whether a job waits in truth."""
    job = view.jobs.get(entry[2])
    return job is not None and job.phase is _WAITING


def preempt_last(
    backwards: Iterable[JobView], missing: int, others: Sequence[Entry]
) -> tuple[list[Action] | None, int]:
    """Walk for one waiting job alone, from the end; return who is to be preempted, last one first.

    The first that fits takes ``missing`` GPUs of those who run behind it. All of them but the last
    few keep what they have, so that the walk need not look at them. Second, return how many these
    are, 0 if too few run. None if another waiting job fits into GPUs that are left over.

    Args:
        backwards: those behind the waiting job, the last one first, whatever phase they are in.
        missing: GPUs that it needs beside the free ones, > 0.
        others: who waits beside it; none of them fits among those who keep what they have.
    """
    last: list[JobView] = []
    for number, job in enumerate(backwards, 1):
        phase = job.phase
        if phase is _RUNNING or phase is _PREEMPTING:
            last.append(job)
            missing -= job.held_gpus
            if missing <= 0:
                if any(other[3] <= -missing for other in others):
                    return None, number
                return all_but(-missing, last), number
    return None, 0


def displace(
    tail: Sequence[PlacedEntry], waiting: WaitingJobs, starts: list[Action], view: ClusterView
) -> Sequence[Action]:
    """Walk the rest of all jobs in order; return who is to be preempted, and who starts.

    A chosen job whose GPUs are not free yet goes on waiting: the facts of the preemptions bring
    the next fill.

    Args:
        tail: the jobs that run or are being preempted, from the first waiting job that fits on.
        waiting: those who wait.
        starts: those who start already, beside all who run.
        view: the cluster as it is before any of this.
    """
    free = view.free_gpus
    for action in starts:
        assert type(action) is Start
        free -= action.gpus
    chosen, preempts = walk(tail, free, waiting, view)
    for entry in start_who_fits(chosen, free, starts)[1]:
        waiting.add(entry)
    return [*preempts, *starts]


def start_who_fits(
    chosen: Sequence[Entry], free: int, starts: list[Action]
) -> tuple[int, list[Entry]]:
    """Start those chosen who fit into what is free; return what is left of that, and the others.

    Args:
        chosen: who is to start, in order.
        free: GPUs that nobody holds.
        starts: to be added to.
    """
    left: list[Entry] = []
    for entry in chosen:
        size = entry[3]
        if size <= free:
            free -= size
            starts.append(Start(job=entry[2], gpus=size))
        else:
            left.append(entry)
    return free, left


def walk(
    tail: Sequence[PlacedEntry], spare: int, waiting: WaitingJobs, view: ClusterView
) -> tuple[list[Entry], list[Action]]:
    """Return who is chosen to start, in order, and who is to be preempted.

    Args:
        tail: the jobs that run or are being preempted, from the first waiting job that fits on.
        spare: GPUs that none of them and nobody before them holds.
        waiting: those who wait; who is chosen is taken out.
        view: the cluster as it is.
    """
    spare += sum([job.held_gpus for _, job in tail])
    chosen: list[Entry] = []
    preempts: list[Action] = []
    found = waiting.first(spare)
    for entry, job in tail:
        while found is not None and found < entry:
            spare -= _choose(found, waiting, view, chosen)
            found = waiting.first(spare)
        gpus = job.held_gpus
        if gpus <= spare:
            spare -= gpus  # of a job on its way out: it would come back first
            if found is not None and found[3] > spare:
                found = waiting.first(spare)  # else it is still the first that fits
        elif job.phase is _RUNNING:
            preempts.append(Preempt(job=job.id))
    while found is not None:
        spare -= _choose(found, waiting, view, chosen)
        found = waiting.first(spare)
    preempts.reverse()  # the last in order leaves first
    return chosen, preempts


def _choose(found: Entry, waiting: WaitingJobs, view: ClusterView, chosen: list[Entry]) -> int:
    size = take(found, waiting, view)
    if size:
        chosen.append(found)
    return size


def all_but(spare: int, last: list[JobView]) -> list[Action]:
    """Return preemptions of those who run, last one first, but for whom fit into what is spare.

    Args:
        spare: GPUs that need not be taken; the first of those who run does not fit into them.
        last: those who run or are being preempted, last one first.
    """
    if spare:
        kept = []
        for index in range(len(last) - 2, -1, -1):
            gpus = last[index].held_gpus
            if gpus <= spare:
                spare -= gpus
                kept.append(index)
        for index in kept:  # largest first
            del last[index]
    return [Preempt(job=job.id) for job in last if job.phase is _RUNNING]
