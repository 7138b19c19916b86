"""A run's curve as a small inline SVG: scores, error band, best, and where rules stop."""

from __future__ import annotations

import itertools
import math
from html import escape
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.core.points import EvalPoint
    from evalstop.traces.series import Series

__all__ = ["Mark", "curve_figure", "figure", "thinned"]

WIDTH, HEIGHT = 360, 132
_LEFT, _RIGHT, _TOP, _BOTTOM = 6, 354, 16, 112
_MOST_POINTS = 240
_DOTS_UP_TO = 60
_BAND = 2.0
_BESIDE = 2.5
_PLAIN_FROM, _PLAIN_UNTIL = 1e4, 1e9


class Mark(NamedTuple):
    """A rule's stop: at which step, and the class of its colour."""

    step: int
    colour: str


class _Frame(NamedTuple):
    """Where steps and raw scores lie in the picture."""

    first: float
    last: float
    low: float
    high: float

    def x(self, step: float) -> float:
        span = self.last - self.first
        share = (step - self.first) / span if span else 0.5
        return round(_LEFT + share * (_RIGHT - _LEFT), 1)

    def y(self, score: float) -> float:
        span = self.high - self.low
        share = (score - self.low) / span if span else 0.5
        return round(_BOTTOM - share * (_BOTTOM - _TOP), 1)


def curve_figure(series: Series, marks: Sequence[Mark], best_step: int | None) -> str:
    """Return the SVG of a run; an empty frame if it has no finite score.

    Args:
        series: the run; drawn in the metric's own sense, errors as a band of two each side, with a
            line for each attempt and epoch.
        marks: stops; what lies after the first one is shaded.
        best_step: step of the best score.
    """
    points = [point for point in series.points if math.isfinite(point.score)]
    label = escape(f"{series.metric} of {series.trace_id} by step", quote=True)
    head = f'<svg class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
    if not points:
        return f'{head}<text x="{WIDTH // 2}" y="66" class="empty">no finite score</text></svg>'
    frame = _frame(series, points)
    parts = [head]
    if marks:
        start = frame.x(min(mark.step for mark in marks))
        parts.append(
            f'<rect class="saved" x="{start}" y="{_TOP - 6}" width="{round(_RIGHT - start, 1)}" '
            f'height="{_BOTTOM - _TOP + 12}"/>'
        )
    branches = [thinned(branch) for branch in _branches(points)]
    parts += [_band(series, branch, frame) for branch in branches]
    parts += [_line(series, branch, frame) for branch in branches]
    parts += _stops(marks, frame)
    best = next((point for point in points if point.step == best_step), None)
    if best is not None:
        x, y = frame.x(best.step), frame.y(series.raw(best.score))
        parts.append(f'<circle class="best" cx="{x}" cy="{y}" r="4"/>')
    parts += [_words(frame), "</svg>"]
    return "".join(parts)


def _branches(points: Sequence[EvalPoint]) -> list[list[EvalPoint]]:
    """Return the parts that are curves of their own: a line joins no two attempts or epochs."""
    parts = itertools.groupby(points, key=lambda point: (point.attempt, point.epoch_key))
    return [list(part) for _, part in parts]


def thinned(points: Sequence[EvalPoint]) -> Sequence[EvalPoint]:
    """Return at most about 240 points that keep the look of a long curve: each part's extremes."""
    if len(points) <= _MOST_POINTS:
        return points
    size = math.ceil(len(points) / (_MOST_POINTS // 2))
    kept: list[EvalPoint] = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        extremes = {min(part, key=_score).step: min(part, key=_score)}
        extremes[max(part, key=_score).step] = max(part, key=_score)
        kept += [extremes[step] for step in sorted(extremes)]
    if kept[-1] is not points[-1]:
        kept.append(points[-1])
    return kept


def _score(point: EvalPoint) -> float:
    return point.score


def _frame(series: Series, points: Sequence[EvalPoint]) -> _Frame:
    reaches = [(series.raw(point.score), _BAND * (point.stderr or 0.0)) for point in points]
    low, high = min(s - e for s, e in reaches), max(s + e for s, e in reaches)
    if min(score for score, _ in reaches) >= 0.0:
        low = max(0.0, low)  # a band may reach below what a share can be; the axis need not
    steps = [point.step for point in points]
    return _Frame(min(steps), max(steps), low, high)


def _band(series: Series, points: Sequence[EvalPoint], frame: _Frame) -> str:
    errors = [point.stderr for point in points]
    if len(points) < 2 or any(error is None for error in errors):  # noqa: PLR2004 -- a band has two ends
        return ""
    upper, lower = [], []
    for point, error in zip(points, errors, strict=True):
        x, score, reach = frame.x(point.step), series.raw(point.score), _BAND * (error or 0.0)
        upper.append(f"{x},{_clipped(frame.y(score + reach))}")
        lower.append(f"{x},{_clipped(frame.y(score - reach))}")
    return f'<polygon class="band" points="{" ".join(upper + lower[::-1])}"/>'


def _clipped(y: float) -> float:
    return min(max(y, 4.0), HEIGHT - 12.0)


def _line(series: Series, points: Sequence[EvalPoint], frame: _Frame) -> str:
    places = [(frame.x(point.step), frame.y(series.raw(point.score))) for point in points]
    line = f'<polyline class="line" points="{" ".join(f"{x},{y}" for x, y in places)}"/>'
    if len(places) > _DOTS_UP_TO:
        return line
    return line + "".join(f'<circle class="dot" cx="{x}" cy="{y}" r="1.8"/>' for x, y in places)


def _stops(marks: Sequence[Mark], frame: _Frame) -> list[str]:
    """Return a line a stop; stops at one step stand side by side."""
    lines = []
    taken: dict[int, int] = {}
    for mark in marks:
        place = taken[mark.step] = taken.get(mark.step, -1) + 1
        x = round(frame.x(mark.step) + _BESIDE * place, 1)
        lines.append(f'<path class="stop {mark.colour}" d="M{x} {_TOP - 8}V{_BOTTOM + 6}"/>')
    return lines


def _words(frame: _Frame) -> str:
    """Return the labels: the range of scores at the left, of steps at the bottom."""
    return (
        f'<text x="{_LEFT}" y="8">{figure(frame.high)}</text>'
        f'<text x="{_LEFT}" y="{HEIGHT - 4}">{figure(frame.low)}</text>'
        f'<text class="end" x="{_RIGHT}" y="{HEIGHT - 4}">'
        f"step {frame.first:.0f} to {frame.last:.0f}</text>"
    )


def figure(value: float | None) -> str:
    """Return a number in four digits, as people write it; a dash for none."""
    if value is None or not math.isfinite(value):
        return "-"
    if _PLAIN_FROM <= abs(value) < _PLAIN_UNTIL:
        return f"{value:,.0f}"
    return f"{value:.4g}"
