"""Numbers in a description: one, or a pair for a uniform draw between them; finite and in order."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from evalstop.core.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Group", "Range", "highest", "lowest"]

Range: TypeAlias = float | tuple[float, float]

ABOVE_0 = frozenset({"power", "time_constant", "width"})
"""Ranges that a curve divides by."""

AT_LEAST_0 = frozenset(
    {"depth", "drop", "gain", "knee", "loss_rate", "noise_scale", "roughness", "sync_share"}
)
"""Ranges of sizes. A constraint on their type would meet the same fault as ``Evals.count``."""


def lowest(bounds: Range) -> float:
    """Return the least value of a range."""
    return bounds[0] if isinstance(bounds, tuple) else bounds


def highest(bounds: Range) -> float:
    """Return the greatest value of a range."""
    return bounds[1] if isinstance(bounds, tuple) else bounds


class Group(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Part of a description, which checks its own numbers."""

    def __post_init__(self) -> None:
        """Refuse numbers that are not finite, pairs out of order, and sizes below 0.

        Raises:
            SpecError: naming the field, what was expected and what came.
        """
        for name in self.__struct_fields__:
            value = getattr(self, name)
            numbers = list(_numbers(value))
            if not all(map(math.isfinite, numbers)):
                message = f"{name} must be finite, got {value}"
                raise SpecError(message)
            if not numbers or isinstance(value, dict):
                continue
            if numbers[0] > numbers[-1]:
                message = f"{name} must be a number or a pair in order, got {value}"
                raise SpecError(message)
            if name in ABOVE_0 and not numbers[0] > 0:
                message = f"{name} must be above 0, got {value}"
                raise SpecError(message)
            if name in AT_LEAST_0 and not numbers[0] >= 0:
                message = f"{name} must be at least 0, got {value}"
                raise SpecError(message)


def _numbers(value: object) -> Iterator[float]:
    """Yield the numbers in a field."""
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, dict):
        for entry in value.values():
            yield from _numbers(entry)
    elif isinstance(value, tuple):
        for entry in value:
            yield from _numbers(entry)
