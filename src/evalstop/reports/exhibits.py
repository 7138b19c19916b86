"""What a report shows: tables and charts as plain data."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

__all__ = ["Chart", "Exhibit", "Line", "Section", "Table"]


class Line(Struct, frozen=True, kw_only=True):
    """One series of a chart, with the ends of its 95 % intervals (NaN where there is none)."""

    label: str
    x: tuple[float | str, ...]
    y: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


class Chart(Struct, frozen=True, kw_only=True):
    """A figure: lines over numbers, or bars over names.

    Attributes:
        name: of its file, without suffix.
        marks: values of the paper, as label and y, drawn as horizontal rules.
        percent: whether y are shares, to be written as percentages.
        log_x: whether x doubles rather than adds.
    """

    name: str
    title: str
    caption: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    kind: Literal["lines", "bars"] = "lines"
    marks: tuple[tuple[str, float], ...] = ()
    percent: bool = True
    log_x: bool = False


class Table(Struct, frozen=True, kw_only=True):
    """Rows of text under a header."""

    title: str
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


Exhibit: TypeAlias = Table | Chart


class Section(Struct, frozen=True, kw_only=True):
    """Exhibits of one suite, and what there is to say about them."""

    suite: str
    title: str
    text: str
    exhibits: tuple[Exhibit, ...]
