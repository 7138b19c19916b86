"""JSON that anybody may have written, and the numbers in it."""

from __future__ import annotations

import json
import math
from typing import Any

__all__ = ["as_float", "as_step", "parsed"]

_LARGEST = 2**53


def parsed(data: bytes | str) -> Any:  # noqa: ANN401 -- JSON
    """Return what JSON says; NaN and Infinity are read, as Python's loggers write them.

    Raises:
        ValueError: it is none: cut short, not UTF-8, or nested deeper than any log is.
    """
    try:
        return json.loads(data)
    except RecursionError as error:
        msg = "it is nested too deeply"
        raise ValueError(msg) from error


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
