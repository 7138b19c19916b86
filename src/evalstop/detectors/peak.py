"""The best score so far: a part of most detectors' state."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from evalstop.core.points import EvalPoint

__all__ = ["START", "Peak", "raised"]


class Peak(Struct, frozen=True, gc=False):
    """Highest score so far and its step; ties keep the earliest."""

    best_score: float
    best_step: int


START = Peak(-math.inf, -1)


def raised(peak: Peak, point: EvalPoint) -> Peak:
    """Return the peak after one more point."""
    return peak if point.score <= peak.best_score else Peak(point.score, point.step)
