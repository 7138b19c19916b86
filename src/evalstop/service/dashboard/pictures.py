"""Curves as inline SVG: small ones for tables, one large one with errors and the proxy."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Dot", "cumulative", "curve", "sparkline"]

_MOST = 300
_SPARK = (120, 28)
_CURVE = (720, 300)
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 16, 34
_DOTS_UP_TO = 80
_TWO_SIGMA = 2.0


class Dot(NamedTuple):
    """One evaluation, in the metric's own direction."""

    step: float
    score: float
    stderr: float | None = None
    proxy: float | None = None


class _Frame(NamedTuple):
    left: float
    top: float
    width: float
    height: float
    first: float
    last: float
    low: float
    high: float

    def x(self, step: float) -> float:
        span = self.last - self.first
        return round(self.left + self.width * ((step - self.first) / span if span else 0.5), 1)

    def y(self, value: float) -> float:
        span = self.high - self.low
        share = (value - self.low) / span if span else 0.5
        return round(self.top + self.height * (1.0 - share), 1)


def sparkline(dots: Sequence[Dot], *, best_step: float | None, stop_step: float | None) -> str:
    """Return a curve the height of a line of text, with its best and its stop."""
    width, height = _SPARK
    shown = _thin(dots)
    if not shown:
        return '<span class="quiet">no evals yet</span>'
    low, high = min(d.score for d in shown), max(d.score for d in shown)
    frame = _Frame(3, 4, width - 6, height - 8, shown[0].step, shown[-1].step, low, high)
    parts = [
        (
            f'<svg class="spark" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{len(dots)} evaluations, last {dots[-1].score:.4g}">'
        ),
        _line(shown, frame, "score"),
    ]
    parts += _marks(dots, frame, best_step, stop_step)
    return "".join([*parts, "</svg>"])


def curve(
    dots: Sequence[Dot], *, metric: str, best_step: float | None, stop_step: float | None
) -> str:
    """Return the curve of one job: scores with two standard errors each side, and the proxy.

    The proxy is drawn on a scale of its own, from its lowest to its highest value.
    """
    width, height = _CURVE
    shown = _thin(dots)
    if not shown:
        return '<p class="quiet">No evaluation has been reported yet.</p>'
    errors = [_TWO_SIGMA * (d.stderr or 0.0) for d in shown]
    low = min(d.score - e for d, e in zip(shown, errors, strict=True))
    high = max(d.score + e for d, e in zip(shown, errors, strict=True))
    inner = (width - _LEFT - _RIGHT, height - _TOP - _BOTTOM)
    frame = _Frame(_LEFT, _TOP, *inner, shown[0].step, shown[-1].step, low, high)
    label = escape(f"{metric} by training step, {len(dots)} evaluations", quote=True)
    parts = [f'<svg class="curve" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">']
    parts += _axes(frame)
    parts += [
        f'<line class="error" x1="{frame.x(d.step)}" x2="{frame.x(d.step)}" '
        f'y1="{frame.y(d.score - e)}" y2="{frame.y(d.score + e)}"/>'
        for d, e in zip(shown, errors, strict=True)
        if e
    ]
    parts += _proxy(shown, frame)
    parts.append(_line(shown, frame, "score"))
    if len(shown) <= _DOTS_UP_TO:
        parts += [
            f'<circle class="dot" cx="{frame.x(d.step)}" cy="{frame.y(d.score)}" r="2.5"/>'
            for d in shown
        ]
    parts += _marks(dots, frame, best_step, stop_step)
    return "".join([*parts, "</svg>"])


def cumulative(moments: Sequence[tuple[float, float]], *, now: float) -> str:
    """Return GPU-hours saved so far by time, from (time, hours) of each stop."""
    if not moments:
        return '<p class="quiet">Nothing has been stopped yet.</p>'
    width, height = _CURVE
    ordered = sorted(moments)
    total, corners = 0.0, [Dot(ordered[0][0], 0.0)]
    for at, hours in ordered:
        corners.append(Dot(at, total))
        total += hours
        corners.append(Dot(at, total))
    corners.append(Dot(max(now, ordered[-1][0]), total))
    inner = (width - _LEFT - _RIGHT, height - _TOP - _BOTTOM)
    frame = _Frame(_LEFT, _TOP, *inner, corners[0].step, corners[-1].step, 0.0, total or 1.0)
    head = (
        f'<svg class="curve" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="GPU-hours saved over time, {total:.3g} in all">'
    )
    top = f'<text class="tick" x="{_LEFT - 6}" y="{frame.y(total) + 4}" text-anchor="end">'
    return f"{head}{top}{total:.3g}</text>{_line(corners, frame, 'score')}</svg>"


def _thin(dots: Sequence[Dot]) -> list[Dot]:
    """Return at most about 300 points: of each stretch the lowest and the highest."""
    finite = [dot for dot in dots if math.isfinite(dot.score)]
    if len(finite) <= _MOST:
        return finite
    size = math.ceil(len(finite) / (_MOST // 2))
    kept: list[Dot] = []
    for start in range(0, len(finite), size):
        part = finite[start : start + size]
        ends = {min(part, key=_score), max(part, key=_score)}
        kept += sorted(ends)
    return kept


def _score(dot: Dot) -> float:
    return dot.score


def _line(dots: Sequence[Dot], frame: _Frame, kind: str) -> str:
    points = " ".join(f"{frame.x(d.step)},{frame.y(d.score)}" for d in dots)
    return f'<polyline class="{kind}" points="{points}"/>'


def _proxy(dots: Sequence[Dot], frame: _Frame) -> list[str]:
    known = [Dot(d.step, d.proxy) for d in dots if d.proxy is not None and math.isfinite(d.proxy)]
    if len(known) < 2:  # noqa: PLR2004 -- a line has two ends
        return []
    low, high = min(d.score for d in known), max(d.score for d in known)
    return [_line(known, frame._replace(low=low, high=high), "proxy")]


def _marks(
    dots: Sequence[Dot], frame: _Frame, best_step: float | None, stop_step: float | None
) -> list[str]:
    parts = []
    best = next((dot for dot in dots if dot.step == best_step), None)
    if stop_step is not None and frame.first <= stop_step <= frame.last:
        x = frame.x(stop_step)
        parts.append(
            f'<line class="stop" x1="{x}" x2="{x}" y1="{frame.top}" '
            f'y2="{frame.top + frame.height}"/>'
        )
    if best is not None:
        parts.append(
            f'<circle class="best" cx="{frame.x(best.step)}" cy="{frame.y(best.score)}" r="4"/>'
        )
    return parts


def _axes(frame: _Frame) -> list[str]:
    right, bottom = frame.left + frame.width, frame.top + frame.height
    parts = []
    for value in (frame.low, (frame.low + frame.high) / 2, frame.high):
        y = frame.y(value)
        parts.append(f'<line class="grid" x1="{frame.left}" x2="{right}" y1="{y}" y2="{y}"/>')
        parts.append(
            f'<text class="tick" x="{frame.left - 6}" y="{y + 4}" text-anchor="end">'
            f"{value:.4g}</text>"
        )
    for step, anchor in ((frame.first, "start"), (frame.last, "end")):
        parts.append(
            f'<text class="tick" x="{frame.x(step)}" y="{bottom + 20}" '
            f'text-anchor="{anchor}">step {step:.10g}</text>'
        )
    return parts
