"""Which pins to keep: a pure rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from evalstop.ports import Pin

__all__ = ["scored_pins", "to_keep"]

K = TypeVar("K", int, tuple[int, int])


def scored_pins(
    pins: Collection[Pin], scores: Mapping[tuple[int, int], float]
) -> dict[tuple[int, int], tuple[int, int]]:
    """Return which (attempt, step) of ``scores`` each pin, by its (attempt, step), was given.

    A score is of the checkpoint that was there: of those of its step the newest whose attempt is
    not beyond its own. Of several scores of one pin the best counts.
    """
    found: dict[tuple[int, int], tuple[int, int]] = {}
    by_step: dict[int, list[int]] = {}
    for pin in pins:
        by_step.setdefault(pin.step, []).append(pin.attempt)
    for (attempt, step), score in scores.items():
        before = [one for one in by_step.get(step, ()) if one <= attempt]
        if not before:
            continue
        key = (max(before), step)
        if key not in found or score > scores[found[key]]:
            found[key] = (attempt, step)
    return found


def to_keep(
    pinned: Collection[K],
    scores: Mapping[K, float],
    *,
    top: int = 1,
    unscored: int = 3,
    always: Iterable[K] = (),
) -> set[K]:
    """Return the steps whose checkpoints stay in custody.

    Best never loses its place to anything but a better one (R03), and no checkpoint goes before
    its score could arrive: the newest ``unscored`` ones without a score stay.

    Args:
        pinned: steps in custody, or (attempt, step) where runs went through some of them again.
        scores: finite scores by step, higher is better.
        top: how many of the best to keep, at least 1; ties go to the earlier step.
        unscored: how many of the newest without a score to keep.
        always: steps that stay whatever their score.

    Example:
        >>> sorted(to_keep([10, 20, 30, 40], {10: 0.5, 20: 0.7, 30: 0.6}))
        [20, 40]
    """
    scored = sorted(
        (step for step in pinned if step in scores), key=lambda step: (-scores[step], step)
    )
    keep = set(scored[: max(1, top)])
    if pinned:
        keep.add(max(pinned))
    waiting = sorted(step for step in pinned if step not in scores)
    keep.update(waiting[-unscored:] if unscored else ())
    keep.update(step for step in always if step in pinned)
    return keep
