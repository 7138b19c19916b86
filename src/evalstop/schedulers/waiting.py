"""Waiting jobs in order of a key that does not change while they wait.

One heap for each gang size, so that the first job that fits into n GPUs is found in O(sizes)
and taken in O(log n), however many wait. Entries of jobs that left are dropped when they surface.
"""

from __future__ import annotations

import math
from bisect import insort
from heapq import heappop, heappush
from typing import TypeAlias

__all__ = ["Entry", "WaitingJobs"]

Entry: TypeAlias = tuple[float, int, str, int]
"""Key, a number no two jobs share (breaks ties), id of the job, GPUs of its gang."""


class WaitingJobs:
    """Waiting jobs by gang size and key.

    Attributes:
        heads: the first waiting job of each gang size; a size nobody waits with is left out.
        ordered: the same, in order.
        live: all of them by id; who left may be on the heaps still.
    """

    def __init__(self) -> None:
        self.heads: dict[int, Entry] = {}
        self.ordered: list[Entry] = []
        self.live: dict[str, Entry] = {}
        self._heaps: dict[int, list[Entry]] = {}  # what is on top waits in truth

    def __len__(self) -> int:
        """Return how many jobs wait."""
        return len(self.live)

    def __contains__(self, job: str) -> bool:
        """Return whether a job waits."""
        return job in self.live

    def add(self, entry: Entry) -> None:
        """Let a job wait; one that waits already gets the new key."""
        _, _, job, size = entry
        live = self.live
        if job in live:
            self.discard(job)
        live[job] = entry
        heap = self._heaps.get(size)
        if heap is None:
            heap = self._heaps[size] = []
        heappush(heap, entry)
        if heap[0] is entry:
            former = self.heads.get(size)
            if former is not None:
                self.ordered.remove(former)
            self.heads[size] = entry
            insort(self.ordered, entry)

    def discard(self, job: str) -> None:
        """Let a job wait no longer."""
        live = self.live
        entry = live.pop(job, None)
        if entry is None:
            return
        size = entry[3]
        if self.heads[size] is not entry:
            return
        self.ordered.remove(entry)
        heap = self._heaps[size]
        heappop(heap)  # the entry itself
        while heap:
            head = heap[0]
            if live.get(head[2]) is head:
                self.heads[size] = head
                insort(self.ordered, head)
                return
            heappop(heap)
        del self.heads[size]

    def others(self, first: Entry) -> list[Entry]:
        """Return who comes first beside a head: the other heads, and the next of its own size.

        That one may have left: then it stands ahead of who comes next in truth.
        """
        others = [head for head in self.ordered if head is not first]
        others += sorted(self._heaps[first[3]][1:3])[:1]  # the two below the top of a heap
        return others

    def fits_beside(self, first: Entry, spare: int) -> bool:
        """Return whether anyone `others` returns fits into ``spare`` GPUs."""
        own = first[3]
        for size in self.heads:
            if size <= spare and (size != own or len(self._heaps[size]) > 1):
                return True
        return False

    def front(self) -> Entry:
        """Return the first of all who wait.

        Raises:
            IndexError: if nobody waits.
        """
        return self.ordered[0]

    def lowest(self) -> float:
        """Return the smallest key of a waiting job; infinite if none waits."""
        return self.ordered[0][0] if self.ordered else math.inf

    def first(self, free: int) -> Entry | None:
        """Return the first job that fits into ``free`` GPUs."""
        for head in self.ordered:
            if head[3] <= free:
                return head
        return None
