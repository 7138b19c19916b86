"""Standard errors that a logger wrote as a metric of their own: ``NAME_stderr`` beside ``NAME``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.traces.series import Curve

__all__ = ["SUFFIX", "places_of", "with_errors"]

SUFFIX = "_stderr"


def places_of(curve: Curve) -> list[tuple[int, int]]:
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
