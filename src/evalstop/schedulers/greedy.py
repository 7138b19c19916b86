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

Anchor: TypeAlias = tuple[float, int, str, int]
"""What a running job's key is told from, order of submission or entry, id of the job, its GPUs."""

PlacedEntry: TypeAlias = tuple[Entry, "JobView"]

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

    def wait(self, gpus: int, entry: Entry) -> None:
        """Let a job wait."""
        self.waiting.add(gpus, entry)

    def place(self, anchor: Anchor, *, weight: int = 1) -> None:
        """Note that a job runs; one that is placed already gets the new anchor."""
        name = anchor[2]
        if name in self._anchors:
            self._take_off(name)
        self.waiting.discard(name)
        self._anchors[name] = (weight, anchor)
        known = self._lists.get(weight)
        if known is None:
            known = self._lists[weight] = []
        insort(known, anchor)

    def leave(self, name: str) -> None:
        """Forget a job: it waits and runs no longer."""
        self.waiting.discard(name)
        if name in self._anchors:
            self._take_off(name)

    def fill(self, view: ClusterView) -> Sequence[Action]:
        """Return who to preempt and who to start, so that the walk's choice comes true.

        A chosen job whose GPUs are not free yet goes on waiting: the facts of the preemptions
        bring the next fill.
        """
        heads = self.waiting.heads()
        if not heads:
            return ()
        heads.sort(reverse=True)
        places = self._first_that_fits(heads, view)
        if places is None:
            return ()
        chosen, actions = self._walk(self._behind(places, view), view)
        free = view.free_gpus
        for size, entry in chosen:
            if size <= free:
                free -= size
                actions.append(Start(job=entry[2], gpus=size))
            else:
                self.waiting.add(size, entry)
        return actions

    def _take_off(self, name: str) -> None:
        weight, anchor = self._anchors.pop(name)
        known = self._lists[weight]
        del known[bisect_left(known, anchor)]

    def _first_that_fits(
        self, heads: list[tuple[Entry, int]], view: ClusterView
    ) -> list[int] | None:
        """Return how many jobs of each list lie before the first waiting job that fits.

        Going down from the largest key, R only grows; the last to fit is the first in order. R
        may be too large, by a job that is on its way out, never too small: then the walk begins
        earlier than it must. None if no waiting job fits.
        """
        now, falling = view.now, self._falling
        spare = view.free_gpus
        lists = [(weight, known) for weight, known in self._lists.items()]
        places = [len(known) for _, known in lists]
        found: list[int] | None = None
        for (key, _, _), size in heads:
            for number, (weight, known) in enumerate(lists):
                if key <= 0.0:
                    lowest = -math.inf  # past their estimate, all have key 0, whatever the anchor
                elif key == math.inf:
                    lowest = key
                else:
                    lowest = now + key / weight if falling else key
                    lowest -= _SLACK * abs(lowest)
                place = places[number]
                while place and known[place - 1][0] >= lowest:
                    place -= 1
                    spare += known[place][3]
                places[number] = place
            if size <= spare:
                found = places.copy()
        return found

    def _behind(self, places: list[int], view: ClusterView) -> list[PlacedEntry]:
        """Return the running jobs from these places on, in order of their keys."""
        now, jobs, falling = view.now, view.jobs, self._falling
        tail: list[PlacedEntry] = []
        for place, (weight, known) in zip(places, self._lists.items(), strict=True):
            for i in range(place, len(known)):
                anchor, ticket, name, _ = known[i]
                job = jobs[name]
                if job.phase is Phase.RUNNING or job.phase is Phase.PREEMPTING:
                    if falling:
                        anchor = weight * (anchor - now) if anchor > now else 0.0
                    tail.append(((anchor, ticket, name), job))
        tail.sort(key=_entry)
        return tail

    def _walk(
        self, tail: list[PlacedEntry], view: ClusterView
    ) -> tuple[list[tuple[int, Entry]], list[Action]]:
        """Walk the rest of all jobs in order of their keys; return who starts, who is preempted."""
        waiting = self.waiting
        spare = view.free_gpus + sum(job.held_gpus for _, job in tail)
        chosen: list[tuple[int, Entry]] = []
        preempts: list[Action] = []
        found = waiting.first(spare)
        for entry, job in tail:
            while found is not None and found[1] < entry:
                spare -= self._take(found, view, chosen)
                found = waiting.first(spare)
            held = job.held_gpus
            if held <= spare:
                spare -= held  # of a job on its way out: it would come back first
                if found is not None and found[0] > spare:
                    found = waiting.first(spare)  # else it is still the first that fits
            elif job.phase is Phase.RUNNING:
                preempts.append(Preempt(job=job.id))
        while found is not None:
            spare -= self._take(found, view, chosen)
            found = waiting.first(spare)
        preempts.reverse()  # the last in order leaves first
        return chosen, preempts

    def _take(
        self, found: tuple[int, Entry], view: ClusterView, chosen: list[tuple[int, Entry]]
    ) -> int:
        size, entry = found
        self.waiting.discard(entry[2])
        job = view.jobs.get(entry[2])
        if job is None or job.phase is not Phase.WAITING:
            return 0
        chosen.append(found)
        return size


def _entry(placed: PlacedEntry) -> Entry:
    return placed[0]
