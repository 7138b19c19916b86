"""Greedy gang fill in order of a key that falls with time, without looking at every job.

The walk is that of `evalstop.schedulers.walk`. Keys of waiting jobs stand still. Those of running
jobs fall with time, at one speed for all jobs of one weight (remaining time, remaining
GPU-service). So within a weight the order of an *anchor* never changes: the end projected by the
estimate. One sorted list for each weight then gives the running jobs behind any key in
O(log running).

Only the first waiting job of each gang size can be the first to fit, and it fits iff its gang is
no larger than R(key) = free GPUs + GPUs of running jobs with larger keys. At a full cluster with
a backlog that is the end of the list: O(sizes + jobs displaced) an event, whatever the backlog.

**Rest.** Once nobody who waits fits, time alone changes nothing: keys of those who run fall, those
of who waits stand still, so R only falls. Then a new job is the only one that may fit, and when
GPUs come free, nobody fits any longer as soon as as many are taken again. A `Plan` likewise keeps
what a walk has chosen for the facts of its preemptions, as long as the time is the same.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from operator import itemgetter
from typing import TYPE_CHECKING

from evalstop.core.actions import Action, Start
from evalstop.core.job import Phase
from evalstop.schedulers.anchors import backwards, is_near, lowest
from evalstop.schedulers.waiting import Entry, WaitingJobs
from evalstop.schedulers.walk import (
    PlacedEntry,
    Plan,
    all_but,
    preempt_last,
    start_who_fits,
    take,
    waits,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.core.job import JobView
    from evalstop.core.policy import ClusterView
    from evalstop.schedulers.anchors import Anchor

__all__ = ["GreedyFill"]

# Bound once: looking up a member of an Enum costs 0.25 us on CPython 3.11.
_PREEMPTING = Phase.PREEMPTING
_RUNNING = Phase.RUNNING

_UNKNOWN = -math.inf

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
        self._placed = 0
        """GPUs of all who run."""
        self._rest: float = _UNKNOWN
        """Nobody who waits fits with as many GPUs free, or fewer, counting those who were started
        and do not run yet as if they did."""
        self._plan: Plan | None = None

    def place(self, anchor: Anchor, weight: int, gpus: int) -> None:
        """Note that a job of a gang of ``gpus`` runs; one that does already gets the new anchor."""
        name = anchor[2]
        plan = self._plan
        if (
            name in self.waiting
            or name in self._anchors
            or anchor[3] != gpus
            or (plan is not None and any(name == entry[2] for entry in plan.chosen))
        ):  # it was not us who started it so
            self.leave(name)
            self._rest = _UNKNOWN
            if plan is not None:
                plan.time = math.nan
        self._anchors[name] = (weight, anchor)
        self._placed += anchor[3]
        known = self._lists.get(weight)
        if known is None:
            known = self._lists[weight] = []
        insort(known, anchor)

    def leave(self, name: str) -> None:
        """Forget a job: it waits and runs no longer."""
        if name in self._anchors:
            self._take_off(name)
            return
        self.waiting.discard(name)
        plan = self._plan
        if plan is not None:
            plan.chosen = [entry for entry in plan.chosen if entry[2] != name]

    def come(self, entry: Entry, view: ClusterView) -> Sequence[Action]:
        """Let a new job wait, the last of all; return who to preempt and who to start."""
        free, size = view.free_gpus, entry[3]
        if free <= self._rest:  # nobody else fits
            if size <= free:
                self._rest = free - size
                return [Start(job=entry[2], gpus=size)]
            last = self._behind_newcomer(entry, size - free, view)
            if last is not None:
                return self._make_room(entry, last, view)
        self.waiting.add(entry)
        self._rest = _UNKNOWN
        return self.fill(view)

    def come_back(self, entry: Entry, view: ClusterView) -> Sequence[Action]:
        """Let a job that was preempted wait again; return who to preempt and who to start."""
        plan, name, now = self._plan, entry[2], view.now
        ran = self._anchors.get(name)
        self.leave(name)
        self.waiting.add(entry)
        if (
            plan is None
            or ran is None
            or plan.time != now
            or name not in plan.leaving
            or not is_near(entry[0], ran[0], ran[1][0], now)
        ):
            self._rest = _UNKNOWN
            return self.fill(view)
        plan.leaving.remove(name)
        for first in plan.chosen:
            if not waits(first, view):
                self._rest = _UNKNOWN
                return self.fill(view)
        starts: list[Action] = []
        free, left = start_who_fits(plan.chosen, view.free_gpus, starts)
        plan.chosen = left
        if not plan.leaving:
            self._plan = None
            self._rest = free if not left else _UNKNOWN
            for first in left:  # whose GPUs others are to leave, since before
                self.waiting.add(first)
        return starts

    def fill(self, view: ClusterView) -> Sequence[Action]:
        """Return who to preempt and who to start, so that the walk's choice comes true."""
        waiting = self.waiting
        ordered = waiting.ordered
        free, rest = view.free_gpus, self._rest
        # Else some were started and do not run yet, or more is on its way than is known here.
        whole = view.total_gpus - free == self._placed
        if self._plan is not None:
            for entry in self._plan.chosen:
                if waits(entry, view):
                    waiting.add(entry)
            self._plan = None
        starts: list[Action] = []
        while ordered and free > rest:
            found = self._first_that_fits(free, view.now)
            if found is None:
                break
            places, first = found
            if first[3] > free:
                return self._displace(places, first, starts, view, whole=whole)
            # It fits beside all who run: nobody behind it loses anything.
            taken = take(first, waiting, view)
            if taken:
                free -= taken
                starts.append(Start(job=first[2], gpus=taken))
        self._rest = free if whole else _UNKNOWN
        return starts

    def _take_off(self, name: str) -> None:
        weight, anchor = self._anchors.pop(name)
        known = self._lists[weight]
        del known[bisect_left(known, anchor)]
        self._placed -= anchor[3]

    def _behind_newcomer(
        self, newcomer: Entry, missing: int, view: ClusterView
    ) -> list[JobView] | None:
        """Return those who run from whose GPUs a job may take what it needs, last one first.

        They are the last who run. Empty if that is not enough; None if the list does not tell the
        order of those who run.

        Args:
            newcomer: the last of all jobs, so that it comes behind others of its key.
            missing: GPUs that it needs beside the free ones, > 0.
            view: the cluster as it is.
        """
        lists = self._lists
        if len(lists) != 1:
            return None
        ((weight, known),) = lists.items()
        key, now, jobs = newcomer[0], view.now, view.jobs
        last: list[JobView] = []
        for index in range(len(known) - 1, -1, -1):
            anchor, _, name, _ = known[index]
            behind = weight * (anchor - now)
            if behind <= key:
                break
            before = known[index - 1][0] if index else -math.inf
            job = jobs[name]
            if job.phase is not _RUNNING or (
                weight * (before - now) >= behind and before != anchor
            ):
                return None
            last.append(job)
            missing -= job.held_gpus
            if missing <= 0:
                return last
        return []

    def _make_room(
        self, newcomer: Entry, last: list[JobView], view: ClusterView
    ) -> Sequence[Action]:
        """Walk from a new job on, where nobody else fits; return who is to be preempted.

        All who run ahead of ``last`` keep what they have, and nobody who waits ahead of them fits
        now. Nor does anyone else if fewer GPUs are left over than anyone asks for.

        Args:
            newcomer: the job.
            last: those who run from whom it may take what it needs, last one first; maybe nobody.
            view: the cluster as it is.
        """
        free = view.free_gpus
        whole = view.total_gpus - free == self._placed
        if not last:
            self.waiting.add(newcomer)
            self._rest = free if whole else _UNKNOWN
            return ()
        missing = newcomer[3] - free
        spare = sum([job.held_gpus for job in last]) - missing
        if not spare or spare < min(self.waiting.heads, default=math.inf):
            return self._order([newcomer], all_but(spare, last), [], free, view, whole=whole)
        ((_, known),) = self._lists.items()
        tail = self._behind([len(known) - len(last)], view)
        walked, preempts = walk(tail, -missing, self.waiting, view)
        return self._order([newcomer, *walked], preempts, [], free, view, whole=whole)

    def _displace(
        self,
        places: list[int],
        first: Entry,
        starts: list[Action],
        view: ClusterView,
        *,
        whole: bool,
    ) -> Sequence[Action]:
        """Walk from the first job that fits on, which needs GPUs of those who run.

        A chosen job whose GPUs are not free yet goes on waiting: the facts of the preemptions bring
        it to start.

        Args:
            places: how many of each list come before it.
            first: the job.
            starts: those who start already, beside all who run.
            view: the cluster as it is before any of this.
            whole: whether all GPUs in use are known to be.
        """
        waiting = self.waiting
        free = view.free_gpus - sum([action.gpus for action in starts if type(action) is Start])
        chosen, preempts = [first], None
        if len(places) == 1:
            preempts, last = self._preempt_last(first, free, view)
            if preempts is not None:
                waiting.discard(first[2])
            elif last:
                ((_, known),) = self._lists.items()
                places = [len(known) - last]
        if preempts is None:
            chosen, preempts = walk(self._behind(places, view), free, waiting, view)
        return self._order(chosen, preempts, starts, free, view, whole=whole)

    def _order(
        self,
        chosen: list[Entry],
        preempts: list[Action],
        starts: list[Action],
        free: int,
        view: ClusterView,
        *,
        whole: bool,
    ) -> Sequence[Action]:
        """Start those chosen who fit into what is free; keep the others until the rest is done."""
        free, left = start_who_fits(chosen, free, starts)
        self._rest = free if whole and not left and not preempts else _UNKNOWN
        if preempts and whole:
            self._plan = Plan(view.now, preempts, left)
        else:
            for entry in left:
                self.waiting.add(entry)
        return [*preempts, *starts] if starts else preempts

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
        for head in reversed(self.waiting.ordered):
            key = head[0]
            for number, (weight, known) in enumerate(lists.items()):
                place = places[number]
                if place and known[place - 1][0] >= (least := lowest(key, weight, now)):
                    while place and known[place - 1][0] >= least:
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
        end = known[-1][0] if known else -math.inf
        room, before = -1, 0
        for head in waiting.ordered:
            size = head[3]
            if size <= free:
                return [before], head  # where it stands plays no part
            least = lowest(head[0], weight, now)
            if end < least:  # nobody who runs is behind those who are left
                fits = waiting.first(free) if free > 0 else None
                return None if fits is None else ([before], fits)
            place = bisect_left(known, (least,), before)
            if room < 0:
                room = free + sum(map(_GPUS, known[place:]))
            elif place > before:
                room -= sum(map(_GPUS, known[before:place]))
            if size <= room:
                return [place], head
            if room < min(waiting.heads):
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
            behind = bisect_left(known, (lowest(nearest[0], weight, now),))
            room = sum(map(_GPUS, known[behind:])) - missing
            if any(other > first and other[3] <= room for other in others):
                return None, 0
        if not waits(first, view):
            return None, 0
        return preempt_last(backwards(known, weight, first, view), missing, others)

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
