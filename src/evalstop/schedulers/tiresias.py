"""Tiresias: discretised two-dimensional least attained service (2D-LAS).

Attained service a = GPU-seconds held so far (executed time x GPUs). Queues 0..n have limits
l_0 < ... < l_(n-1); a job enters queue 0 and moves to the tail of queue i + 1 in the instant in
which a reaches l_i. The GPUs are filled greedily with whole gangs, queue by queue, preemptively;
within a queue those who run come before those who wait, each in the order they came to do so,
and a preempted job waits ahead of those who waited already.

Starvation: a job below queue 0 that has waited, all waits together, ``promote`` times as long as
it has executed goes back to the tail of queue 0, and both count anew from there (the PromoteKnob
of the paper, STARVELIMIT of its simulator). Off by default.

Gu et al., Tiresias: a GPU cluster manager for distributed deep learning, NSDI 2019. Default
limits are the two that its simulator uses: it ships a third, 18,000, with three queues, so that
it is never reached. That simulator rounds times to whole seconds and mis-times the demotions of
jobs on more than one GPU; here they are exact, by timers.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import TYPE_CHECKING, TypeAlias

from evalstop.core.actions import Action, Preempt, Start, WakeAt
from evalstop.core.errors import SpecError
from evalstop.core.events import (
    CapacityChanged,
    EvalReported,
    JobEnded,
    JobPreempted,
    JobStarted,
    JobSubmitted,
    TimerFired,
)
from evalstop.core.job import JobView, Phase
from evalstop.schedulers.queued import Place, QueueFill

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.core.events import Event
    from evalstop.core.policy import ClusterView

__all__ = ["TIRESIAS_LIMITS", "Tiresias"]

TIRESIAS_LIMITS = (3_250.0, 7_200.0)
"""GPU-seconds; the queue limits that Tiresias's simulator uses."""

# Bound once: looking up a member of an Enum costs 0.25 us on CPython 3.11.
_RUNNING = Phase.RUNNING
_WAITING = Phase.WAITING

_NEVER = math.inf
_CROSSING = "tiresias crossing"
_PROMOTION = "tiresias promotion "


class _Place(Place):
    """Where a job stands between the queues, and what it takes to move it.

    ``key`` is 2 x queue for a job that stands among the running of its queue, and one more for
    one that stands among the waiting; ``rank`` is its order there.
    """

    __slots__ = ("forgiven", "start", "timer", "waited_s", "waits_since")

    def __init__(self, job: str, rank: int) -> None:
        super().__init__(job, 1, rank)
        self.start = _NOT_STARTED  # rank of the start it runs on; crossings of others are void
        self.forgiven = 0.0  # attained service at the last promotion
        self.waited_s = 0.0  # in waits after a first start that are over, since the promotion
        self.waits_since = math.nan  # start of such a wait; NaN outside of one
        self.timer = ""  # of its promotion; older ones are void


_NOT_STARTED = 0
"""Ranks of those who start are above."""

_Crossing: TypeAlias = tuple[float, int, int, _Place]
"""When a running job reaches a limit if it runs on; rank of its start; level; whose."""


class Tiresias:
    """Discretised 2D-LAS with demotion at the crossing and optional promotion.

    Args:
        limits: GPU-seconds at which a job leaves queue 0, 1, ...; increasing.
        promote: waiting time over executed time at which a job is promoted; 0: never.

    Cost: that of `evalstop.schedulers.queued`. A timer is asked for only where a demotion could
    let a waiting job in; other demotions are made up for, in order, at the next event.

    Raises:
        SpecError: if limits do not increase from above 0, or ``promote`` is negative.
    """

    hears_evals = False

    def __init__(self, *, limits: Sequence[float] = TIRESIAS_LIMITS, promote: float = 0.0) -> None:
        if any(low >= high for low, high in zip((0.0, *limits), limits, strict=False)):
            msg = f"tiresias: limits must increase from above 0, but got {tuple(limits)}"
            raise SpecError(msg)
        if not promote >= 0:
            msg = f"tiresias: promote must be 0 (never) or above, but got {promote}"
            raise SpecError(msg)
        levels = tuple(enumerate(limits))
        self._limits_from = [levels[level:][::-1] for level in range(len(limits) + 1)]
        """Levels and limits that a job of each queue has ahead of it, the last one first."""
        self._promote = promote
        self._fill = QueueFill(queues=len(limits) + 1)
        self._places: dict[str, _Place] = {}
        self._crossings: list[list[_Crossing]] = [[] for _ in limits]
        self._look_at = _NEVER  # no crossing is earlier, nor what we are woken for
        # We are woken at a crossing no later than the next that concerns who waits with this key
        # or a larger one; that jobs leave only makes it early.
        self._awake_at = _NEVER
        self._awake_for = _NEVER
        self._timers: dict[str, _Place] = {}
        self._ranks = _NOT_STARTED  # goes up: the tail of those who wait, or run
        self._front = 0  # goes down: ahead of those who wait
        self._next_timer = 0

    def decide(self, event: Event, view: ClusterView) -> Sequence[Action]:  # noqa: C901 -- one arm for each fact
        """Give the GPUs to the jobs that have had the least of them."""
        if type(event) is EvalReported:
            return ()
        behind: Sequence[_Place] | None = ()
        if self._look_at <= view.now:
            behind = self._catch_up(event, view)
            if behind is None:
                return self._ask(())
        asked: Sequence[Action] = ()
        if type(event) is JobStarted:
            woken = self._started(self._places[event.job], view.jobs[event.job], view.now)
            return [*self._fill_behind(behind, view), *woken] if behind else woken
        if type(event) is JobEnded:
            place = self._places.pop(event.job)
            self._fill.leave(place)
            place.start = _NOT_STARTED
            if place.timer:
                self._set_timer(place, "")
        elif type(event) is JobSubmitted:
            name, gpus = event.job.id, event.job.gpus
            place = self._places[name] = _Place(name, self._last_rank())
            free = view.free_gpus
            if gpus <= free and not behind and not self._fill.fits(free):
                return self._ask((Start(job=name, gpus=gpus),))  # the only one that fits
            self._fill.waiting.add((1, place.rank, name, gpus))
        elif type(event) is JobPreempted:
            asked = self._preempted(event.job, view)
        elif type(event) is TimerFired:
            if event.token in self._timers:
                self._promote_at(event.token, view)
        elif type(event) is not CapacityChanged and not behind:
            return ()
        actions = self._fill_behind(behind, view) if behind else self._fill.fill(view)
        return self._ask([*asked, *actions] if asked else actions)

    def level(self, job: str) -> int:
        """Return which queue a job was in when last looked at, from 0."""
        return self._places[job].key // 2

    def _last_rank(self) -> int:
        self._ranks += 1
        return self._ranks

    # ---- crossings -----------------------------------------------------------------------

    def _catch_up(self, event: Event, view: ClusterView) -> Sequence[_Place] | None:
        """Demote who has crossed a limit: see `_demote`; None if nothing else is to be done."""
        if self._awake_at <= view.now:
            self._awake_at = self._awake_for = _NEVER
        crossed = self._crossed(view)
        if not crossed:
            return ()
        if type(event) is TimerFired and self._demote_unnoticed(event.token, crossed, view):
            return None
        return self._demote(crossed)

    def _crossed(self, view: ClusterView) -> Sequence[tuple[_Place, JobView]]:
        """Return who has crossed a limit and runs on, in order of their crossings."""
        now, jobs = view.now, view.jobs
        crossed: list[tuple[_Place, JobView]] = []
        while True:
            nearest: list[_Crossing] | None = None
            for heap in self._crossings:
                if heap and (nearest is None or heap[0] < nearest[0]):
                    nearest = heap
            if nearest is None:
                self._look_at = self._awake_at
                return crossed
            time, start, _, place = nearest[0]
            if place.start != start:
                heappop(nearest)  # it left its GPUs before
            elif time <= now:
                heappop(nearest)
                job = jobs.get(place.job)
                if job is not None and job.phase is _RUNNING:
                    crossed.append((place, job))
                # Else it is on its way out: judged again when it comes back.
            else:
                self._look_at = min(time, self._awake_at)
                return crossed

    def _demote(self, crossed: Sequence[tuple[_Place, JobView]]) -> Sequence[_Place]:
        """Move jobs that have crossed a limit, in order of their crossings.

        A job that is still ahead of all who wait goes to the tail of those who run in its new
        queue. Others stand behind those who wait until the fill has decided: these are returned.
        """
        lowest = self._fill.waiting.lowest()
        behind: list[_Place] = []
        for place, job in crossed:
            key = (place.key | 1) + 2
            if lowest <= key:
                self._fill.move(place, key, self._last_rank(), job.held_gpus)
                behind.append(place)
            else:
                self._fill.move(place, key - 1, self._last_rank(), job.held_gpus)
        return behind

    def _demote_unnoticed(
        self, timer: str, crossed: Sequence[tuple[_Place, JobView]], view: ClusterView
    ) -> bool:
        """Move a lone job that has crossed a limit if that lets nobody in; return whether it was.

        What `_demote`, and a `_fill_behind` that finds nobody come to, in a third of the time.
        """
        if len(crossed) > 1 or timer in self._timers:
            return False
        ((place, job),) = crossed
        key = (place.key | 1) + 2
        if self._fill.fits_once_demoted(place, key, view.free_gpus):
            return False
        self._fill.move(place, key - 1, self._last_rank(), job.held_gpus)
        return True

    def _fill_behind(self, behind: Sequence[_Place], view: ClusterView) -> Sequence[Action]:
        """Fill; those who keep their GPUs stand last among the running of their queue then."""
        actions = self._fill.fill(view)
        leaving = {action.job for action in actions if type(action) is Preempt}
        for place in behind:
            name = place.job
            if name not in leaving and name in view.jobs:
                gpus = view.jobs[name].held_gpus
                self._fill.move(place, place.key & ~1, self._last_rank(), gpus)
        return actions

    def _ask(self, actions: Sequence[Action]) -> Sequence[Action]:
        """Ask to be woken at the next crossing that would put a job behind one that waits."""
        lowest = self._fill.waiting.lowest()
        if lowest >= self._awake_for:
            return actions
        self._awake_for = lowest
        time = _NEVER
        for level, heap in enumerate(self._crossings):
            while heap and heap[0][3].start != heap[0][1]:
                heappop(heap)
            if heap and 2 * level + 3 >= lowest and heap[0][0] < time:
                time = heap[0][0]
        if time < self._awake_at:
            self._awake_at = time
            return [*actions, WakeAt(time=time, token=_CROSSING)]
        return actions

    # ---- jobs ----------------------------------------------------------------------------

    def _started(self, place: _Place, job: JobView, now: float) -> Sequence[Action]:
        """Let a job run; ask to be woken at its crossing if that comes before all others."""
        held = job.held_gpus
        self._ranks = rank = self._ranks + 1
        place.rank = place.start = rank
        place.key = key = place.key & ~1
        self._fill.run(place, held)
        if self._promote:
            self._wait_is_over(place, now)
        attained = job.gpu_seconds - place.forgiven
        crossings = self._crossings
        time = _NEVER
        for level, limit in self._limits_from[key >> 1]:
            left = limit - attained
            time = now + left / held if left > 0.0 else now
            heappush(crossings[level], (time, rank, level, place))
        if time < self._look_at:  # noqa: PLR1730 -- a call of min costs more than the rest
            self._look_at = time
        if self._awake_for == _NEVER:
            return self._ask(())
        if time >= self._awake_at:
            return ()
        lowest = self._fill.waiting.lowest()
        if lowest > (key | 1) + 2:  # the next concerns nobody, a later one may
            self._awake_for = _NEVER
            return self._ask(())
        self._awake_for = lowest
        self._awake_at = time
        return (WakeAt(time=time, token=_CROSSING),)

    def _wait_is_over(self, place: _Place, now: float) -> None:
        if place.waits_since == place.waits_since:
            place.waited_s += now - place.waits_since
            place.waits_since = math.nan
        if place.timer:
            self._set_timer(place, "")

    def _preempted(self, name: str, view: ClusterView) -> Sequence[Action]:
        """Let a job wait again; ask for the timer of its promotion where there is one."""
        job, place = view.jobs.get(name), self._places[name]
        self._fill.leave(place)
        place.start = _NOT_STARTED
        if job is None or job.phase is not _WAITING:
            return ()
        if not place.key & 1:
            self._front -= 1
            place.key, place.rank = place.key | 1, self._front
        self._fill.waiting.add((place.key, place.rank, name, job.gpus))
        return self._wait_for_promotion(place, job, view.now) if self._promote else ()

    def _wait_for_promotion(self, place: _Place, job: JobView, now: float) -> Sequence[Action]:
        """Ask for the timer of a promotion."""
        place.waits_since = now
        if place.key == 1:
            return ()
        executed = (job.gpu_seconds - place.forgiven) / job.gpus
        left = max(0.0, self._promote * executed - place.waited_s)
        self._next_timer += 1
        self._set_timer(place, f"{_PROMOTION}{self._next_timer}")
        return (WakeAt(time=now + left, token=place.timer),)

    def _set_timer(self, place: _Place, token: str) -> None:
        self._timers.pop(place.timer, None)
        place.timer = token
        if token:
            self._timers[token] = place

    def _promote_at(self, timer: str, view: ClusterView) -> None:
        """Promote the job whose wait has become too long."""
        place = self._timers[timer]
        self._set_timer(place, "")
        job = view.jobs[place.job]
        if job.phase is _WAITING:
            place.key, place.rank = 1, self._last_rank()
            place.forgiven = job.gpu_seconds
            place.waited_s, place.waits_since = 0.0, view.now
            self._fill.waiting.add((1, place.rank, place.job, job.gpus))
