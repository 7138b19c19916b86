"""What may stand in a setting: whole numbers, finite numbers, and things with the right methods."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import TYPE_CHECKING, TypeGuard

from evalstop.core.errors import SpecError

if TYPE_CHECKING:
    from msgspec import Struct

__all__ = ["has_methods", "is_number", "is_whole", "require_numbers"]


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a setting is a finite number: of Python or numpy, and no truth value."""
    if isinstance(value, bool):
        return False
    return isinstance(value, Real) and math.isfinite(value)


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether a setting is a whole number; 2.0 is none."""
    if isinstance(value, bool):
        return False
    return isinstance(value, Integral)


def has_methods(thing: object, *names: str) -> bool:
    """Return whether a thing, not the class of one, has these methods."""
    return not isinstance(thing, type) and all(callable(getattr(thing, n, None)) for n in names)


def require_numbers(rule: Struct, name: str) -> None:
    """Refuse a rule whose settings are not numbers of the kind that their fields say.

    A comparison refuses neither NaN nor 1.5 evaluations, and text only with words of its own.

    Args:
        rule: the rule, whose fields are annotated ``int``, ``float`` or otherwise.
        name: what the rule is called in a SPEC.

    Raises:
        SpecError: one is not.
    """
    for field, kind in type(rule).__annotations__.items():
        value = getattr(rule, field)
        if kind == "int" and not is_whole(value):
            msg = f"{name}: {field} must be a whole number, but got {value!r}"
            raise SpecError(msg)
        if kind == "float" and not is_number(value):
            msg = f"{name}: {field} must be a finite number, but got {value!r}"
            raise SpecError(msg)
