"""Running jobs in order of what their key is told from, their anchor, and not of the key itself.

The key of a running job falls with time: it is weight x max(0, anchor - now), so that within a
weight the order of anchors never changes (`evalstop.schedulers.greedy`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from evalstop.schedulers.waiting import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evalstop.core.job import JobView
    from evalstop.core.policy import ClusterView

__all__ = ["Anchor", "backwards", "is_near", "lowest"]

Anchor: TypeAlias = Entry
"""An `Entry` of a running job, with what its key is told from in place of the key."""

_SLACK = 1e-9
"""Relative; jobs this near to a key are looked at exactly, in case subtracting lost a bit."""

_ROUNDING = 1e-12
"""Relative; what adding up service may lose of a key. Not so where GPUs are slow or fast."""


def backwards(
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


def is_near(key: float, weight: int, anchor: float, now: float) -> bool:
    """Return whether a job waits with the key that it ran with, up to rounding."""
    was = weight * (anchor - now) if anchor > now else 0.0
    return key == was or abs(key - was) <= _ROUNDING * weight * abs(anchor)


def lowest(key: float, weight: int, now: float) -> float:
    """Return an anchor that no running job with at least this key is below."""
    if key <= 0.0:
        return -math.inf  # past their estimate, all have key 0, whatever the anchor
    if key == math.inf:
        return key
    anchor = now + key / weight
    return anchor - _SLACK * abs(anchor)
