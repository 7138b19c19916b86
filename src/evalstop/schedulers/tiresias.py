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

from evalstop.core.actions import Action, Preempt, WakeAt
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
from evalstop.schedulers.queued import QueueFill

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


class _Place:
    """Where a job stands between the queues.

    ``key`` is 2 x queue for a job that stands among the running of its queue, and one more for
    one that stands among the waiting; ``rank`` is its order there.
    """

    __slots__ = ("forgiven", "job", "key", "rank", "start", "timer", "waited_s", "waits_since")

    def __init__(self, job: str, rank: int) -> None:
        self.job = job
        self.key = 1
        self.rank = rank
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
        self._limits = tuple(limits)
        self._promote = promote
        self._fill = QueueFill(keys=2 * len(limits) + 2)
        self._places: dict[str, _Place] = {}
        self._crossings: list[list[_Crossing]] = [[] for _ in limits]
        self._due_at = _NEVER  # no crossing is earlier
        self._awake_at = _NEVER  # the next crossing we are woken at
        self._stale = False  # whether that may be too late; that jobs leave only makes it early
        self._timers: dict[str, _Place] = {}
        self._ranks = _NOT_STARTED  # goes up: the tail of those who wait, or run
        self._front = 0  # goes down: ahead of those who wait
        self._next_timer = 0

    def decide(self, event: Event, view: ClusterView) -> Sequence[Action]:  # noqa: C901, PLR0912 -- one arm for each fact
        """Give the GPUs to the jobs that have had the least of them."""
        if type(event) is EvalReported:
            return ()
        now = view.now
        if self._awake_at <= now:
            self._awake_at = _NEVER
            self._stale = True
        behind = self._demote_those_due(view) if self._due_at <= now else ()
        asked: Sequence[Action] = ()
        if type(event) is JobStarted:
            self._started(self._places[event.job], view.jobs[event.job], now)
            if not behind:
                return self._wake_for_crossings(()) if self._stale else ()
        elif type(event) is JobEnded:
            self._fill.leave(event.job)
            place = self._places.pop(event.job)
            place.start = _NOT_STARTED
            if place.timer:
                self._set_timer(place, "")
        elif type(event) is JobSubmitted:
            name = event.job.id
            place = self._places[name] = _Place(name, self._last_rank())
            self._wait(place, event.job.gpus)
        elif type(event) is TimerFired:
            if event.token in self._timers:
                self._promote_at(event.token, view)
        elif type(event) is JobPreempted:
            asked = self._preempted(event.job, view)
        elif type(event) is not CapacityChanged and not behind:
            return ()
        actions = self._fill.fill(view)
        if behind:
            self._let_run(behind, actions, view)
        if asked:
            actions = [*asked, *actions]
        return self._wake_for_crossings(actions) if self._stale else actions

    def level(self, job: str) -> int:
        """Return which queue a job was in when last looked at, from 0."""
        return self._places[job].key // 2

    def _last_rank(self) -> int:
        self._ranks += 1
        return self._ranks

    # ---- crossings -----------------------------------------------------------------------

    def _demote_those_due(self, view: ClusterView) -> Sequence[_Place]:
        """Move jobs that have crossed a limit, in order of their crossings.

        A job that is still ahead of all who wait goes to the tail of those who run in its new
        queue. Others stand behind those who wait until the fill has decided: these are returned.
        """
        now = view.now
        lowest = self._fill.waiting.lowest()
        behind: list[_Place] = []
        while due := [heap for heap in self._crossings if heap and heap[0][0] <= now]:
            _, start, _, place = heappop(min(due))
            if place.start != start:
                continue  # it left its GPUs before
            job = view.jobs.get(place.job)
            if job is None or job.phase is not _RUNNING:
                continue  # on its way out: judged again when it comes back
            place.key = (place.key | 1) + 2
            place.rank = self._last_rank()
            if lowest <= place.key:
                self._fill.place((place.key, place.rank, place.job, job.held_gpus))
                behind.append(place)
            else:
                self._run(place, job)
        self._due_at = min([heap[0][0] for heap in self._crossings if heap], default=_NEVER)
        return behind

    def _let_run(
        self, behind: Sequence[_Place], actions: Sequence[Action], view: ClusterView
    ) -> None:
        """Let demoted jobs that keep their GPUs stand last among the running of their queue."""
        leaving = {action.job for action in actions if isinstance(action, Preempt)}
        for place in behind:
            if place.job not in leaving and place.job in view.jobs:
                self._run(place, view.jobs[place.job])

    def _wake_for_crossings(self, actions: Sequence[Action]) -> Sequence[Action]:
        """Ask to be woken at the next crossing that would put a job behind one that waits."""
        waiting = self._fill.waiting
        if not waiting.heads:
            return actions
        self._stale = False
        lowest = waiting.lowest()
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

    def _run(self, place: _Place, job: JobView) -> None:
        """Let a job stand last among the running of its queue."""
        place.key &= ~1
        place.rank = self._last_rank()
        self._fill.place((place.key, place.rank, job.id, job.held_gpus))

    def _wait(self, place: _Place, gpus: int) -> None:
        key, waiting = place.key, self._fill.waiting
        if not self._stale and key < waiting.lowest():
            self._stale = True
        waiting.add((key, place.rank, place.job, gpus))

    def _started(self, place: _Place, job: JobView, now: float) -> None:
        held = job.held_gpus
        self._ranks = rank = self._ranks + 1
        place.key = key = place.key & ~1
        place.rank = place.start = rank
        self._fill.place((key, rank, place.job, held))
        if place.waits_since == place.waits_since:
            place.waited_s += now - place.waits_since
            place.waits_since = math.nan
        if place.timer:
            self._set_timer(place, "")
        attained = job.gpu_seconds - place.forgiven
        limits, crossings = self._limits, self._crossings
        time = _NEVER
        for level in range(len(limits) - 1, key // 2 - 1, -1):
            left = limits[level] - attained
            time = now + left / held if left > 0.0 else now
            heappush(crossings[level], (time, rank, level, place))
        self._due_at = min(self._due_at, time)
        self._stale = self._stale or time < self._awake_at

    def _preempted(self, name: str, view: ClusterView) -> Sequence[Action]:
        """Let a job wait again; ask for the timer of its promotion where there is one."""
        self._fill.leave(name)
        job, place = view.jobs.get(name), self._places[name]
        place.start = _NOT_STARTED
        if job is None or job.phase is not _WAITING:
            return ()
        if not place.key & 1:
            self._front -= 1
            place.key, place.rank = place.key | 1, self._front
        self._wait(place, job.gpus)
        place.waits_since = view.now
        if not self._promote or place.key == 1:
            return ()
        executed = (job.gpu_seconds - place.forgiven) / job.gpus
        left = max(0.0, self._promote * executed - place.waited_s)
        self._next_timer += 1
        self._set_timer(place, f"{_PROMOTION}{self._next_timer}")
        return (WakeAt(time=view.now + left, token=place.timer),)

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
            self._wait(place, job.gpus)
