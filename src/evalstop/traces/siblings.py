"""Standard errors that a logger wrote as a metric of their own: ``NAME_stderr`` beside ``NAME``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from msgspec.structs import replace

from evalstop.traces.rewinds import attempts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.traces.series import Curve

__all__ = ["SUFFIX", "Place", "by_place", "places_of", "usable", "with_errors"]

SUFFIX = "_stderr"

Place: TypeAlias = tuple[int, int]
"""Attempt and step of a report."""


def by_place(written: Sequence[tuple[int, float]]) -> dict[Place, float]:
    """Return what a metric said at each place; ``written`` is (step, value), as it was written."""
    attempts = attempts_of([step for step, _ in written])
    return {
        (attempt, step): value for attempt, (step, value) in zip(attempts, written, strict=True)
    }


def usable(error: float | None) -> float | None:
    """Return an error that can be one; None for 0, NaN, infinity and less."""
    return error if error is not None and math.isfinite(error) and error > 0.0 else None


def places_of(curve: Curve) -> list[Place]:
    """Return attempt and step of each report."""
    attempts = curve.attempts or [0] * len(curve.steps)
    return list(zip(attempts, curve.steps, strict=True))


def with_errors(curves: Sequence[Curve]) -> list[Curve]:
    """Return one run's curves, those of standard errors put to the curves they belong to."""
    known = {curve.metric: curve for curve in curves}
    found = []
    for curve in curves:
        name = curve.metric
        if name.endswith(SUFFIX) and name.removesuffix(SUFFIX) in known:
            continue
        sibling = known.get(f"{name}{SUFFIX}")
        if sibling is None:
            found.append(curve)
            continue
        errors = dict(zip(places_of(sibling), sibling.scores, strict=True))
        stderrs = [errors.get(place, math.nan) for place in places_of(curve)]
        partial = curve.partial or sibling.partial
        found.append(replace(curve, stderrs=stderrs, partial=partial))
    return found
