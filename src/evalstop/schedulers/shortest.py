"""Shortest first by estimate: SJF-Est, SRTF-Est and SRSF-Est.

All three order jobs by a key, smallest first, ties in order of submission, and fill the GPUs
greedily with whole gangs: a job that does not fit is passed over. The keys:

* SJF-Est: estimated total service, non-preemptive. Smith, "Various optimizers for single-stage
  production", 1956.
* SRTF-Est: estimated remaining service max(0, estimate - attained), preemptive. Schrage, "A
  proof of the optimality of the shortest remaining processing time discipline", 1968.
* SRSF-Est: remaining service times GPUs, preemptive. Gu et al., "Tiresias", NSDI 2019, section 3.

A job without an estimate has an infinite key: it comes last, in order of submission. Preempted
jobs lose nothing, so with free preemption the order is exact at every submission and end; in
between it need not be looked at, since keys of running jobs only fall.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalstop.core.actions import Action, Preempt, Start
from evalstop.core.events import (
    CapacityChanged,
    EvalReported,
    JobEnded,
    JobPreempted,
    JobSubmitted,
)
from evalstop.core.job import JobView, Phase
from evalstop.schedulers.waiting import Entry, WaitingJobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.core.events import Event
    from evalstop.core.policy import ClusterView

__all__ = ["SjfEst", "SrsfEst", "SrtfEst"]

_INFINITE = float("inf")


class SjfEst:
    """Shortest job first by estimated total service; running jobs are left alone.

    Cost: O(log n) an event.
    """

    def __init__(self) -> None:
        self._waiting = WaitingJobs()
        self._tickets: dict[str, int] = {}
        self._next_ticket = 0

    def decide(self, event: Event, view: ClusterView) -> Sequence[Action]:
        """Start the shortest jobs that fit."""
        if isinstance(event, JobSubmitted):
            self._tickets[event.job.id] = self._next_ticket
            self._next_ticket += 1
            self._add(view.jobs[event.job.id])
        elif isinstance(event, JobPreempted):
            job = view.jobs.get(event.job)
            if job is not None and job.phase is Phase.WAITING:
                self._add(job)
        elif isinstance(event, JobEnded):
            self._waiting.discard(event.job)
            self._tickets.pop(event.job, None)
        elif not isinstance(event, CapacityChanged):
            return ()
        return self._fill(view)

    def _add(self, job: JobView) -> None:
        key = _INFINITE if job.estimated_s is None else job.estimated_s
        self._waiting.add(job.gpus, (key, self._tickets[job.id], job.id))

    def _fill(self, view: ClusterView) -> Sequence[Action]:
        free = view.free_gpus
        starts: list[Action] = []
        while found := self._waiting.first(free):
            size, entry = found
            self._waiting.discard(entry[2])
            job = view.jobs.get(entry[2])
            if job is not None and job.phase is Phase.WAITING:
                free -= size
                starts.append(Start(job=entry[2], gpus=size))
        return starts


class SrtfEst:
    """Shortest remaining time first by estimate, preemptive, greedy gang fill.

    Cost: O(running log running + sizes log n) at a submission or end; O(1) at a submission that
    can change nothing.
    """

    weighs_gpus = False

    def __init__(self) -> None:
        self._waiting = WaitingJobs()
        self._tickets: dict[str, int] = {}
        self._next_ticket = 0
        self._on_gpus: set[str] = set()  # started by us and not ended: running or on the way
        self._highest = -_INFINITE  # no running job has a larger key (keys of running jobs fall)
        self._unsettled = 0  # preemptions ordered and not yet a fact

    def decide(self, event: Event, view: ClusterView) -> Sequence[Action]:
        """Give the GPUs to the jobs with the least left to do."""
        if isinstance(event, EvalReported):
            return ()  # first, since most events are evaluations
        if isinstance(event, JobSubmitted):
            return self._on_submit(event, view)
        if isinstance(event, JobEnded):
            self._waiting.discard(event.job)
            self._tickets.pop(event.job, None)
            self._on_gpus.discard(event.job)
        elif isinstance(event, JobPreempted):
            self._on_gpus.discard(event.job)
            job = view.jobs.get(event.job)
            if job is not None and job.phase is Phase.WAITING:
                self._add(job, view.now)
        elif not isinstance(event, CapacityChanged):
            return ()
        return self._fill(view)

    def _on_submit(self, event: JobSubmitted, view: ClusterView) -> Sequence[Action]:
        job = view.jobs[event.job.id]
        self._tickets[job.id] = self._next_ticket
        self._next_ticket += 1
        key = self._add(job, view.now)
        if job.gpus > view.free_gpus and key >= self._highest and not self._unsettled:
            return ()  # every running job comes first, and it does not fit beside them
        return self._fill(view)

    def _key(self, job: JobView, now: float) -> float:
        remaining = job.remaining_s(now)
        return remaining * job.gpus if self.weighs_gpus else remaining

    def _add(self, job: JobView, now: float) -> float:
        key = self._key(job, now)
        self._waiting.add(job.gpus, (key, self._tickets[job.id], job.id))
        return key

    def _fill(self, view: ClusterView) -> Sequence[Action]:
        """Fill all GPUs in order of the keys; preempt who does not fit, start who does."""
        placed, spare = self._placed(view)
        chosen, preempts = self._choose(view, placed, spare)
        self._unsettled = len(preempts)
        actions: list[Action] = list(preempts)
        free = view.free_gpus
        for size, entry in chosen:
            if size <= free:
                free -= size
                self._on_gpus.add(entry[2])
                actions.append(Start(job=entry[2], gpus=size))
                self._highest = max(self._highest, entry[0])
            else:
                self._unsettled += 1
                self._waiting.add(size, entry)  # its GPUs come free with the preemptions
        return actions

    def _placed(self, view: ClusterView) -> tuple[list[tuple[Entry, JobView]], int]:
        """Return jobs on GPUs in order of their keys, and the GPUs to divide among all."""
        now, jobs = view.now, view.jobs
        spare = view.free_gpus
        placed: list[tuple[Entry, JobView]] = []
        for name in self._on_gpus:
            job = jobs[name]
            if job.phase is Phase.RUNNING or job.phase is Phase.PREEMPTING:
                spare += job.held_gpus
                placed.append(((self._key(job, now), self._tickets[name], name), job))
        placed.sort(key=_entry)
        return placed, spare

    def _choose(
        self, view: ClusterView, placed: list[tuple[Entry, JobView]], spare: int
    ) -> tuple[list[tuple[int, Entry]], list[Preempt]]:
        """Walk all jobs in order of their keys; return who to start and who to preempt."""
        waiting = self._waiting
        chosen: list[tuple[int, Entry]] = []
        preempts: list[Preempt] = []
        highest = -_INFINITE
        for entry, job in placed:
            while (found := waiting.first(spare)) and found[1] < entry:
                spare -= self._take(found, view, chosen)
            if job.held_gpus <= spare:
                spare -= job.held_gpus  # of a job on its way out: it would come back first
                highest = entry[0]
            elif job.phase is Phase.RUNNING:
                preempts.append(Preempt(job=job.id))
        while found := waiting.first(spare):
            spare -= self._take(found, view, chosen)
        self._highest = highest
        return chosen, preempts

    def _take(
        self, found: tuple[int, Entry], view: ClusterView, chosen: list[tuple[int, Entry]]
    ) -> int:
        size, entry = found
        self._waiting.discard(entry[2])
        job = view.jobs.get(entry[2])
        if job is None or job.phase is not Phase.WAITING:
            return 0
        chosen.append(found)
        return size


class SrsfEst(SrtfEst):
    """Shortest remaining service first: as SRTF-Est, with remaining time times GPUs as the key."""

    weighs_gpus = True


def _entry(placed: tuple[Entry, JobView]) -> Entry:
    return placed[0]
