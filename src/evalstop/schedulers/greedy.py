"""Greedy gang fill in order of a key, with preemption, without looking at every job.

Walk all jobs, running and waiting, in order of their keys; each whole gang that fits into the
GPUs left over by those before it gets them. A running job that no longer fits is preempted.

Keys of waiting jobs stand still. Those of running jobs stand still (queues of 2D-LAS) or fall
with time, at one speed for all jobs of one weight (remaining time, remaining GPU-service). So
within a weight the order of an *anchor* never changes: the end projected by the estimate. One
sorted list for each weight then gives the running jobs behind any key in O(log running).

Only the first waiting job of each gang size can be the first to fit, and it fits iff its gang is
no larger than R(key) = free GPUs + GPUs of running jobs with larger keys. Jobs before the first
that fits keep what they have, so that the walk starts there. At a full cluster with a backlog
that is the end of the list: O(sizes + jobs displaced) an event, whatever the backlog.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from typing import TYPE_CHECKING, TypeAlias

from evalstop.core.actions import Action, Preempt, Start
from evalstop.core.job import Phase
from evalstop.schedulers.waiting import Entry, WaitingJobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.core.job import JobView
    from evalstop.core.policy import ClusterView

__all__ = ["Anchor", "GreedyFill", "PlacedEntry"]

Anchor: TypeAlias = Entry
"""An `Entry` of a running job, with what its key is told from in place of the key."""

PlacedEntry: TypeAlias = tuple[Entry, "JobView"]
"""A running job and its key of now: compares with those who wait, as no two share a number."""

# Bound once: looking up a member of an Enum costs 0.25 us on CPython 3.11.
_PREEMPTING = Phase.PREEMPTING
_RUNNING = Phase.RUNNING
_WAITING = Phase.WAITING

_SLACK = 1e-9
"""Relative; jobs this near to a key are looked at exactly, in case subtracting lost a bit."""


class GreedyFill:
    """Waiting and running jobs in order of their keys, and the fill over both.

    Args:
        falling: keys of running jobs are weight x max(0, anchor - now); else they are the anchor.
    """

    def __init__(self, *, falling: bool) -> None:
        self.waiting = WaitingJobs()
        self._falling = falling
        self._lists: dict[int, list[Anchor]] = {}
        self._anchors: dict[str, tuple[int, Anchor]] = {}

    def place(self, anchor: Anchor, *, weight: int = 1) -> None:
        """Note that a job runs; one that is placed already gets the new anchor."""
        name = anchor[2]
        if name in self._anchors:
            self._take_off(name)
        else:
            self.waiting.discard(name)
        self._anchors[name] = (weight, anchor)
        known = self._lists.get(weight)
        if known is None:
            known = self._lists[weight] = []
        insort(known, anchor)

    def leave(self, name: str) -> None:
        """Forget a job: it waits and runs no longer."""
        if name in self._anchors:
            self._take_off(name)
        else:
            self.waiting.discard(name)

    def fill(self, view: ClusterView) -> Sequence[Action]:
        """Return who to preempt and who to start, so that the walk's choice comes true.

        A chosen job whose GPUs are not free yet goes on waiting: the facts of the preemptions
        bring the next fill.
        """
        heads = self.waiting.heads
        if not heads:
            return ()
        free = view.free_gpus
        starts: list[Action] = []
        while heads:
            first = min(heads.values())
            if first[3] > free:
                found = self._first_that_fits(free, view.now)
                if found is None:
                    break
                places, first = found
                if first[3] > free:
                    return self._displace(places, free, starts, view)
            # It fits beside all who run: nobody behind it loses anything.
            taken = self._take(first, view)
            if taken:
                free -= taken
                starts.append(Start(job=first[2], gpus=taken))
        return starts

    def _displace(
        self, places: list[int], free: int, starts: list[Action], view: ClusterView
    ) -> Sequence[Action]:
        """Walk from these places on; add who is to be preempted and started to the starts."""
        tail, held = self._behind(places, view)
        chosen, preempts = self._walk(tail, free + held, view)
        for entry in chosen:
            size = entry[3]
            if size <= free:
                free -= size
                starts.append(Start(job=entry[2], gpus=size))
            else:
                self.waiting.add(entry)
        return [*preempts, *starts]

    def _take_off(self, name: str) -> None:
        weight, anchor = self._anchors.pop(name)
        known = self._lists[weight]
        del known[bisect_left(known, anchor)]

    def _first_that_fits(self, free: int, now: float) -> tuple[list[int], Entry] | None:
        """Return how many of each list come before the first waiting job that fits, and that job.

        Going down from the largest key, R only grows; the last to fit is the first in order. R
        may be too large, by a job that is on its way out, never too small: then the walk begins
        earlier than it must. None if no waiting job fits.
        """
        lists = self._lists
        places = [len(known) for known in lists.values()]
        found: tuple[list[int], Entry] | None = None
        for head in sorted(self.waiting.heads.values(), reverse=True):
            key = head[0]
            for number, (weight, known) in enumerate(lists.items()):
                place = places[number]
                if place and known[place - 1][0] >= (lowest := self._lowest(key, weight, now)):
                    while place and known[place - 1][0] >= lowest:
                        place -= 1
                        free += known[place][3]
                    places[number] = place
            if head[3] <= free:
                found = places.copy(), head
        return found

    def _lowest(self, key: float, weight: int, now: float) -> float:
        """Return an anchor that no running job with at least this key is below."""
        if key <= 0.0:
            return -math.inf  # past their estimate, all have key 0, whatever the anchor
        if key == math.inf:
            return key
        lowest = now + key / weight if self._falling else key
        return lowest - _SLACK * abs(lowest)

    def _behind(self, places: list[int], view: ClusterView) -> tuple[list[PlacedEntry], int]:
        """Return the running jobs from these places on, in order, and the GPUs they hold."""
        now, jobs, falling = view.now, view.jobs, self._falling
        held = 0
        tail: list[PlacedEntry] = []
        for place, (weight, known) in zip(places, self._lists.items(), strict=True):
            for i in range(place, len(known)):
                entry = known[i]
                job = jobs[entry[2]]
                phase = job.phase
                if phase is _RUNNING or phase is _PREEMPTING:
                    held += job.held_gpus
                    if falling:
                        anchor = entry[0]
                        key = weight * (anchor - now) if anchor > now else 0.0
                        entry = (key, entry[1], entry[2], 0)
                    tail.append((entry, job))
        if falling and len(tail) > 1:
            tail.sort(key=_entry)
        return tail, held

    def _walk(
        self, tail: list[PlacedEntry], spare: int, view: ClusterView
    ) -> tuple[list[Entry], list[Action]]:
        """Walk the rest of all jobs in order of their keys; return who starts, who is preempted."""
        waiting = self.waiting
        chosen: list[Entry] = []
        preempts: list[Action] = []
        found = waiting.first(spare)
        for entry, job in tail:
            while found is not None and found < entry:
                spare -= self._choose(found, view, chosen)
                found = waiting.first(spare)
            held = job.held_gpus
            if held <= spare:
                spare -= held  # of a job on its way out: it would come back first
                if found is not None and found[3] > spare:
                    found = waiting.first(spare)  # else it is still the first that fits
            elif job.phase is _RUNNING:
                preempts.append(Preempt(job=job.id))
        while found is not None:
            spare -= self._choose(found, view, chosen)
            found = waiting.first(spare)
        preempts.reverse()  # the last in order leaves first
        return chosen, preempts

    def _choose(self, found: Entry, view: ClusterView, chosen: list[Entry]) -> int:
        size = self._take(found, view)
        if size:
            chosen.append(found)
        return size

    def _take(self, entry: Entry, view: ClusterView) -> int:
        """Let a job wait no longer; return its GPUs, 0 if it does not wait in truth."""
        self.waiting.discard(entry[2])
        job = view.jobs.get(entry[2])
        return 0 if job is None or job.phase is not _WAITING else entry[3]


def _entry(placed: PlacedEntry) -> Anchor:
    return placed[0]
