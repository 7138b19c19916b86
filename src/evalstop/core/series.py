"""From the set of one job's reports to the clean series a detector sees.

Replicates are pooled, what later attempts rewound is dropped, and only the newest comparison
epoch is left: `evalstop.core.history` says why. All of it is a function of the set of reports.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from evalstop.core.points import EvalPoint
    from evalstop.core.signals import Signals

__all__ = [
    "Identity",
    "current_branch",
    "highest",
    "identity",
    "last_epoch",
    "pool",
    "trailing_nonfinite",
    "with_repeat",
]

_T = TypeVar("_T", str | None, float | None, "tuple[float, ...] | None")

Identity: TypeAlias = tuple[
    int, int, str | None, str | None, float | None, float | None, int | None
]


def identity(point: EvalPoint) -> Identity:
    """Return what makes two reports the same one. NaN is no equal of itself, None is."""
    score = point.score if math.isfinite(point.score) else None
    return (
        point.step,
        point.attempt,
        point.eval_id,
        point.epoch_key,
        score,
        point.stderr,
        point.n_items,
    )


def with_repeat(known: EvalPoint, repeat: EvalPoint) -> EvalPoint:
    """Return a report with what its repeat says and it does not; itself if that is nothing.

    Of two names or values the smaller is kept, so that the order of arrival plays no part.
    """
    merged = msgspec.structs.replace(
        known,
        checkpoint=_smaller(known.checkpoint, repeat.checkpoint),
        proxy=_smaller(known.proxy, repeat.proxy),
        items=_smaller(known.items, repeat.items),
        signals=_smaller_each(known.signals, repeat.signals),
    )
    said = (merged.checkpoint, merged.proxy, merged.items, merged.signals)
    same = said == (known.checkpoint, known.proxy, known.items, known.signals)
    return known if same else merged


def _smaller(one: _T, other: _T) -> _T:
    """Return the smaller of two values, either of which may be None (which says nothing)."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _smaller_each(one: Signals, other: Signals) -> Signals:
    """Return all named values of both, the smaller where both name one."""
    if not one or not other:
        return one or other
    values = dict(one)
    for name, value in other:
        values[name] = min(value, values.get(name, value))
    return tuple(sorted(values.items()))


def pool(reports: Iterable[EvalPoint]) -> list[EvalPoint]:
    """Merge replicates: one point per (attempt, step, epoch), in that order.

    With items known for all replicates the mean is weighted by them, else plain. The standard
    error of a mean of independent replicates is sqrt(sum w^2 se^2), unknown if one is unknown.
    """
    groups: dict[tuple[int, int, str], list[EvalPoint]] = {}
    for point in reports:
        groups.setdefault((point.attempt, point.step, point.epoch_key or ""), []).append(point)
    return [_merge(groups[key]) for key in sorted(groups)]


def _merge(replicates: list[EvalPoint]) -> EvalPoint:
    if len(replicates) == 1:
        return replicates[0]
    # Sorted, so that floating sums do not depend on the order of arrival.
    replicates = sorted(replicates, key=_sort_key)
    finite = [point for point in replicates if math.isfinite(point.score)]
    if not finite:
        return replicates[0]
    items = [point.n_items for point in finite]
    known_items = [count for count in items if count is not None and count > 0]
    weights = known_items if len(known_items) == len(finite) else [1] * len(finite)
    total = sum(weights)
    known_errors = [point.stderr for point in finite if point.stderr is not None]
    stderr = (
        math.hypot(*(w / total * se for w, se in zip(weights, known_errors, strict=True)))
        if len(known_errors) == len(finite)
        else None
    )
    proxies = [point.proxy for point in finite if point.proxy is not None]
    return msgspec.structs.replace(
        finite[0],
        score=sum(w * point.score for w, point in zip(weights, finite, strict=True)) / total,
        stderr=stderr,
        n_items=sum(known_items) if len(known_items) == len(finite) else None,
        eval_id=None,
        checkpoint=min((p.checkpoint for p in finite if p.checkpoint is not None), default=None),
        proxy=sum(proxies) / len(proxies) if proxies else None,
        items=None,
        signals=_means(finite),
        replicates=sum(point.replicates for point in finite),
    )


def _means(points: Sequence[EvalPoint]) -> Signals:
    """Return the mean of each side signal over the points that have it."""
    values: dict[str, list[float]] = {}
    for point in points:
        for name, value in point.signals:
            values.setdefault(name, []).append(value)
    return tuple((name, sum(known) / len(known)) for name, known in sorted(values.items()))


def _sort_key(point: EvalPoint) -> tuple[str, float, float, int, str]:
    return (
        point.eval_id or "",
        point.score if math.isfinite(point.score) else -math.inf,
        point.stderr if point.stderr is not None else -1.0,
        point.n_items if point.n_items is not None else -1,
        point.checkpoint or "",
    )


def current_branch(points: Sequence[EvalPoint]) -> list[EvalPoint]:
    """Drop what later attempts rewound; order the rest by step, then by epoch as it lasted."""
    kept: list[EvalPoint] = []
    horizon = math.inf
    for point in sorted(points, key=lambda point: (-point.attempt, point.step)):
        if kept and point.attempt != kept[-1].attempt:
            horizon = min(horizon, *(p.step for p in kept))
        if point.step < horizon:
            kept.append(point)
    return sorted(kept, key=lambda point: (point.step, point.attempt, point.epoch_key or ""))


def trailing_nonfinite(points: Sequence[EvalPoint]) -> int:
    """Return how many of the newest points in a row have no finite score."""
    count = 0
    for point in reversed(points):
        if math.isfinite(point.score):
            break
        count += 1
    return count


def last_epoch(points: Sequence[EvalPoint]) -> list[EvalPoint]:
    """Return the newest points that compare with the very newest one."""
    last: list[EvalPoint] = []
    for point in reversed(points):
        if last and point.epoch_key != last[-1].epoch_key:
            break
        last.append(point)
    return last[::-1]


def highest(points: Iterable[EvalPoint]) -> EvalPoint | None:
    """Return the highest finite score, ties to the earliest step, then the earliest attempt."""
    finite = (point for point in points if math.isfinite(point.score))
    return max(finite, key=lambda point: (point.score, -point.step, -point.attempt), default=None)
