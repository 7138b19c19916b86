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
from sys import maxsize
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, get_args

from evalstop.core.actions import Action, Preempt, WakeAt
from evalstop.core.errors import SpecError
from evalstop.core.events import (
    CapacityChanged,
    EvalReported,
    Event,
    JobEnded,
    JobPreempted,
    JobStarted,
    JobSubmitted,
    TimerFired,
)
from evalstop.core.job import JobView, Phase
from evalstop.schedulers.queued import Place, QueueFill

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from evalstop.core.policy import ClusterView

__all__ = ["TIRESIAS_LIMITS", "Tiresias"]

TIRESIAS_LIMITS = (3_250.0, 7_200.0)
"""GPU-seconds; the queue limits that Tiresias's simulator uses."""

# Bound once: looking up a member of an Enum costs 0.25 us on CPython 3.11.
_RUNNING = Phase.RUNNING
_WAITING = Phase.WAITING

_NEVER = math.inf
_NO_LEVEL = maxsize
_CROSSING = "tiresias crossing"
_PROMOTION = "tiresias promotion "


class _Place(Place):
    """Where a job stands between the queues, and what it takes to move it.

    ``key`` is 2 x queue for a job that stands among the running of its queue, and one more for
    one that stands among the waiting; ``rank`` is its order there.
    """

    __slots__ = ("forgiven", "start", "timer", "waited_s", "waits_since")

    def __init__(self, job: str, rank: int) -> None:  # every slot here: a call costs more than it
        self.job = job
        self.key = 1
        self.rank = rank
        self.gpus = 0
        self.runs = False
        self.start = _NOT_STARTED  # rank of the start it runs on; crossings of others are void
        self.forgiven = 0.0  # attained service at the last promotion
        self.waited_s = 0.0  # in waits after a first start that are over, since the promotion
        self.waits_since = math.nan  # start of such a wait; NaN outside of one
        self.timer = ""  # of its promotion; older ones are void


_NOT_STARTED = 0
"""Ranks of those who start are above."""

_NOBODY = _Place("", _NOT_STARTED)
"""Whose crossing is the last of every heap, and never comes."""

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
        self._crossings: list[list[_Crossing]] = [
            [(_NEVER, _NOT_STARTED, level, _NOBODY)] for level in range(len(limits))
        ]
        levels = tuple(zip(range(len(limits)), limits, self._crossings, strict=True))
        self._limits_from = [levels[level:][::-1] for level in range(len(limits) + 1)]
        """Levels, limits and heaps that a job of each queue has ahead of it, the last one first."""
        self._promote = promote
        self._fill = QueueFill(queues=len(limits) + 1)
        self._places: dict[str, _Place] = {}
        self._behind: Sequence[Place] = ()  # who has crossed and stands behind those who wait
        self._concern: dict[float, int] = {
            2 * queue + 1: max(0, queue - 1) for queue in range(len(limits) + 1)
        }
        """Lowest level whose crossings concern who waits, by the smallest key of these."""
        self._concern[math.inf] = _NO_LEVEL
        self._look_at = _NEVER  # no crossing is earlier, nor what we are woken for
        # We are woken no later than at the next crossing of this level or a higher one, which are
        # those that concern anyone who waits; that jobs leave only makes it early.
        self._awake_at = _NEVER
        self._awake_for = _NO_LEVEL
        self._timers: dict[str, _Place] = {}
        self._front = 0  # goes down: ahead of those who wait
        self._next_timer = 0

    def decide(self, event: Event, view: ClusterView) -> Sequence[Action]:
        """Give the GPUs to the jobs that have had the least of them."""
        if self._look_at <= view.now:
            return self._decide_late(event, view)
        return _ARMS[type(event)](self, event, view)

    def level(self, job: str) -> int:
        """Return which queue a job was in when last looked at, from 0."""
        return self._places[job].key // 2

    # ---- crossings -----------------------------------------------------------------------

    def _decide_late(self, event: Event, view: ClusterView) -> Sequence[Action]:
        """Demote who has crossed a limit, then decide.

        A job that is still ahead of all who wait goes to the tail of those who run in its new
        queue. Others stand behind those who wait until the fill has decided.
        """
        if type(event) is EvalReported:
            return ()
        if self._awake_at <= view.now:
            self._awake_at = _NEVER
            self._awake_for = _NO_LEVEL
        fill, crossed = self._fill, self._crossed(view)
        if type(event) is TimerFired and event.token not in self._timers:
            if not crossed:
                idle = fill.settled == view.free_gpus
            else:
                idle = len(crossed) == 1 and fill.demote_unnoticed(crossed[0], view.free_gpus)
            if idle:
                return self._ask(())
        if crossed:
            self._behind = fill.demote(crossed)
        actions = _ARMS[type(event)](self, event, view)
        if self._behind:
            actions = [*self._fill_up(view), *actions]
        return self._ask(actions) if self._awake_for == _NO_LEVEL else actions

    def _crossed(self, view: ClusterView) -> list[_Place]:
        """Return who has crossed a limit and runs on; in order for each limit."""
        now, jobs, look_at = view.now, view.jobs, self._awake_at
        crossed: list[_Place] = []
        for heap in self._crossings:
            while True:
                time, start, _, place = heap[0]
                if place.start != start:
                    heappop(heap)  # it left its GPUs before
                elif time <= now:
                    heappop(heap)
                    job = jobs.get(place.job)
                    if job is not None and job.phase is _RUNNING:
                        crossed.append(place)
                    # Else it is on its way out: judged again when it comes back.
                else:
                    if time < look_at:  # noqa: PLR1730 -- a call costs more than the rest
                        look_at = time
                    break
        self._look_at = look_at
        return crossed

    def _fill_up(self, view: ClusterView) -> Sequence[Action]:
        actions = self._fill.fill(view)
        if self._behind:
            self._settle_behind(actions)
        return actions

    def _settle_behind(self, actions: Sequence[Action]) -> None:
        """Let those who crossed and keep their GPUs stand last among the running of their queue."""
        leaving = {action.job for action in actions if type(action) is Preempt}
        for place in self._behind:
            if place.runs and place.job not in leaving:
                self._fill.step_ahead(place)
        self._behind = ()

    def _ask(self, actions: Sequence[Action]) -> Sequence[Action]:
        """Ask to be woken at the next crossing that would put a job behind one that waits."""
        ordered = self._fill.waiting.ordered
        level = self._concern[ordered[0][0] if ordered else _NEVER]
        if level >= self._awake_for:
            return actions
        self._awake_for = level
        time = _NEVER
        for heap in self._crossings[level:]:
            while heap[0][3].start != heap[0][1]:
                heappop(heap)
            time = min(time, heap[0][0])
        if time < self._awake_at:
            self._awake_at = time
            return [*actions, WakeAt(time=time, token=_CROSSING)]
        return actions

    # ---- what happens --------------------------------------------------------------------

    def _submitted(self, event: JobSubmitted, view: ClusterView) -> Sequence[Action]:
        name, gpus, fill = event.job.id, event.job.gpus, self._fill
        fill.tail = rank = fill.tail + 1
        self._places[name] = _Place(name, rank)
        settled = view.free_gpus == fill.settled
        if settled and gpus <= fill.settled:
            return fill.start(name, gpus, view)
        actions = fill.enter((1, rank, name, gpus), view)
        if settled and actions:
            return actions  # room is made for it: no crossing concerns it, nor others anew
        if self._behind:
            self._settle_behind(actions)
        return self._ask(actions)

    def _started(self, event: JobStarted, view: ClusterView) -> Sequence[Action]:
        """Let a job run; ask to be woken at its crossing if that comes before all others."""
        name, now = event.job, view.now
        place, job = self._places[name], view.jobs[name]
        held, fill = job.held_gpus, self._fill
        fill.tail = rank = fill.tail + 1
        place.rank = place.start = rank
        place.key = key = place.key & ~1
        fill.run(place, held, now)
        if self._promote:
            self._wait_is_over(place, now)
        attained = job.gpu_seconds - place.forgiven
        awake_for, limits = self._awake_for, self._limits_from[key >> 1]
        if not limits and awake_for != _NO_LEVEL:
            return ()
        time = soonest = _NEVER
        for level, limit, heap in limits:
            left = limit - attained
            time = now + left / held if left > 0.0 else now
            heappush(heap, (time, rank, level, place))
            if level >= awake_for:
                soonest = time
        if time < self._look_at:  # noqa: PLR1730 -- a call of min costs more than the rest
            self._look_at = time
        if awake_for == _NO_LEVEL:
            return self._ask(()) if fill.waiting.heads else ()
        if soonest >= self._awake_at:
            return ()
        if self._concern[fill.waiting.lowest()] > awake_for:
            self._awake_for = _NO_LEVEL  # those of this level concern nobody any more
            return self._ask(())
        self._awake_at = soonest
        return (WakeAt(time=soonest, token=_CROSSING),)

    def _ended(self, event: JobEnded, view: ClusterView) -> Sequence[Action]:
        place = self._places.pop(event.job)
        fill = self._fill
        fill.leave(place)
        place.start = _NOT_STARTED
        if place.timer:
            self._set_timer(place, "")
        actions = fill.fill(view)
        if self._behind:
            self._settle_behind(actions)
        return self._ask(actions) if self._awake_for == _NO_LEVEL else actions

    def _preempted(self, event: JobPreempted, view: ClusterView) -> Sequence[Action]:
        """Let a job wait again; ask for the timer of its promotion where there is one."""
        name, fill = event.job, self._fill
        job, place = view.jobs.get(name), self._places[name]
        fill.leave(place)
        place.start = _NOT_STARTED
        if job is None or job.phase is not _WAITING:
            return self._ask(self._fill_up(view))
        key = place.key
        if not key & 1:
            place.key = key = key | 1
            self._front = place.rank = self._front - 1
        fill.waiting.add((key, place.rank, name, job.gpus))
        actions = self._fill_up(view) if self._behind else fill.fill_freed(place, view)
        if self._promote:
            actions = [*actions, *self._wait_for_promotion(place, job, view.now)]
        return self._ask(actions) if self._concern[key] < self._awake_for else actions

    def _woken(self, event: TimerFired, view: ClusterView) -> Sequence[Action]:
        if event.token in self._timers:
            self._promote_at(event.token, view)
        elif self._fill.settled == view.free_gpus:
            return ()
        return self._ask(self._fill_up(view))

    def _change_capacity(self, event: CapacityChanged, view: ClusterView) -> Sequence[Action]:
        del event
        return self._ask(self._fill_up(view))

    def _ignore(self, event: Event, view: ClusterView) -> Sequence[Action]:
        del event, view
        return ()

    # ---- promotion -----------------------------------------------------------------------

    def _wait_is_over(self, place: _Place, now: float) -> None:
        if place.waits_since == place.waits_since:
            place.waited_s += now - place.waits_since
            place.waits_since = math.nan
        if place.timer:
            self._set_timer(place, "")

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
            self._fill.tail = rank = self._fill.tail + 1
            place.key, place.rank = 1, rank
            place.forgiven = job.gpu_seconds
            place.waited_s, place.waits_since = 0.0, view.now
            self._fill.waiting.add((1, rank, place.job, job.gpus))

    ARMS: ClassVar[Mapping[type, Callable[[Tiresias, Any, ClusterView], Sequence[Action]]]] = {
        **dict.fromkeys(get_args(Event), _ignore),
        CapacityChanged: _change_capacity,
        JobEnded: _ended,
        JobPreempted: _preempted,
        JobStarted: _started,
        JobSubmitted: _submitted,
        TimerFired: _woken,
    }


_ARMS = Tiresias.ARMS
"""Bound once: CPython 3.11 finds what belongs to a class slowly through its objects."""
