"""Greedy gang fill over a few queues, with preemption, without looking at every job.

The walk is that of `evalstop.schedulers.walk`; the keys are small whole numbers that stand still
while a job runs or waits, as the queues of 2D-LAS do.

Only the first waiting job of each gang size can be the first to fit, and it fits iff its gang is
no larger than R(key) = free GPUs + GPUs of running jobs with this key or a larger one. One number
a key holds the second part, so that to find the first that fits is O(sizes). Whoever comes to run
is the last of its key, so that a dict keeps each key's jobs in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalstop.core.actions import Action, Start
from evalstop.core.job import Phase
from evalstop.schedulers.waiting import Entry, WaitingJobs
from evalstop.schedulers.walk import PlacedEntry, displace, take

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.core.policy import ClusterView

__all__ = ["QueueFill"]

# Bound once: looking up a member of an Enum costs 0.25 us on CPython 3.11.
_PREEMPTING = Phase.PREEMPTING
_RUNNING = Phase.RUNNING


class QueueFill:
    """Waiting and running jobs in order of queue and rank, and the fill over both.

    Args:
        keys: keys are whole numbers below this.
    """

    def __init__(self, *, keys: int) -> None:
        self.waiting = WaitingJobs()
        self._running: dict[float, dict[str, Entry]] = {key: {} for key in range(keys)}
        """Those who run by key, in order."""
        self._held = [0] * keys  # GPUs of those who run, by key
        self._placed: dict[str, Entry] = {}

    def place(self, entry: Entry) -> None:
        """Note that a job runs, as the last of its key; one that is placed already moves."""
        key, _, name, gpus = entry
        placed = self._placed
        if name in placed:
            self._take_off(name)
        else:
            self.waiting.discard(name)
        placed[name] = entry
        self._running[key][name] = entry
        self._held[int(key)] += gpus

    def leave(self, name: str) -> None:
        """Forget a job: it waits and runs no longer."""
        if name in self._placed:
            self._take_off(name)
        else:
            self.waiting.discard(name)

    def fill(self, view: ClusterView) -> Sequence[Action]:
        """Return who to preempt and who to start, so that the walk's choice comes true."""
        waiting = self.waiting
        heads = waiting.heads
        if not heads:
            return ()
        free = view.free_gpus
        starts: list[Action] = []
        while heads:
            first = waiting.front()
            if first[3] > free:
                fits = self._first_that_fits(free)
                if fits is None:
                    break
                first = fits
                if first[3] > free:
                    return displace(self._from(first[0], view), waiting, starts, view)
            # It fits beside all who run: nobody behind it loses anything.
            taken = take(first, waiting, view)
            if taken:
                free -= taken
                starts.append(Start(job=first[2], gpus=taken))
        return starts

    def _first_that_fits(self, free: int) -> Entry | None:
        """Return the first waiting job that fits beside those who run before it.

        R may be too large, by a job that is on its way out, never too small: then the walk begins
        earlier than it must.
        """
        held = self._held
        first: Entry | None = None
        for head in self.waiting.heads.values():
            if first is None or head < first:
                size = head[3]
                if size <= free or size <= free + sum(held[int(head[0]) :]):
                    first = head
        return first

    def _take_off(self, name: str) -> None:
        key, _, _, gpus = self._placed.pop(name)
        del self._running[key][name]
        self._held[int(key)] -= gpus

    def _from(self, key: float, view: ClusterView) -> list[PlacedEntry]:
        """Return the running jobs with this key or a larger one, in order."""
        jobs = view.jobs
        return [
            (entry, job)
            for at, running in self._running.items()
            if at >= key
            for entry in running.values()
            if (job := jobs[entry[2]]).phase is _RUNNING or job.phase is _PREEMPTING
        ]
