"""One run's evaluations of one metric: as found in a file, and as rules see them.

A reader makes a `Curve`: raw numbers in the file's units and order. `normalise` makes it a
`Series`: points that go up when the run gets better, in order of step, with everything that was
left out named. A rule never learns which way the metric pointed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from msgspec import Struct

from evalstop.core.points import LARGEST, NOT_FINITE, EvalPoint, binomial_stderr, score_of
from evalstop.core.signals import signals_of
from evalstop.traces.names import means_loss

if TYPE_CHECKING:
    from evalstop.core.errors import ReadError

__all__ = [
    "Curve",
    "Direction",
    "Loaded",
    "Series",
    "SkippedPoint",
    "normalise",
]

Direction: TypeAlias = Literal["max", "min"]


class SkippedPoint(Struct, frozen=True, kw_only=True, gc=False):
    """An evaluation that takes no part in the verdict, and why."""

    step: int | None
    reason: str


class Curve(Struct, frozen=True, kw_only=True):
    """One metric of one run as a file holds it; columns of equal length, one entry a report.

    Attributes:
        trace_id: name of the run.
        source: file (or tracker address) it came from.
        metric: the metric's name as the file spells it.
        steps: training steps, whole numbers >= 0, in the file's order.
        scores: raw values in the metric's units; NaN where the value was not finite.
        greater_is_better: direction, where the file states it.
        job_type: what the file says, empty if nothing.
        stderrs: standard errors in the metric's units; NaN where unknown.
        n_items: sizes of the eval set; 0 where unknown.
        proxies: training reward at each step; NaN where unknown.
        attempts: restart counters.
        epoch_keys: identity of the eval suite at each report; empty where unknown.
        eval_ids: names that tell replicates apart.
        losses: training losses as (step, loss), lower is better.
        signals: what training says beside the score, by name, as known at each report; NaN where
            unknown.
        skipped: reports that the reader left out.
        partial: why the history may be incomplete, empty if it is whole.
        label: what is known of the run from elsewhere (healthy, declined, ...), for benchmarks.
    """

    trace_id: str
    source: str
    metric: str
    steps: Sequence[int]
    scores: Sequence[float]
    greater_is_better: bool | None = None
    job_type: str = ""
    stderrs: Sequence[float] | None = None
    n_items: Sequence[int] | None = None
    proxies: Sequence[float] | None = None
    attempts: Sequence[int] | None = None
    epoch_keys: Sequence[str] | None = None
    eval_ids: Sequence[str] | None = None
    losses: Sequence[tuple[int, float]] = ()
    signals: Mapping[str, Sequence[float]] = {}
    skipped: tuple[SkippedPoint, ...] = ()
    partial: str = ""
    label: str = ""


class Loaded(NamedTuple):
    """What a source gave: its curves, and the parts of it that could not be read."""

    curves: list[Curve]
    errors: list[ReadError]


class Series(Struct, frozen=True, kw_only=True):
    """One run's evaluations, higher is better, in order of (attempt, step).

    Attributes:
        trace_id, source, metric, job_type, losses, partial, label: see `Curve`.
        direction: the metric's own sense; see `raw`.
        points: what happened, NaN included (a rule must see that a run diverges).
        skipped: what the reader left out.
    """

    trace_id: str
    source: str
    metric: str
    direction: Direction
    job_type: str
    points: tuple[EvalPoint, ...]
    skipped: tuple[SkippedPoint, ...] = ()
    losses: tuple[tuple[int, float], ...] = ()
    partial: str = ""
    label: str = ""

    def raw(self, score: float) -> float:
        """Return a normalised score in the metric's own sense."""
        return score if self.direction == "max" else 0.0 - score


def normalise(curve: Curve, direction: Direction, job_type: str = "other") -> Series:
    """Return ``curve`` as rules see it.

    Args:
        curve: as read.
        direction: ``max`` if greater is better.
        job_type: the run's type.
    """
    sign = 1.0 if direction == "max" else -1.0
    stderrs = _stderrs(curve)
    columns = zip(
        curve.steps,
        curve.scores,
        stderrs,
        curve.n_items or [0] * len(curve.steps),
        curve.proxies or [NOT_FINITE] * len(curve.steps),
        strict=True,
    )
    finite = math.isfinite
    points = [
        EvalPoint(
            step=step,
            score=score_of(sign * score),
            stderr=stderr,
            n_items=items or None,
            proxy=proxy if finite(proxy) else None,
        )
        for step, score, stderr, items, proxy in columns
    ]
    if curve.signals:
        points = _with_signals(curve, points)
    if curve.attempts or curve.epoch_keys or curve.eval_ids:
        points = _identified(curve, points)
    points.sort(key=lambda point: (point.attempt, point.step))  # stable: repeats stay in order
    return Series(
        trace_id=curve.trace_id,
        source=curve.source,
        metric=curve.metric,
        direction=direction,
        job_type=job_type,
        points=tuple(points),
        skipped=curve.skipped,
        losses=tuple(curve.losses),
        partial=curve.partial,
        label=curve.label,
    )


def _with_signals(curve: Curve, points: list[EvalPoint]) -> list[EvalPoint]:
    """Return ``points`` with the side signals the curve gives them."""
    from msgspec.structs import replace  # noqa: PLC0415 -- rare path

    rows = zip(*curve.signals.values(), strict=True)
    return [
        replace(point, signals=signals_of(dict(zip(curve.signals, row, strict=True))))
        for point, row in zip(points, rows, strict=True)
    ]


def _identified(curve: Curve, points: list[EvalPoint]) -> list[EvalPoint]:
    """Return ``points`` with the attempt, epoch and eval id the curve gives them."""
    from msgspec.structs import replace  # noqa: PLC0415 -- rare path

    attempts = curve.attempts or [0] * len(points)
    keys = curve.epoch_keys or [""] * len(points)
    ids = curve.eval_ids or [""] * len(points)
    return [
        replace(point, attempt=attempt, epoch_key=key or None, eval_id=eval_id or None)
        for point, attempt, key, eval_id in zip(points, attempts, keys, ids, strict=True)
    ]


def _stderrs(curve: Curve) -> list[float | None]:
    """Return each report's standard error: as stated, else binomial from its items, else None."""
    stated = curve.stderrs or [NOT_FINITE] * len(curve.steps)
    scale = _share_scale(curve) if curve.n_items else None
    if scale is None or curve.n_items is None:
        return [error if 0.0 < error <= LARGEST else None for error in stated]
    return [
        error
        if 0.0 < error <= LARGEST
        else scale * binomial_stderr(score / scale, items)
        if items > 0 and math.isfinite(score)
        else None
        for error, items, score in zip(stated, curve.n_items, curve.scores, strict=True)
    ]


def _share_scale(curve: Curve) -> float | None:
    """Return 1 or 100 if the scores can be shares on that scale, else None."""
    finite = [score for score in curve.scores if math.isfinite(score)]
    if not finite or min(finite) < 0.0 or means_loss(curve.metric):
        return None
    top = max(finite)
    if top <= 1.0:
        return 1.0
    return 100.0 if top <= 100.0 else None  # noqa: PLR2004 -- percent
