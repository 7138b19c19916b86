"""Which pins to keep: a pure rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

__all__ = ["to_keep"]


def to_keep(
    pinned: Collection[int],
    scores: Mapping[int, float],
    *,
    top: int = 1,
    unscored: int = 3,
    always: Iterable[int] = (),
) -> set[int]:
    """Return the steps whose checkpoints stay in custody.

    Best never loses its place to anything but a better one (R03), and no checkpoint goes before
    its score could arrive: the newest ``unscored`` ones without a score stay.

    Args:
        pinned: steps in custody.
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
