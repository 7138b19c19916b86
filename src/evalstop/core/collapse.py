"""What it is to have collapsed: to lie far below the very first score (R19).

The model lost what it had before training. One such evaluation is not enough, it may be a broken
eval; the next one, if it has not climbed back more than half of the fall, confirms it.

**Far** is lower than ever, and `FAR` standard errors of the difference. Where these are not known
it is `RANGES` times the range of all scores before, once there are `FEWEST_OF_A_RANGE` of them.
Scores that lie far below are no part of that range, so that a job that stays down stays collapsed.
"""

from __future__ import annotations

from msgspec import Struct

__all__ = [
    "FAR",
    "FEWEST_OF_A_RANGE",
    "RANGES",
    "Ground",
    "confirms",
    "is_far",
    "is_out_of_range",
    "trodden",
]

FAR = 5.0
"""Standard errors of the difference between the first score and one that lies far below it."""

RANGES = 3.0
"""Ranges of the scores before. Of flat curves 0.12 % ever lie as far below twice in a row (600,000
of 60 evaluations; 0.26 % at rho 0.3), nearly all of them by the eighth evaluation."""

FEWEST_OF_A_RANGE = 4
"""Scores that make a range."""


class Ground(Struct, frozen=True, gc=False):
    """Where a curve began, and between which scores it has been.

    Attributes:
        first: the first score.
        variance: its squared standard error, 0.0 if unknown.
        lowest, highest: of all scores that did not lie far below the first.
        far: how many of the newest evaluations in a row lie far below it.
    """

    first: float
    variance: float
    lowest: float
    highest: float
    far: int = 0


def is_far(ground: Ground, score: float, variance: float) -> bool:
    """Return whether a score lies `FAR` standard errors below the first.

    Args:
        ground: of the scores before.
        score: the newest.
        variance: of the difference of the two, > 0.
    """
    fall = ground.first - score
    return fall > 0.0 and fall * fall >= FAR * FAR * variance


def is_out_of_range(
    ground: Ground, score: float, *, seen: int, ranges: float, fewest: int = FEWEST_OF_A_RANGE
) -> bool:
    """Return whether a score lies so far below the first that no error need be known.

    Args:
        ground: of the scores before.
        score: the newest.
        seen: number of scores before.
        ranges: falls, in ranges of the scores before, that are far.
        fewest: scores that make a range.
    """
    reach = ground.highest - ground.lowest
    return seen >= fewest and 0.0 < ranges * reach <= ground.first - score


def confirms(ground: Ground, one: float, other: float) -> bool:
    """Return whether one score lies at least half as far below the first as another."""
    return 2.0 * (ground.first - one) >= ground.first - other


def trodden(ground: Ground, score: float, *, far: bool) -> Ground:
    """Return the ground after one more score; the same object if it tells nothing new.

    Args:
        ground: of the scores before.
        score: the newest.
        far: whether it lies far below the first.
    """
    if far:
        return Ground(ground.first, ground.variance, ground.lowest, ground.highest, ground.far + 1)
    if not ground.far and ground.lowest <= score <= ground.highest:
        return ground
    return Ground(
        ground.first, ground.variance, min(score, ground.lowest), max(score, ground.highest)
    )
