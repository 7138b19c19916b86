"""Waiting jobs in order of a key that does not change while they wait.

One heap for each gang size, so that the first job that fits into n GPUs is found in O(sizes)
and taken in O(log n), however many wait. Entries of jobs that left are dropped when they surface.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import TypeAlias

__all__ = ["Entry", "WaitingJobs"]

Entry: TypeAlias = tuple[float, int, str]
"""Key, order of submission (breaks ties), id of the job."""


class WaitingJobs:
    """Waiting jobs by gang size and key."""

    def __init__(self) -> None:
        self._heaps: dict[int, list[Entry]] = {}
        self._sizes: tuple[int, ...] = ()
        self._live: dict[str, tuple[int, Entry]] = {}
        self._heads: list[tuple[Entry, int]] | None = []

    def __len__(self) -> int:
        """Return how many jobs wait."""
        return len(self._live)

    def add(self, gpus: int, entry: Entry) -> None:
        """Let a job wait; one that waits already gets the new key."""
        self._live[entry[2]] = (gpus, entry)
        self._heads = None
        heap = self._heaps.get(gpus)
        if heap is None:
            heap = self._heaps[gpus] = []
            self._sizes = tuple(sorted(self._heaps))
        heappush(heap, entry)

    def discard(self, job: str) -> None:
        """Let a job wait no longer."""
        if self._live.pop(job, None) is not None:
            self._heads = None

    def heads(self) -> list[tuple[Entry, int]]:
        """Return entry and gang size of the first job of each size, the last in order first."""
        if self._heads is not None:
            return self._heads
        live = self._live
        found: list[tuple[Entry, int]] = []
        for size, heap in self._heaps.items():
            while heap:
                entry = heap[0]
                known = live.get(entry[2])
                if known is not None and known[1] is entry:
                    found.append((entry, size))
                    break
                heappop(heap)
        found.sort(reverse=True)
        self._heads = found
        return found

    def lowest(self) -> float:
        """Return the smallest key of a waiting job; infinite if none waits."""
        return self.heads()[-1][0][0] if self._live else math.inf

    def first(self, free: int) -> tuple[int, Entry] | None:
        """Return gang size and entry of the first job that fits into ``free`` GPUs."""
        if free < 1:
            return None
        best: Entry | None = None
        best_size = 0
        live = self._live
        for size in self._sizes:
            if size > free:
                break
            heap = self._heaps[size]
            while heap:
                entry = heap[0]
                known = live.get(entry[2])
                if known is not None and known[1] is entry:
                    if best is None or entry < best:
                        best, best_size = entry, size
                    break
                heappop(heap)
        return None if best is None else (best_size, best)
