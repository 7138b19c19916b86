"""A checkpoint that is looked at again: is it the one in custody, or another one? Pure rules.

A second look at one that has grown (a file more) replaces the pin; one that has lost files since
does not. Weights that were written anew are another checkpoint, of a run that went through the
step again: it gets a pin, and a higher attempt, of its own (R03).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from evalstop.custody.verify import Inspected
    from evalstop.ports import Pin

__all__ = ["attempt_of", "held_already"]


def held_already(
    old: Iterable[Pin], seen: Inspected, names_of: Callable[[Pin], Collection[str]]
) -> Pin | None:
    """Return the pin to which what is seen adds nothing, if there is one.

    Args:
        old: pins of the same weights.
        seen: the checkpoint now.
        names_of: the files of a pin.
    """
    for pin in old:
        if pin.digest == seen.digest or not set(names_of(pin)) <= set(seen.files):
            return pin
    return None


def attempt_of(known: Sequence[Pin], old: Sequence[Pin], attempt: int) -> int:
    """Return the attempt of a new pin.

    Args:
        known: pins of its step and name.
        old: those of them that have the same weights, in order of attempt.
        attempt: what is known of the run.
    """
    if old:
        return old[-1].attempt
    return max([attempt, *(1 + pin.attempt for pin in known)])
