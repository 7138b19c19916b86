"""Columns of a CSV file, parsed by Arrow; mistakes are named with file and line.

Arrow parses a million rows in a fraction of a second but says little about a bad cell. So a file
that Arrow refuses is read again by the standard library, row by row, which either finds the
mistake and its line, or manages what Arrow could not.
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.csv as arrow_csv  # type: ignore[import-untyped]  # ships no types

from evalstop.core.errors import ReadError
from evalstop.traces.json_values import as_float

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

__all__ = ["as_number", "csv_header", "line_of", "read_columns"]

_EMPTY = frozenset({"", "null", "none", "na", "n/a"})
_NULLS = ["", "null", "Null", "NULL", "none", "None", "NA", "N/A", "n/a", "na"]
_DELIMITERS = (";", "\t", "|")


def csv_header(path: Path, known: Collection[str]) -> list[str]:
    """Return the names of the columns.

    Args:
        path: the file.
        known: names that may be there only once.

    Raises:
        ReadError: the file is empty, no text, or separated by something else than commas.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header = next(csv.reader(file), None)
    except (UnicodeDecodeError, csv.Error) as error:
        raise _no_text(path, error) from error
    if header is None:
        message = "the file is empty"
        raise ReadError(str(path), message)
    names = [name.strip() for name in header]
    place = f"{path}:1"
    if len(names) == 1:
        for delimiter in _DELIMITERS:
            if delimiter in names[0]:
                message = f"expected columns separated by ',', but the header uses {delimiter!r}"
                raise ReadError(place, message)
    twice = next((name for name in names if name in known and names.count(name) > 1), None)
    if twice is not None:
        message = f"the column {twice} is there more than once"
        raise ReadError(place, message)
    return names


def read_columns(
    path: Path, header: Sequence[str], wanted: Sequence[str], numbers: Collection[str]
) -> dict[str, pa.Array]:
    """Return the wanted columns: ``numbers`` as float64, others as strings, null where empty.

    Raises:
        ReadError: with the line, for a row of the wrong length or a cell that is no number.
    """
    try:
        return _by_arrow(path, wanted, numbers)
    except (pa.ArrowInvalid, pa.ArrowKeyError):
        return _by_rows(path, header, wanted, numbers)


def line_of(path: Path, row: int) -> int:
    """Return the line on which a row (0 = first after the header) ends."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        rows = -2
        for cells in reader:
            rows += bool(cells)
            if rows == row:
                return reader.line_num
    return row + 2


def as_number(cell: object, name: str, place: str) -> float | None:
    """Return a cell's number, None if it is empty; text may be a number, as loggers write it.

    Raises:
        ReadError: it is something else.
    """
    if cell is None:
        return None
    number = as_float(cell)
    if number is not None:
        return number
    if isinstance(cell, str):
        if cell.strip().lower() in _EMPTY:
            return None
        try:
            return float(cell)
        except ValueError:
            pass
    message = f"{name} must be a number, but it is {cell!r}"
    raise ReadError(place, message)


def _by_arrow(path: Path, wanted: Sequence[str], numbers: Collection[str]) -> dict[str, pa.Array]:
    data = arrow_csv.read_csv(
        path,
        convert_options=arrow_csv.ConvertOptions(
            column_types={n: pa.float64() if n in numbers else pa.string() for n in wanted},
            include_columns=list(wanted),
            null_values=_NULLS,
            strings_can_be_null=True,
        ),
    )
    return {name: data[name].combine_chunks() for name in wanted}


def _by_rows(
    path: Path, header: Sequence[str], wanted: Sequence[str], numbers: Collection[str]
) -> dict[str, pa.Array]:
    cells: dict[str, list[Any]] = {name: [] for name in wanted}
    places = [(name, header.index(name), name in numbers) for name in wanted]
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            next(reader)
            for row in reader:
                if not row:
                    continue
                place = f"{path}:{reader.line_num}"
                if len(row) != len(header):
                    message = f"expected {len(header)} cells as in the header, but got {len(row)}"
                    raise ReadError(place, message)
                for name, index, is_number in places:
                    text = row[index].strip()
                    cells[name].append(
                        as_number(text, name, place) if is_number else _text_or_none(text)
                    )
    except (UnicodeDecodeError, csv.Error) as error:
        raise _no_text(path, error) from error
    return {
        name: pa.array(cells[name], pa.float64() if is_number else pa.string(), from_pandas=False)
        for name, _, is_number in places
    }


def _text_or_none(text: str) -> str | None:
    return None if text.lower() in _EMPTY else text


def _no_text(path: Path, error: Exception) -> ReadError:
    message = f"not a text file in UTF-8: {error}"
    return ReadError(str(path), message)
