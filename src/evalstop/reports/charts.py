"""Charts as SVG, drawn by matplotlib: the same data give the same bytes."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from evalstop.reports.exhibits import Chart, Line

__all__ = ["chart_svg"]

_COLOURS = ("#2563eb", "#c2255c", "#2b8a3e", "#d9480f", "#7048e8", "#0b7285", "#868e96", "#b08900")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_WIDTH, _HEIGHT = 7.2, 3.9


def chart_svg(chart: Chart) -> str:
    """Return a chart as an SVG element."""
    style: Any = {
        "svg.hashsalt": chart.name,  # ids from the name and not from chance
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "svg.fonttype": "none",
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        axes = figure.add_subplot()
        if chart.kind == "bars":
            _draw_bars(axes, chart)
        else:
            _draw_lines(axes, chart)
        _frame(axes, chart)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    whole = text.getvalue()
    return whole[whole.index("<svg") :].strip()


def _draw_lines(axes: Axes, chart: Chart) -> None:
    for number, line in enumerate(chart.lines):
        colour, marker = _COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)]
        x = [float(value) for value in line.x]
        axes.plot(x, line.y, color=colour, marker=marker, markersize=4, lw=1.5, label=line.label)
        axes.fill_between(x, line.low, line.high, color=colour, alpha=0.14, lw=0)
    places = sorted({float(value) for line in chart.lines for value in line.x})
    if chart.log_x:
        axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _draw_bars(axes: Axes, chart: Chart) -> None:
    count = len(chart.lines)
    width = 0.8 / max(count, 1)
    for number, line in enumerate(chart.lines):
        places = [i + (number - (count - 1) / 2) * width for i in range(len(line.x))]
        heights = [value if math.isfinite(value) else 0.0 for value in line.y]
        axes.bar(
            places,
            heights,
            width * 0.92,
            color=_COLOURS[number % len(_COLOURS)],
            yerr=_reach(line),
            error_kw={"lw": 0.9, "ecolor": "#333333"},
            label=line.label,
        )
    names = [str(value) for value in chart.lines[0].x] if chart.lines else []
    axes.set_xticks(range(len(names)), names)
    axes.axhline(0, color="#333333", lw=0.8)


def _reach(line: Line) -> list[list[float]]:
    """Return how far the interval reaches below and above each bar; 0 where it is undefined."""
    return [
        [_length(y - low) for y, low in zip(line.y, line.low, strict=True)],
        [_length(high - y) for y, high in zip(line.y, line.high, strict=True)],
    ]


def _length(value: float) -> float:
    return max(0.0, value) if math.isfinite(value) else 0.0


def _frame(axes: Axes, chart: Chart) -> None:
    for label, height in chart.marks:
        axes.axhline(height, color="#555555", lw=0.9, ls=(0, (4, 3)))
        axes.annotate(
            label,
            (1.0, height),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            xytext=(-2, 3),
            ha="right",
            fontsize=8,
            color="#555555",
            bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1},
        )
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.grid(axis="y", color="#dddddd", lw=0.6)
    axes.set_axisbelow(True)
    if chart.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    if len(chart.lines) > 1:
        axes.legend(
            frameon=False, fontsize=8, ncols=1, loc="center left", bbox_to_anchor=(1.0, 0.5)
        )
