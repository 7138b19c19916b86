"""Numbers out of JSON that anybody may have written."""

from __future__ import annotations

import math

__all__ = ["as_float", "as_step"]

_LARGEST = 2**53


def as_float(value: object) -> float | None:
    """Return a JSON number as a float; infinity beyond its range, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def as_step(value: object) -> int | None:
    """Return a whole JSON number that can be a step (or a count), None for anything else."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _LARGEST:
        return None
    return value
