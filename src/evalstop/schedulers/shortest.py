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

from evalstop.core.actions import Action, Start
from evalstop.core.events import (
    CapacityChanged,
    JobEnded,
    JobPreempted,
    JobStarted,
    JobSubmitted,
)
from evalstop.core.job import JobView, Phase
from evalstop.schedulers.greedy import GreedyFill
from evalstop.schedulers.waiting import Entry, WaitingJobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.core.events import Event
    from evalstop.core.policy import ClusterView

__all__ = ["SjfEst", "SrsfEst", "SrtfEst"]

# Bound once: looking up a member of an Enum costs 0.25 us on CPython 3.11.
_WAITING = Phase.WAITING

_INFINITE = float("inf")


class SjfEst:
    """Shortest job first by estimated total service; running jobs are left alone.

    Cost: O(log n) an event.
    """

    hears_evals = False

    def __init__(self) -> None:
        self._waiting = WaitingJobs()
        self._tickets: dict[str, int] = {}
        self._next_ticket = 0

    def decide(self, event: Event, view: ClusterView) -> Sequence[Action]:
        """Start the shortest jobs that fit."""
        if type(event) is JobSubmitted:
            self._tickets[event.job.id] = self._next_ticket
            self._next_ticket += 1
            self._add(view.jobs[event.job.id])
        elif type(event) is JobPreempted:
            job = view.jobs.get(event.job)
            if job is not None and job.phase is _WAITING:
                self._add(job)
        elif type(event) is JobEnded:
            self._waiting.discard(event.job)
            self._tickets.pop(event.job, None)
        elif type(event) is not CapacityChanged:
            return ()
        return self._fill(view)

    def _add(self, job: JobView) -> None:
        key = _INFINITE if job.estimated_s is None else job.estimated_s
        self._waiting.add((key, self._tickets[job.id], job.id, job.gpus))

    def _fill(self, view: ClusterView) -> Sequence[Action]:
        free = view.free_gpus
        starts: list[Action] = []
        while found := self._waiting.first(free):
            _, _, name, size = found
            self._waiting.discard(name)
            job = view.jobs.get(name)
            if job is not None and job.phase is _WAITING:
                free -= size
                starts.append(Start(job=name, gpus=size))
        return starts


class SrtfEst:
    """Shortest remaining time first by estimate, preemptive, greedy gang fill.

    Cost: that of `evalstop.schedulers.greedy`, O(log n) an event in a backlog of n.
    """

    weighs_gpus = False
    hears_evals = False

    def __init__(self) -> None:
        self._fill = GreedyFill()
        self._tickets: dict[str, int] = {}
        self._next_ticket = 0

    def decide(self, event: Event, view: ClusterView) -> Sequence[Action]:
        """Give the GPUs to the jobs with the least left to do."""
        fill = self._fill
        if type(event) is JobStarted:
            self._place(view.jobs[event.job], view.now)
            return ()
        if type(event) is JobPreempted:
            job = view.jobs.get(event.job)
            if job is not None and job.phase is _WAITING:
                return fill.come_back(self._entry(job), view)
            fill.leave(event.job)
        elif type(event) is JobSubmitted:
            self._tickets[event.job.id] = self._next_ticket
            self._next_ticket += 1
            return fill.come(self._entry(view.jobs[event.job.id]), view)
        elif type(event) is JobEnded:
            fill.leave(event.job)
            self._tickets.pop(event.job, None)
        elif type(event) is not CapacityChanged:
            return ()
        return fill.fill(view)

    def _entry(self, job: JobView) -> Entry:
        """Return how a job waits: what it has attained stands still."""
        key = _INFINITE
        if job.estimated_s is not None:
            key = job.estimated_s - job.service_s
            if key < 0.0:
                key = 0.0
            elif self.weighs_gpus:
                key *= job.gpus
        return key, self._tickets[job.id], job.id, job.gpus

    def _place(self, job: JobView, now: float) -> None:
        """Note that a job was started just now."""
        estimate, gpus = job.estimated_s, job.gpus
        ends = _INFINITE if estimate is None else now + estimate - job.service_s
        anchor = ends, self._tickets[job.id], job.id, job.held_gpus
        self._fill.place(anchor, gpus if self.weighs_gpus else 1, gpus)


class SrsfEst(SrtfEst):
    """Shortest remaining service first: as SRTF-Est, with remaining time times GPUs as the key."""

    weighs_gpus = True
