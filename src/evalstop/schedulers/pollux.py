"""Pollux: elastic GPU counts that maximise the cluster's goodput.

Speed-up of job j on g GPUs: s_j(g) = goodput_j(g) / goodput_j(GPUs it was submitted with), the
goodput of `evalstop.schedulers.goodput`. The cluster's fitness is the power mean over the jobs
with p = -1, as in Pollux, which is highest where the sum of 1 / s_j(g_j) is lowest. With this
goodput 1 / s_j is convex in g, so that giving GPUs one by one to the job whose 1 / s falls most
is exact; it stops where a further GPU helps nobody.

Who runs: running jobs keep at least their fewest GPUs; then jobs that wait are admitted in order
of submission with their fewest, as long as they fit; the rest of the GPUs is divided as above. A
rigid job has one size, so that for rigid workloads this is first come, first served without
blocking, and no job is ever preempted. A reallocation that admits nobody is made only if it
raises the fitness by ``gain``: resizing has its price.

Looked at when jobs come and go, at most once in ``interval_s`` (Pollux: 60 s).

Qiao et al., Pollux: co-adaptive cluster scheduling for goodput-optimized deep learning, OSDI
2021. Simplified: one parameter each for throughput and efficiency in place of seven fitted ones
(the efficiency a job reports gives its noise scale; ``sync`` is assumed), interchangeable GPUs,
batch size per GPU fixed, the exact greedy in place of a genetic search, no autoscaling.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from evalstop.core.actions import Action, Resize, Start, WakeAt
from evalstop.core.errors import SpecError
from evalstop.core.events import (
    CapacityChanged,
    JobEnded,
    JobPreempted,
    JobResized,
    JobStarted,
    JobSubmitted,
    LossReported,
    TimerFired,
)
from evalstop.core.job import JobView, Phase
from evalstop.core.settings import is_number
from evalstop.schedulers.goodput import goodput, noise_from_efficiency
from evalstop.schedulers.waiting import Entry, WaitingJobs
from evalstop.schedulers.walk import take

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.core.events import Event
    from evalstop.core.policy import ClusterView

__all__ = ["Pollux"]

# Bound once: looking up a member of an Enum costs 0.25 us on CPython 3.11.
_RUNNING = Phase.RUNNING
_WAITING = Phase.WAITING

_TOKEN = "pollux round"  # noqa: S105 -- names a timer


class Pollux:
    """Elastic GPU counts by goodput, in rounds.

    Args:
        interval_s: least seconds between two rounds.
        sync: share of a step that each further GPU costs.
        gain: relative rise of the fitness that is worth resizing for.

    Cost: O(running + GPUs log jobs) a round, whatever the backlog.

    Raises:
        SpecError: if a setting is out of range.
    """

    hears_evals = False

    def __init__(self, *, interval_s: float = 60.0, sync: float = 0.02, gain: float = 0.05) -> None:
        if not all(is_number(value) and value >= 0 for value in (interval_s, sync, gain)):
            msg = (
                "pollux: interval_s, sync and gain must be 0 or above, but got "
                f"interval_s={interval_s}, sync={sync}, gain={gain}"
            )
            raise SpecError(msg)
        self._interval_s = interval_s
        self._sync = sync
        self._gain = gain
        self._noise: dict[str, float] = {}
        self._waiting = WaitingJobs()  # by order of submission; its size is its fewest GPUs
        self._running: set[str] = set()
        self._tickets: dict[str, int] = {}
        self._next_ticket = 0
        self._targets: dict[str, int] = {}
        self._resizing: set[str] = set()  # asked to resize, and not yet a fact
        self._next_round = -math.inf
        self._due = False  # a round was put off until all resizes are facts
        self._awaited = False  # a timer for the next round is under way

    def decide(self, event: Event, view: ClusterView) -> Sequence[Action]:  # noqa: C901, PLR0911 -- one arm for each fact
        """Divide the GPUs anew when jobs have come or gone."""
        if type(event) is LossReported:
            self._hear(event, view)
            return ()
        if type(event) is JobResized:
            self._resizing.discard(event.job)
            moves = self._move_on(view)  # GPUs that a shrunken job gave may be waited for
            return moves if moves or not self._due else self._when_due(view)
        if type(event) is TimerFired:
            if event.token != _TOKEN:
                return ()
            self._awaited = False
            return self._round(view)
        if type(event) is JobStarted:
            self._waiting.discard(event.job)
            self._running.add(event.job)
            return ()
        if type(event) is JobSubmitted:
            self._tickets[event.job.id] = self._next_ticket
            self._next_ticket += 1
            self._wait(view.jobs[event.job.id])
        elif type(event) is JobEnded:
            self._forget(event.job)
        elif type(event) is JobPreempted:
            self._resizing.discard(event.job)
            self._running.discard(event.job)
            job = view.jobs.get(event.job)
            if job is not None and job.phase is _WAITING:
                self._wait(job)
        elif type(event) is not CapacityChanged:
            return ()
        return self._when_due(view)

    def allocate(self, jobs: Sequence[JobView], gpus: int) -> dict[str, int]:
        """Return GPUs by job that maximise the fitness; jobs that do not fit are left out.

        Args:
            jobs: those that run first, then those that wait in order of submission.
            gpus: GPUs to divide.
        """
        held: dict[str, int] = {}
        for job in jobs:
            fewest = _fewest(job)
            if fewest <= gpus:
                gpus -= fewest
                held[job.id] = fewest
        by_id = {job.id: job for job in jobs if job.id in held}
        heap: list[tuple[float, int, str]] = []
        for place, job in enumerate(by_id.values()):
            self._offer(heap, job, held[job.id], place)
        while gpus and heap:
            _, place, name = heappop(heap)
            held[name] += 1
            gpus -= 1
            self._offer(heap, by_id[name], held[name], place)
        return held

    def cost(self, job: JobView, gpus: int) -> float:
        """Return 1 / s(gpus), the job's part in the fitness."""
        noise = self._noise.get(job.id, math.inf)
        alone = goodput(job.gpus, sync=self._sync, noise=noise)
        return alone / goodput(gpus, sync=self._sync, noise=noise)

    def _wait(self, job: JobView) -> None:
        ticket = self._tickets[job.id]
        self._waiting.add((ticket, ticket, job.id, _fewest(job)))

    def _forget(self, name: str) -> None:
        self._waiting.discard(name)
        self._running.discard(name)
        self._resizing.discard(name)
        for known in (self._tickets, self._noise, self._targets):
            known.pop(name, None)

    def _hear(self, event: LossReported, view: ClusterView) -> None:
        job = view.jobs.get(event.job)
        if job is not None and event.efficiency is not None and job.held_gpus > 1:
            self._noise[job.id] = noise_from_efficiency(job.held_gpus, event.efficiency)

    def _offer(
        self, heap: list[tuple[float, int, str]], job: JobView, gpus: int, place: int
    ) -> None:
        """Put what one more GPU gains this job on the heap, if it may have it and gains by it."""
        if gpus < _most(job):
            change = self.cost(job, gpus + 1) - self.cost(job, gpus)
            if change < 0:
                heappush(heap, (change, place, job.id))

    def _round(self, view: ClusterView) -> Sequence[Action]:
        self._due = bool(self._resizing)
        if self._due:
            return ()  # the last round is still being carried out
        self._next_round = view.now + self._interval_s
        names = sorted(self._running, key=self._tickets.__getitem__)
        running = [job for name in names if (job := view.jobs[name]).phase is _RUNNING]
        gpus = view.free_gpus + sum(job.held_gpus for job in running)
        admitted = self._admit(running, gpus, view)
        targets = self.allocate([*running, *admitted], gpus)
        if not admitted and not self._worth_it(running, targets):
            targets = {job.id: job.held_gpus for job in running}
        self._targets = targets
        shrinks: list[Action] = [
            Resize(job=job.id, gpus=targets[job.id])
            for job in running
            if targets.get(job.id, job.held_gpus) < job.held_gpus
        ]
        self._resizing.update(action.job for action in shrinks if isinstance(action, Resize))
        return [*shrinks, *self._move_on(view)]

    def _admit(self, running: Sequence[JobView], gpus: int, view: ClusterView) -> list[JobView]:
        """Return the waiting jobs that fit beside the running, in order of submission."""
        for job in running:
            if _fewest(job) <= gpus:
                gpus -= _fewest(job)
        admitted: list[JobView] = []
        taken: list[Entry] = []
        while gpus and (found := self._waiting.first(gpus)):
            if size := take(found, self._waiting, view):
                gpus -= size
                admitted.append(view.jobs[found[2]])
                taken.append(found)
        for entry in taken:
            self._waiting.add(entry)  # until its start is a fact
        return admitted

    def _when_due(self, view: ClusterView) -> Sequence[Action]:
        """Hold a round now, or ask to be woken at the next one, once."""
        if view.now >= self._next_round:
            return self._round(view)
        if self._awaited:
            return ()
        self._awaited = True
        return (WakeAt(time=self._next_round, token=_TOKEN),)

    def _worth_it(self, running: Sequence[JobView], targets: dict[str, int]) -> bool:
        now = sum(self.cost(job, job.held_gpus) for job in running)
        then = sum(self.cost(job, targets.get(job.id, job.held_gpus)) for job in running)
        return then * (1.0 + self._gain) <= now

    def _move_on(self, view: ClusterView) -> list[Action]:
        """Start and grow towards the targets as far as GPUs are free."""
        free = view.free_gpus
        actions: list[Action] = []
        for name, target in self._targets.items():
            job = view.jobs.get(name)
            if job is None or name in self._resizing:
                continue
            if job.phase is _WAITING and target <= free:
                free -= target
                actions.append(Start(job=name, gpus=target))
            elif job.phase is _RUNNING and 0 < target - job.held_gpus <= free:
                free -= target - job.held_gpus
                actions.append(Resize(job=name, gpus=target))
                self._resizing.add(name)
        return actions


def _fewest(job: JobView) -> int:
    return job.gpus if job.min_gpus is None else job.min_gpus


def _most(job: JobView) -> int:
    return job.gpus if job.max_gpus is None else job.max_gpus
