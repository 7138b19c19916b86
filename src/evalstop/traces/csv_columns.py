"""Columns of a CSV file, parsed by Arrow; mistakes are named with file and line.

Arrow parses a million rows in a fraction of a second but says little about a bad cell. So a file
that Arrow refuses is read again by the standard library, row by row, which either finds the
mistake and its line, or manages what Arrow could not.
"""

from __future__ import annotations

import csv
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.csv as arrow_csv  # type: ignore[import-untyped]  # ships no types

from evalstop.core.errors import ReadError
from evalstop.traces.json_values import as_float
from evalstop.traces.text_files import not_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

__all__ = [
    "as_number",
    "csv_header",
    "first_row",
    "line_of",
    "read_columns",
    "require_header",
    "require_once",
]

_EMPTY = frozenset({"", "null", "none", "na", "n/a"})
_NULLS = ["", "null", "Null", "NULL", "none", "None", "NA", "N/A", "n/a", "na"]
_DELIMITERS = (";", "\t", "|")
_MOST_SHOWN = 60


def csv_header(path: Path, known: Collection[str]) -> list[str]:
    """Return the names of the columns.

    Args:
        path: the file.
        known: names that may be there only once.

    Raises:
        ReadError: the file cannot be read, is empty, no text, separated by something else than
            commas, or begins with something else than a header.
    """
    line, header = next(_rows(path), (1, None))
    if header is None:
        message = "the file is empty"
        raise ReadError(str(path), message)
    names = [name.strip() for name in header]
    place = f"{path}:{line}"
    if len(names) == 1:
        for delimiter in _DELIMITERS:
            if delimiter in names[0]:
                message = f"expected columns separated by ',', but the header uses {delimiter!r}"
                raise ReadError(place, message)
        if len(set(names[0].lower().split()) & set(known)) > 1:
            message = "expected columns separated by ',', but the header uses spaces"
            raise ReadError(place, message)
    require_once(place, names, known)
    return names


def require_once(place: str, names: Sequence[str], wanted: Collection[str]) -> None:
    """Refuse columns that share a name: which one counts is not ours to guess.

    Raises:
        ReadError: one of ``wanted`` is there twice.
    """
    twice = next((name for name in names if name in wanted and names.count(name) > 1), None)
    if twice is not None:
        message = f"the column {twice} is there more than once"
        raise ReadError(place, message)


def first_row(path: Path) -> list[str]:
    """Return the cells of the first row after the header; none if there is no row."""
    rows = _rows(path)
    next(rows, None)
    return next(rows, (0, []))[1]


def require_header(path: Path, names: Sequence[str], known: Collection[str]) -> None:
    """Refuse a file whose first line names nothing that we know: text, a page, a lost header.

    Raises:
        ReadError: it is one.
    """
    if not set(names) & set(known):
        first = ",".join(names)
        shown = first if len(first) <= _MOST_SHOWN else f"{first[:_MOST_SHOWN]}..."
        message = (
            "expected a header such as trace_id,step,score in the first line, but it is "
            f"{shown!r}: none of that is a column evalstop knows"
        )
        raise ReadError(str(path), message)


def read_columns(
    path: Path, header: Sequence[str], wanted: Sequence[str], numbers: Collection[str]
) -> dict[str, pa.Array]:
    """Return the wanted columns: ``numbers`` as float64, others as strings, null where empty.

    Raises:
        ReadError: with the line, for a row of the wrong length or a cell that is no number.
    """
    try:
        return _by_arrow(path, wanted, numbers)
    except (pa.ArrowInvalid, pa.ArrowKeyError):  # a cell or a name that only we can explain
        return _by_rows(path, header, wanted, numbers)


def line_of(path: Path, row: int) -> int:
    """Return the line on which a row (0 = first after the header) ends."""
    # Bytes that are no text may stand in a column that nobody asked for.
    for number, (line, _) in enumerate(_rows(path, errors="replace"), start=-1):
        if number == row:
            return line
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
    # A file, not its name: Arrow would unpack what is called .gz, and knows names in UTF-8 only.
    with pa.OSFile(os.fsencode(path)) as file:
        data = _table_of(file, wanted, numbers)
    return {name: data[name].combine_chunks() for name in wanted}


def _table_of(file: pa.NativeFile, wanted: Sequence[str], numbers: Collection[str]) -> pa.Table:
    return arrow_csv.read_csv(
        file,
        convert_options=arrow_csv.ConvertOptions(
            column_types={n: pa.float64() if n in numbers else pa.string() for n in wanted},
            include_columns=list(wanted),
            null_values=_NULLS,
            strings_can_be_null=True,
        ),
    )


def _by_rows(
    path: Path, header: Sequence[str], wanted: Sequence[str], numbers: Collection[str]
) -> dict[str, pa.Array]:
    cells: dict[str, list[Any]] = {name: [] for name in wanted}
    places = [(name, header.index(name), name in numbers) for name in wanted]
    rows = _rows(path)
    next(rows)
    for line, row in rows:
        place = f"{path}:{line}"
        if len(row) != len(header):
            message = f"expected {len(header)} cells as in the header, but got {len(row)}"
            raise ReadError(place, message)
        for name, index, is_number in places:
            text = row[index].strip()
            cells[name].append(as_number(text, name, place) if is_number else _text_or_none(text))
    return {
        name: pa.array(cells[name], pa.float64() if is_number else pa.string(), from_pandas=False)
        for name, _, is_number in places
    }


def _rows(path: Path, errors: str = "strict") -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not blank, each with the line on which it ends.

    Raises:
        ReadError: the file cannot be read, or is no text.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig", errors=errors) as file:
            reader = csv.reader(file)
            for cells in reader:
                if cells:
                    yield reader.line_num, cells
    except (UnicodeDecodeError, csv.Error) as error:
        raise not_text(path, error) from error
    except OSError as error:
        raise ReadError(str(path), f"cannot be read: {error.strerror}") from error


def _text_or_none(text: str) -> str | None:
    return None if text.lower() in _EMPTY else text
