"""Greedy gang fill in order of a key that falls with time, without looking at every job.

The walk is that of `evalstop.schedulers.walk`. Keys of waiting jobs stand still. Those of running
jobs fall with time, at one speed for all jobs of one weight (remaining time, remaining
GPU-service). So within a weight the order of an *anchor* never changes: the end projected by the
estimate. One sorted list for each weight then gives the running jobs behind any key in
O(log running).

Only the first waiting job of each gang size can be the first to fit, and it fits iff its gang is
no larger than R(key) = free GPUs + GPUs of running jobs with larger keys. At a full cluster with
a backlog that is the end of the list: O(sizes + jobs displaced) an event, whatever the backlog.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

from evalstop.core.actions import Action, Start
from evalstop.core.job import Phase
from evalstop.schedulers.waiting import Entry, WaitingJobs
from evalstop.schedulers.walk import PlacedEntry, displace, preempt_last, take, waits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from evalstop.core.job import JobView
    from evalstop.core.policy import ClusterView

__all__ = ["Anchor", "GreedyFill"]

Anchor: TypeAlias = Entry
"""An `Entry` of a running job, with what its key is told from in place of the key."""

# Bound once: looking up a member of an Enum costs 0.25 us on CPython 3.11.
_PREEMPTING = Phase.PREEMPTING
_RUNNING = Phase.RUNNING

_SLACK = 1e-9
"""Relative; jobs this near to a key are looked at exactly, in case subtracting lost a bit."""

_KEY = itemgetter(0)
_GPUS = itemgetter(3)


class GreedyFill:
    """Waiting and running jobs in order of their keys, and the fill over both.

    The key of a running job is weight x max(0, anchor - now).
    """

    def __init__(self) -> None:
        self.waiting = WaitingJobs()
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
        """Return who to preempt and who to start, so that the walk's choice comes true."""
        heads = self.waiting.heads
        if not heads:
            return ()
        free = view.free_gpus
        starts: list[Action] = []
        while heads:
            first = self.waiting.front()
            if first[3] > free:
                found = self._first_that_fits(free, view.now)
                if found is None:
                    break
                places, first = found
                if first[3] > free:
                    if len(places) == 1:
                        preempts, last = self._preempt_last(first, free, view)
                        if preempts is not None:
                            return [*preempts, *starts]
                        if last:
                            ((_, known),) = self._lists.items()
                            places = [len(known) - last]
                    return displace(self._behind(places, view), self.waiting, starts, view)
            # It fits beside all who run: nobody behind it loses anything.
            taken = take(first, self.waiting, view)
            if taken:
                free -= taken
                starts.append(Start(job=first[2], gpus=taken))
        return starts

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
        if len(lists) == 1:
            return self._first_beside_one_list(free, now)
        places = [len(known) for known in lists.values()]
        found: tuple[list[int], Entry] | None = None
        for head in sorted(self.waiting.heads.values(), reverse=True):
            key = head[0]
            for number, (weight, known) in enumerate(lists.items()):
                place = places[number]
                if place and known[place - 1][0] >= (lowest := _lowest(key, weight, now)):
                    while place and known[place - 1][0] >= lowest:
                        place -= 1
                        free += known[place][3]
                    places[number] = place
            if head[3] <= free:
                found = places.copy(), head
        return found

    def _first_beside_one_list(self, free: int, now: float) -> tuple[list[int], Entry] | None:
        """Return the same where all who run have one weight: most events come this way.

        Going up from the smallest key, R only falls; the first to fit is the first in order.
        """
        ((weight, known),) = self._lists.items()
        waiting = self.waiting
        fewest = min(waiting.heads)
        room, before = -1, 0
        for head in waiting.ordered:
            place = bisect_left(known, (_lowest(head[0], weight, now),))
            if place == len(known):  # nobody who runs is behind those who are left
                fits = waiting.first(free)
                return None if fits is None else ([place], fits)
            if room < 0:
                room = free + sum(map(_GPUS, known[place:]))
            elif place > before:
                room -= sum(map(_GPUS, known[before:place]))
            if head[3] <= room:
                return [place], head
            if room < fewest:
                return None
            before = place
        return None

    def _preempt_last(
        self, first: Entry, free: int, view: ClusterView
    ) -> tuple[list[Action] | None, int]:
        """Return who is to be preempted for this job: some of the last who run, last one first.

        None if that is not all of the walk. Second, return how many of those who run, the last,
        it need look at, 0 if that is not known: if another waiting job may fit ahead of them, if
        rounding may change their order, or if ``first`` does not wait in truth.
        """
        ((weight, known),) = self._lists.items()
        missing, now = first[3] - free, view.now
        others = self.waiting.others(first)
        if others:
            nearest = max(first, min(others))  # those before it in order do not fit
            behind = bisect_left(known, (_lowest(nearest[0], weight, now),))
            room = sum(map(_GPUS, known[behind:])) - missing
            if any(other > first and other[3] <= room for other in others):
                return None, 0
        if not waits(first, view):
            return None, 0
        return preempt_last(_backwards(known, weight, first, view), missing, others)

    def _behind(self, places: list[int], view: ClusterView) -> list[PlacedEntry]:
        """Return the running jobs from these places on, with the keys they have now, in order."""
        now, jobs = view.now, view.jobs
        tail: list[PlacedEntry] = []
        for place, (weight, known) in zip(places, self._lists.items(), strict=True):
            for anchor, number, name, gpus in known[place:]:
                job = jobs[name]
                if (phase := job.phase) is _RUNNING or phase is _PREEMPTING:
                    key = weight * (anchor - now) if anchor > now else 0.0
                    tail.append(((key, number, name, gpus), job))
        if len(tail) > 1:
            tail.sort(key=_KEY)
        return tail


def _backwards(
    known: list[Anchor], weight: int, first: Entry, view: ClusterView
) -> Iterator[JobView]:
    """Return those who run behind a job that waits, the last one first.

    Ends where two have the same key but not the same anchor: the list does not know their order.
    """
    now, jobs = view.now, view.jobs
    for index in range(len(known) - 1, -1, -1):
        anchor, _, name, _ = known[index]
        key = weight * (anchor - now)
        before = known[index - 1][0] if index else -math.inf
        if key <= first[0] or (weight * (before - now) >= key and before != anchor):
            return
        yield jobs[name]


def _lowest(key: float, weight: int, now: float) -> float:
    """Return an anchor that no running job with at least this key is below."""
    if key <= 0.0:
        return -math.inf  # past their estimate, all have key 0, whatever the anchor
    if key == math.inf:
        return key
    lowest = now + key / weight
    return lowest - _SLACK * abs(lowest)
