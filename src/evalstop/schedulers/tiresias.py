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
from typing import TYPE_CHECKING

from evalstop.core.actions import Action, Preempt, WakeAt
from evalstop.core.errors import SpecError
from evalstop.core.events import (
    CapacityChanged,
    JobEnded,
    JobPreempted,
    JobStarted,
    JobSubmitted,
    TimerFired,
)
from evalstop.core.job import JobView, Phase
from evalstop.schedulers.greedy import GreedyFill

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.core.events import Event
    from evalstop.core.policy import ClusterView

__all__ = ["TIRESIAS_LIMITS", "Tiresias"]

TIRESIAS_LIMITS = (3_250.0, 7_200.0)
"""GPU-seconds; the queue limits that Tiresias's simulator uses."""

_TOKEN = "tiresias "  # noqa: S105 -- names a timer


class _Place:
    """Where a job stands between the queues.

    ``key`` is 2 x queue for a job that stands among the running of its queue, and one more for
    one that stands among the waiting; ``rank`` is its order there.
    """

    __slots__ = ("forgiven", "job", "key", "rank", "timer", "waited_s", "waits_since")

    def __init__(self, job: str, rank: int) -> None:
        self.job = job
        self.key = 1
        self.rank = rank
        self.forgiven = 0.0  # attained service at the last promotion
        self.waited_s = 0.0  # in waits after a first start that are over, since the promotion
        self.waits_since = math.nan  # start of such a wait; NaN outside of one
        self.timer = ""  # the one timer that counts; older ones are void


class Tiresias:
    """Discretised 2D-LAS with demotion at the crossing and optional promotion.

    Args:
        limits: GPU-seconds at which a job leaves queue 0, 1, ...; increasing.
        promote: waiting time over executed time at which a job is promoted; 0: never.

    Cost: that of `evalstop.schedulers.greedy`; one timer for each start.

    Raises:
        SpecError: if limits do not increase from above 0, or ``promote`` is negative.
    """

    def __init__(self, *, limits: Sequence[float] = TIRESIAS_LIMITS, promote: float = 0.0) -> None:
        if any(low >= high for low, high in zip((0.0, *limits), limits, strict=False)):
            msg = f"tiresias: limits must increase from above 0, but got {tuple(limits)}"
            raise SpecError(msg)
        if not promote >= 0:
            msg = f"tiresias: promote must be 0 (never) or above, but got {promote}"
            raise SpecError(msg)
        self._limits = tuple(limits)
        self._promote = promote
        self._fill = GreedyFill(falling=False)
        self._places: dict[str, _Place] = {}
        self._timers: dict[str, _Place] = {}
        self._ranks = 0  # goes up: the tail of those who wait, or run
        self._front = 0  # goes down: ahead of those who wait
        self._next_timer = 0

    def decide(self, event: Event, view: ClusterView) -> Sequence[Action]:
        """Give the GPUs to the jobs that have had the least of them."""
        if isinstance(event, JobSubmitted):
            name = event.job.id
            place = self._places[name] = _Place(name, self._last_rank())
            self._fill.wait(event.job.gpus, (place.key, place.rank, name))
        elif isinstance(event, JobStarted):
            place = self._places[event.job]
            self._run(place, view.jobs[event.job])
            if place.waits_since == place.waits_since:
                place.waited_s += view.now - place.waits_since
                place.waits_since = math.nan
            return self._watch_limit(place, view.jobs[event.job], view.now)
        elif isinstance(event, TimerFired):
            return self._woken(event.token, view)
        elif isinstance(event, JobEnded):
            self._fill.leave(event.job)
            self._timers.pop(self._places.pop(event.job).timer, None)
        elif isinstance(event, JobPreempted):
            return self._preempted(event.job, view)
        elif not isinstance(event, CapacityChanged):
            return ()
        return self._fill.fill(view)

    def level(self, job: str) -> int:
        """Return which queue a job is in, from 0."""
        return self._places[job].key // 2

    def _last_rank(self) -> int:
        self._ranks += 1
        return self._ranks

    def _run(self, place: _Place, job: JobView) -> None:
        """Let a job stand last among the running of its queue."""
        place.key &= ~1
        place.rank = self._last_rank()
        self._fill.place((place.key, place.rank, job.id, job.held_gpus))

    def _watch_limit(self, place: _Place, job: JobView, now: float) -> Sequence[Action]:
        """Ask to be woken when the job leaves its queue."""
        level = place.key // 2
        if level >= len(self._limits):
            self._set_timer(place, "")
            return ()
        attained = job.attained_gpu_s(now) - place.forgiven
        return self._wake(place, now + max(0.0, self._limits[level] - attained) / job.held_gpus)

    def _preempted(self, name: str, view: ClusterView) -> Sequence[Action]:
        self._fill.leave(name)
        job, place = view.jobs.get(name), self._places[name]
        self._set_timer(place, "")
        timers: Sequence[Action] = ()
        if job is not None and job.phase is Phase.WAITING:
            if not place.key & 1:
                self._front -= 1
                place.key, place.rank = place.key | 1, self._front
            self._fill.wait(job.gpus, (place.key, place.rank, name))
            place.waits_since = view.now
            if self._promote and place.key > 1:
                executed = (job.gpu_seconds - place.forgiven) / job.gpus
                left = max(0.0, self._promote * executed - place.waited_s)
                timers = self._wake(place, view.now + left)
        return _both(timers, self._fill.fill(view))

    def _wake(self, place: _Place, time: float) -> Sequence[Action]:
        self._next_timer += 1
        token = f"{_TOKEN}{self._next_timer}"
        self._set_timer(place, token)
        return (WakeAt(time=time, token=token),)

    def _set_timer(self, place: _Place, token: str) -> None:
        self._timers.pop(place.timer, None)
        place.timer = token
        if token:
            self._timers[token] = place

    def _woken(self, token: str, view: ClusterView) -> Sequence[Action]:
        place = self._timers.get(token)
        if place is None:
            return ()  # somebody else's timer, or void
        job = view.jobs[place.job]
        if job.phase is Phase.WAITING:
            return self._promoted(place, job, view)
        if job.phase is Phase.RUNNING:
            return self._demoted(place, job, view)
        return ()  # on its way out: judged again when it comes back

    def _promoted(self, place: _Place, job: JobView, view: ClusterView) -> Sequence[Action]:
        place.key, place.rank = 1, self._last_rank()
        place.forgiven = job.gpu_seconds
        place.waited_s, place.waits_since = 0.0, view.now
        self._set_timer(place, "")
        self._fill.wait(job.gpus, (place.key, place.rank, job.id))
        return self._fill.fill(view)

    def _demoted(self, place: _Place, job: JobView, view: ClusterView) -> Sequence[Action]:
        """Move a running job behind all of the next queue; if it may run on, it is last of them."""
        place.key, place.rank = (place.key | 1) + 2, self._last_rank()
        if not len(self._fill.waiting):
            self._run(place, job)
            return self._watch_limit(place, job, view.now)
        self._fill.place((place.key, place.rank, job.id, job.held_gpus))
        actions = self._fill.fill(view)
        if any(isinstance(action, Preempt) and action.job == job.id for action in actions):
            self._set_timer(place, "")
            return actions
        self._run(place, job)
        return _both(self._watch_limit(place, job, view.now), actions)


def _both(first: Sequence[Action], second: Sequence[Action]) -> Sequence[Action]:
    return [*first, *second] if first and second else first or second
