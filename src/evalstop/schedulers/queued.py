"""Greedy gang fill over a few queues, with preemption, without looking at every job.

The walk is that of `evalstop.schedulers.walk`. Keys are small whole numbers that stand still while
a job runs or waits: in queue q 2q for those who run and 2q + 1 for those who wait, and for those
who run but shall stand behind them.

Only the first waiting job of each gang size can be the first to fit, and it fits iff its gang is
no larger than R(key) = free GPUs + GPUs of running jobs with this key or a larger one. One number
a queue holds the second part, so that to find the first that fits is O(sizes). Whoever comes to
run is the last of its key, so that a dict keeps each key's jobs in order.

Mostly the first that fits is the only one: then the walk is made from its end, by as many of those
who run as have to go. And mostly what comes next is foreseen: while nobody who waits fits, of all
who wait only a newcomer can come to fit, and once those who have to go for a job have gone, it
starts, and nobody else. Whatever else happens meanwhile, the next fill looks at all of them again.
"""

from __future__ import annotations

import math
from sys import maxsize
from typing import TYPE_CHECKING

from evalstop.core.actions import Action, Start
from evalstop.core.job import Phase
from evalstop.schedulers.waiting import Entry, WaitingJobs
from evalstop.schedulers.walk import PlacedEntry, all_but, displace, take, waits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.core.job import JobView
    from evalstop.core.policy import ClusterView

__all__ = ["Place", "QueueFill"]

# Bound once: looking up a member of an Enum costs 0.25 us on CPython 3.11.
_PREEMPTING = Phase.PREEMPTING
_RUNNING = Phase.RUNNING

_NOT_SETTLED = -1


class Place:
    """Where a job stands: its key, and its rank among those of the same key.

    ``gpus`` and ``runs`` are the fill's: GPUs that it runs on, and whether it does.
    """

    __slots__ = ("gpus", "job", "key", "rank", "runs")

    def __init__(self, job: str, key: int, rank: int) -> None:
        self.job = job
        self.key = key
        self.rank = rank
        self.gpus = 0
        self.runs = False


class QueueFill:
    """Waiting and running jobs in order of queue and rank, and the fill over both.

    Args:
        queues: how many there are; keys are whole numbers below twice as many, odd ones for
            those who wait.

    Attributes:
        waiting: those who wait.
        settled: free GPUs with which it is known that nobody who waits fits, -1 for none.
        tail: the last rank given to who came last, to wait or to run.
    """

    def __init__(self, *, queues: int) -> None:
        self.waiting = WaitingJobs()
        self.settled = _NOT_SETTLED
        self.tail = 0
        self._started_at = math.nan  # when somebody was started last
        self._running: list[dict[str, Place]] = [{} for _ in range(2 * queues)]
        """Those who run by key, in order."""
        self._behind: dict[float, int] = dict.fromkeys(range(1, 2 * queues, 2), 0)
        """GPUs of those who run with this key or a larger one, by keys of those who wait."""
        self._ahead = [range(1, key + 1, 2) for key in range(2 * queues)]
        """Keys of those who wait before who runs with a key, or may do so."""
        self._claimant: Entry | None = None  # for whom those are leaving who have to
        self._leaving: set[str] = set()
        self._free = 0  # GPUs that are free already

    def run(self, place: Place, gpus: int, now: float) -> None:
        """Note that a job runs, as the last of its key."""
        name, key = place.job, place.key
        if place.runs:
            self.leave(place)
        elif name in self.waiting.live:
            self.waiting.discard(name)
        self._claimant = None
        if now != self._started_at:
            self.settled = _NOT_SETTLED  # who came while it was starting may displace it
        place.runs = True
        place.gpus = gpus
        self._running[key][name] = place
        if key:
            behind = self._behind
            for ahead in self._ahead[key]:
                behind[ahead] += gpus

    def demote(self, crossed: Sequence[Place]) -> list[Place]:
        """Let jobs that run stand in the next queue; return those whom it may cost their GPUs.

        These stand behind those who wait there, until `step_ahead`; the others, whom no one who
        waits may come before, last among those who run.
        """
        running, behind, ordered, rank = (
            self._running,
            self._behind,
            self.waiting.ordered,
            self.tail,
        )
        lowest = ordered[0][0] if ordered else math.inf
        noticed: list[Place] = []
        for place in crossed:
            key, name = place.key, place.job
            waits = key | 1
            del running[key][name]
            if key != waits:  # else it stood behind these already
                behind[waits] += place.gpus
            key = waits + 1
            if lowest <= key + 1:
                key += 1
                behind[key] += place.gpus
                noticed.append(place)
                self.settled = _NOT_SETTLED
            rank += 1
            place.key, place.rank = key, rank
            running[key][name] = place
        self.tail = rank
        return noticed

    def step_ahead(self, place: Place) -> None:
        """Let a job that runs, and stands behind those who wait, stand last of those who run."""
        key, name = place.key, place.job
        if not key & 1:
            return  # it was demoted twice at once, and has stepped ahead
        del self._running[key][name]
        self._behind[key] -= place.gpus
        self.tail = rank = self.tail + 1
        place.key, place.rank = key - 1, rank
        self._running[key - 1][name] = place

    def leave(self, place: Place) -> None:
        """Forget a job: it waits and runs no longer."""
        if place.runs:
            place.runs = False
            key = place.key
            del self._running[key][place.job]
            if key:
                gpus, behind = place.gpus, self._behind
                for ahead in self._ahead[key]:
                    behind[ahead] -= gpus
        else:
            self.waiting.discard(place.job)

    def _fits(self, free: int) -> bool:
        """Return whether anyone who waits fits into ``free`` GPUs and those he may take."""
        behind = self._behind
        return any(size - free <= behind[key] for key, _, _, size in self.waiting.heads.values())

    def demote_unnoticed(self, place: Place, free: int) -> bool:
        """Let a job that runs stand last of those who run in the next queue; say whether it does.

        It does not where anyone who waits would fit, were it to stand behind those who wait.

        Args:
            place: of the job.
            free: GPUs in no allocation.
        """
        earlier, gpus, behind = place.key, place.gpus, self._behind
        waits = earlier | 1
        for key, _, _, size in self.waiting.heads.values():
            missing = size - free - behind[key]
            if missing <= 0 or (missing <= gpus and earlier < key <= waits + 2):
                return False
        self.settled = free
        del self._running[earlier][place.job]
        if earlier != waits:
            behind[waits] += gpus
        self.tail = rank = self.tail + 1
        place.key, place.rank = waits + 1, rank
        self._running[waits + 1][place.job] = place
        return True

    def start(self, job: str, gpus: int, view: ClusterView) -> Sequence[Action]:
        """Start a newcomer that fits into free GPUs, where nobody who waits does."""
        self._claimant = None
        self.settled = view.free_gpus - gpus
        self._started_at = view.now
        return (Start(job=job, gpus=gpus),)

    def enter(self, entry: Entry, view: ClusterView) -> Sequence[Action]:
        """Let a job wait as the last of the first queue, and fill."""
        free = view.free_gpus
        self.waiting.add(entry)
        if free != self.settled:
            return self.fill(view)
        missing = entry[3] - free
        if missing <= self._behind[entry[0]]:
            return self._make_room(entry, missing, [], view)
        return ()

    def fill_freed(self, place: Place, view: ClusterView) -> Sequence[Action]:
        """Fill after a job that was preempted has freed its GPUs, and waits."""
        claimant, free, leaving = self._claimant, view.free_gpus, self._leaving
        if claimant is None or place.job not in leaving or free != self._free + place.gpus:
            return self.fill(view)
        leaving.remove(place.job)
        if leaving:
            self._free = free
            return ()
        if not take(claimant, self.waiting, view):
            return self.fill(view)
        self._claimant = None
        self.settled = free - claimant[3]
        self._started_at = view.now
        return (Start(job=claimant[2], gpus=claimant[3]),)

    def fill(self, view: ClusterView) -> Sequence[Action]:
        """Return who to preempt and who to start, so that the walk's choice comes true."""
        self._claimant = None
        waiting, free, behind = self.waiting, view.free_gpus, self._behind
        heads = waiting.heads
        if not heads:
            self.settled = free
            return ()
        starts: list[Action] = []
        while True:
            # R may be too large, by a job that is on its way out, never too small: then the walk
            # begins earlier than it must.
            first: Entry | None = None
            for head in heads.values():
                if head[3] - free <= behind[head[0]] and (first is None or head < first):
                    first = head
            if first is None:
                self.settled = free
                if starts:
                    self._started_at = view.now
                return starts
            if first[3] > free:
                return self._make_room_beside(first, free, starts, view)
            # It fits beside all who run: nobody behind it loses anything.
            taken = take(first, waiting, view)
            if taken:
                free -= taken
                starts.append(Start(job=first[2], gpus=taken))

    def _make_room_beside(
        self, first: Entry, free: int, starts: list[Action], view: ClusterView
    ) -> Sequence[Action]:
        """Return who is to be preempted, and who starts beside those that start already."""
        missing, behind = first[3] - free, self._behind
        alone = waits(first, view) and not any(
            other[3] <= behind[other[0]] - missing for other in self.waiting.others(first)
        )
        if alone:
            return self._make_room(first, missing, starts, view)
        self.settled = _NOT_SETTLED
        return self._displace(self._from(first[0], view), starts, view)

    def _make_room(
        self, first: Entry, missing: int, starts: list[Action], view: ClusterView
    ) -> Sequence[Action]:
        """Return who is to be preempted for a job; nobody else fits unless into what is over."""
        self.settled = _NOT_SETTLED
        last, spare = self._last_to_leave(first, missing, view)
        if not last:
            return self._displace(self._from(first[0], view), starts, view)
        if spare and self.waiting.fits_beside(first, spare):
            # Whoever waits and stands before the last of them is too large for what is over.
            return self._displace(self._from(first[0], view, len(last)), starts, view)
        preempts = all_but(spare, last)
        if starts:
            self._started_at = view.now
            return [*preempts, *starts]
        if len(preempts) == len(last):
            self._claimant = first
            self._leaving = {job.id for job in last}
            self._free = view.free_gpus
        return preempts

    def _displace(
        self, tail: Sequence[PlacedEntry], starts: list[Action], view: ClusterView
    ) -> Sequence[Action]:
        actions = displace(tail, self.waiting, starts, view)
        free = view.free_gpus - sum([one.gpus for one in actions if type(one) is Start])
        if not self._fits(free):
            self.settled = free
        if free < view.free_gpus:
            self._started_at = view.now
        return actions

    def _last_to_leave(
        self, first: Entry, missing: int, view: ClusterView
    ) -> tuple[list[JobView], int]:
        """Return the last who run, last one first, whose GPUs this job needs, and what is over.

        Nobody if too few run behind it.
        """
        jobs, key, running = view.jobs, int(first[0]), self._running
        last: list[JobView] = []
        for at in range(len(running) - 1, key - 1, -1):
            for place in reversed(running[at].values()):
                if at == key and place.rank < first[1]:
                    return [], 0
                job = jobs[place.job]
                phase = job.phase
                if phase is _RUNNING or phase is _PREEMPTING:
                    last.append(job)
                    missing -= job.held_gpus
                    if missing <= 0:
                        return last, -missing
        return [], 0

    def _from(self, key: float, view: ClusterView, most: int = maxsize) -> list[PlacedEntry]:
        """Return the running jobs with this key or a larger one, in order; the last ``most``."""
        jobs = view.jobs
        last: list[PlacedEntry] = []
        for running in reversed(self._running[int(key) :]):
            for name, place in reversed(running.items()):
                job = jobs[name]
                if job.phase is _RUNNING or job.phase is _PREEMPTING:
                    last.append(((place.key, place.rank, name, place.gpus), job))
                    if len(last) == most:
                        return last[::-1]
        return last[::-1]
