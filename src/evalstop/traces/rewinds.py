"""Where a run was resumed from an earlier step, seen from the steps it then reports again.

Loggers and trackers keep what a run wrote before it went back. A run that goes on from an
earlier checkpoint *runs through* steps a second time: it reports a known step again and then goes
on from there, past no known step. From the first of them on it is a new attempt, and what earlier
attempts reported at those steps and beyond is history, not part of the curve (R11); it may still
be the best (R03).

What is not a rewind: a step that was never reported before (a late report), the newest step
reported again, or an older one alone (an evaluation repeated: a replicate, pooled, R15).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["attempts_of", "current_branch"]

_T = TypeVar("_T")


def attempts_of(steps: Sequence[int]) -> list[int]:
    """Return the attempt, from 0 on, that each report belongs to.

    Args:
        steps: steps of one metric's reports, in the order in which they were made.

    Example:
        >>> attempts_of([10, 20, 30, 20, 30, 40])
        [0, 0, 0, 1, 1, 1]
        >>> attempts_of([10, 30, 20, 20, 40])
        [0, 0, 0, 0, 0]
    """
    attempts: list[int] = []
    known: list[int] = []
    attempt = 0
    back = -1  # place of a known step that was reported again, while it may be a rewind
    for place, step in enumerate(steps):
        attempts.append(attempt)
        if back >= 0 and steps[back] < step <= _after(known, steps[back]):
            attempt += 1
            attempts[back:] = [attempt] * (place + 1 - back)
            known = sorted(set(steps[back : place + 1]))
            back = -1
            continue
        older = bool(known) and step < known[-1]
        again = step in _at(known, step)
        back = place if older and again else -1
        if not again:
            insort(known, step)
    return attempts


def current_branch(reports: Sequence[_T], steps: Sequence[int]) -> list[_T]:
    """Return the reports that no later attempt went back behind, in their order.

    Args:
        reports: whatever was reported.
        steps: its steps, in the order in which they were made.
    """
    attempts = attempts_of(steps)
    kept: list[_T] = []
    horizon: float = float("inf")  # first step of any later attempt
    first: float = horizon
    for place in range(len(reports) - 1, -1, -1):
        if place + 1 < len(reports) and attempts[place] != attempts[place + 1]:
            horizon = min(horizon, first)
            first = float("inf")
        first = min(first, steps[place])
        if steps[place] < horizon:
            kept.append(reports[place])
    return kept[::-1]


def _at(known: Sequence[int], step: int) -> Sequence[int]:
    """Return the known step that equals ``step``, if there is one."""
    place = bisect_right(known, step)
    return known[max(0, place - 1) : place]


def _after(known: Sequence[int], step: int) -> float:
    """Return the first known step beyond ``step``."""
    place = bisect_right(known, step)
    return known[place] if place < len(known) else float("-inf")
