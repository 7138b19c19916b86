"""From everything a source holds to the series a rule shall judge."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from evalstop.core.errors import InputError, ReadError
from evalstop.traces.names import (
    canonical,
    find,
    is_trained_reward,
    suggested,
    unknown_metric,
)
from evalstop.traces.series import Curve, Direction, Series, normalise

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Selection", "select", "warnings_about"]

_EVALUATION = ("eval_", "val_", "test_", "validation_", "heldout_")
_TIMINGS = ("_runtime", "_per_second", "_time")


class Selection(NamedTuple):
    """Series to judge, errors of the sources that gave none, and warnings for people."""

    series: list[Series]
    errors: list[ReadError]
    warnings: list[str]


def select(
    curves: Iterable[Curve],
    *,
    metric: str | None = None,
    direction: Direction | None = None,
    job_type: str | None = None,
) -> Selection:
    """Choose each run's metric, settle its direction, and normalise.

    Args:
        curves: as read, of any number of sources.
        metric: the wanted metric in any of its spellings; without it, every metric whose
            direction its source states, or a source's only one.
        direction: for metrics whose source does not state theirs. It may not contradict one.
        job_type: in place of what the sources say.

    Raises:
        InputError: the metric is in none of the sources.
    """
    by_source: dict[str, list[Curve]] = {}
    for curve in curves:
        by_source.setdefault(curve.source, []).append(curve)
    series: list[Series] = []
    errors: list[ReadError] = []
    known = {curve.metric for group in by_source.values() for curve in group}
    if metric is not None and find(metric, known) is None:
        raise InputError(unknown_metric(metric, known))
    for source, group in by_source.items():
        try:
            chosen = _named(source, group, metric) if metric else _evident(source, group, direction)
            series += [
                normalise(curve, _settled(curve, direction), job_type or curve.job_type or "other")
                for curve in chosen
            ]
        except ReadError as error:
            errors.append(error)
    return Selection(series, errors, warnings_about(series))


def _named(source: str, group: Sequence[Curve], metric: str) -> list[Curve]:
    names = {curve.metric for curve in group}
    name = find(metric, names)
    if name is None:
        raise ReadError(source, unknown_metric(metric, names))
    spelling = canonical(name)
    return [curve for curve in group if canonical(curve.metric) == spelling]


def _evident(source: str, group: Sequence[Curve], direction: Direction | None) -> list[Curve]:
    """Return the curves that need no choice, or say what the choice is."""
    stated = [curve for curve in group if curve.greater_is_better is not None]
    if stated:
        # A table that states some directions and lacks others is asked for the rest.
        silent = {c.trace_id for c in group} - {c.trace_id for c in stated}
        if not silent or direction is None:
            if silent:
                raise _no_direction(source, {c.metric for c in group if c.trace_id in silent})
            return stated
        return [*stated, *(curve for curve in group if curve.trace_id in silent)]
    names = {curve.metric for curve in group}
    evaluations = {
        name
        for name in names
        if canonical(name).startswith(_EVALUATION) and not canonical(name).endswith(_TIMINGS)
    }
    candidates = evaluations or names
    if len(candidates) > 1:
        listed = ", ".join(sorted(candidates))
        message = f"there are several metrics, name one with --metric: {listed}"
        raise ReadError(source, message)
    if direction is None:
        raise _no_direction(source, candidates)
    return [curve for curve in group if curve.metric in candidates]


def _settled(curve: Curve, direction: Direction | None) -> Direction:
    if curve.greater_is_better is None:
        if direction is None:
            raise _no_direction(curve.source, {curve.metric})
        return direction
    stated: Direction = "max" if curve.greater_is_better else "min"
    if direction is not None and direction != stated:
        message = (
            f"--direction {direction} contradicts what the file states of {curve.metric!r} in run "
            f"{curve.trace_id!r}: {stated}. Leave --direction out, or correct the file"
        )
        raise ReadError(curve.source, message)
    return stated


def _no_direction(source: str, names: Iterable[str]) -> ReadError:
    listed = ", ".join(sorted(names))
    message = (
        f"the file does not state whether higher is better for {listed}: give --direction max or "
        "--direction min (there is no default: a wrong guess would keep the worst checkpoint)"
    )
    return ReadError(source, message)


def warnings_about(series: Iterable[Series]) -> list[str]:
    """Return what people should be told of the series that were chosen, each once."""
    contrary: dict[str, None] = {}
    rewards: dict[str, None] = {}
    partial: list[str] = []
    for one in series:
        hint = suggested(one.metric)
        if hint is not None and hint != one.direction:
            contrary[
                f"the name {one.metric!r} suggests direction {hint}, but {one.direction} was stated"
            ] = None
        if is_trained_reward(one.metric) and one.job_type not in {"other", "rl-other"}:
            rewards[one.metric] = None
        if one.partial:
            partial.append(f"{one.trace_id}: partial history, no rule may stop it: {one.partial}")
    if not rewards:
        return [*contrary, *partial]
    proxy = (
        f"watching what looks like the reward that training optimises ({', '.join(rewards)}): "
        "it keeps rising while quality falls; watch a held-out evaluation instead"
    )
    return [proxy, *contrary, *partial]
