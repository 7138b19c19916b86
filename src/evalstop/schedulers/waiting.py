"""Waiting jobs in order of a key that does not change while they wait.

One heap for each gang size, so that the first job that fits into n GPUs is found in O(sizes)
and taken in O(log n), however many wait. Entries of jobs that left are dropped when they surface.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import TypeAlias

__all__ = ["Entry", "WaitingJobs"]

Entry: TypeAlias = tuple[float, int, str, int]
"""Key, a number no two jobs share (breaks ties), id of the job, GPUs of its gang."""


class WaitingJobs:
    """Waiting jobs by gang size and key.

    Attributes:
        heads: the first waiting job of each gang size; a size nobody waits with is left out.
    """

    def __init__(self) -> None:
        self.heads: dict[int, Entry] = {}
        self._front: Entry | None = None  # the first of all; None: look for it
        self._ordered: list[Entry] | None = None  # the heads; None: sort them
        self._heaps: dict[int, list[Entry]] = {}  # what is on top waits in truth
        self._live: dict[str, Entry] = {}

    def __len__(self) -> int:
        """Return how many jobs wait."""
        return len(self._live)

    def add(self, entry: Entry) -> None:
        """Let a job wait; one that waits already gets the new key."""
        _, _, job, size = entry
        live = self._live
        if job in live:
            self.discard(job)
        live[job] = entry
        heap = self._heaps.get(size)
        if heap is None:
            heap = self._heaps[size] = []
        heappush(heap, entry)
        if heap[0] is entry:
            self.heads[size] = entry
            self._ordered = None
            if self._front is not None and entry < self._front:
                self._front = entry

    def discard(self, job: str) -> None:
        """Let a job wait no longer."""
        live = self._live
        entry = live.pop(job, None)
        if entry is None:
            return
        size = entry[3]
        heap = self._heaps[size]
        if heap[0] is not entry:
            return
        self._ordered = None
        if entry is self._front:
            self._front = None
        while heap:
            head = heap[0]
            if live.get(head[2]) is head:
                self.heads[size] = head
                return
            heappop(heap)
        del self.heads[size]

    def others(self, first: Entry) -> list[Entry]:
        """Return who comes first beside a head: the other heads, and the next of its own size.

        That one may have left: then it stands ahead of who comes next in truth.
        """
        others = [head for head in self.heads.values() if head is not first]
        others += sorted(self._heaps[first[3]][1:3])[:1]  # the two below the top of a heap
        return others

    def ordered(self) -> list[Entry]:
        """Return the first waiting job of each gang size, in order."""
        if self._ordered is None:
            self._ordered = sorted(self.heads.values())
        return self._ordered

    def front(self) -> Entry:
        """Return the first of all who wait.

        Raises:
            ValueError: if nobody waits.
        """
        front = self._front
        if front is None:
            front = self._front = min(self.heads.values())
        return front

    def lowest(self) -> float:
        """Return the smallest key of a waiting job; infinite if none waits."""
        return self.front()[0] if self.heads else math.inf

    def first(self, free: int) -> Entry | None:
        """Return the first job that fits into ``free`` GPUs."""
        best: Entry | None = None
        for head in self.heads.values():
            if head[3] <= free and (best is None or head < best):
                best = head
        return best
