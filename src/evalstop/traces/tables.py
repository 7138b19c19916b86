"""CSV and Parquet files in long form, parsed by Arrow; mistakes are named with file and line.

Arrow parses a million rows in a fraction of a second but says little about a bad cell. So a CSV
file that Arrow refuses is read again by the standard library, row by row, which either finds
the mistake and its line, or manages what Arrow could not.
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # ships no types
import pyarrow.csv as arrow_csv  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types

from evalstop.core.errors import ReadError
from evalstop.traces import longform
from evalstop.traces.names import find, unknown_metric
from evalstop.traces.series import Loaded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["read_csv", "read_parquet", "table_from_arrow", "table_from_rows"]

_EMPTY = frozenset({"", "null", "none", "na", "n/a"})
_NULLS = ["", "null", "Null", "NULL", "none", "None", "NA", "N/A", "n/a", "na"]
_DELIMITERS = (";", "\t", "|")


def read_csv(path: Path, metric: str | None = None) -> Loaded:
    """Read a CSV file.

    Args:
        path: the file.
        metric: the column to take as the score where there is no ``score`` or ``value``; such a
            table is one run unless it has a ``trace_id``.

    Raises:
        ReadError: the file is empty, has no rows, lacks a column, or a cell is not a number.
    """
    header = _header(path)
    wide = _wide_column(str(path), header, metric)
    wanted = [name for name in header if name in _known() or name == wide]
    try:
        columns = _by_arrow(path, wanted, wide)
    except (pa.ArrowInvalid, pa.ArrowKeyError):
        columns = _by_rows(path, header, wanted, wide)
    table = longform.Table(str(path), columns, lambda row: f"{path}:{_line_of(path, row)}", header)
    return Loaded(longform.curves(_completed(table, path.stem, wide), metric=wide or "score"), [])


def read_parquet(path: Path, metric: str | None = None) -> Loaded:
    """Read a Parquet file; see `read_csv`."""
    try:
        names = pq.read_schema(path).names
        wide = _wide_column(str(path), names, metric)
        wanted = [name for name in names if name in _known() or name == wide]
        data = pq.read_table(path, columns=wanted)
    except (pa.ArrowException, OSError) as error:
        message = f"not a readable Parquet file: {error}"
        raise ReadError(str(path), message) from error
    table = table_from_arrow(data, str(path), wide)._replace(header=names)
    return Loaded(longform.curves(_completed(table, path.stem, wide), metric=wide or "score"), [])


def table_from_arrow(data: pa.Table, source: str, wide: str | None = None) -> longform.Table:
    """Return the long-form columns of an Arrow table.

    Raises:
        ReadError: a column's type does not fit.
    """
    columns: dict[str, pa.Array] = {}
    for name in data.column_names:
        if name not in _known() and name != wide:
            continue
        target = pa.float64() if name in longform.NUMBERS or name == wide else pa.string()
        cells = data[name].combine_chunks()
        try:
            columns[name] = _cast(cells, target)
        except pa.ArrowException as error:
            kind = "numbers" if target == pa.float64() else "text"
            message = f"column {name} must hold {kind}, but it holds {cells.type}: {error}"
            raise ReadError(source, message) from error
    return longform.Table(source, columns, lambda row: f"{source}: row {row + 1}")


def table_from_rows(
    source: str, rows: Sequence[Mapping[str, object]], lines: Sequence[int]
) -> longform.Table:
    """Return a table of JSON objects.

    Args:
        source: the file.
        rows: one object a row.
        lines: each row's line in the file.

    Raises:
        ReadError: a value is neither a number, nor text that is one.
    """
    names = dict.fromkeys(name for row in rows for name in row if name in _known())
    columns: dict[str, pa.Array] = {}
    for name in names:
        cells = [row.get(name) for row in rows]
        if name in longform.NUMBERS:
            places = (f"{source}:{line}" for line in lines)
            numbers = [
                _number(cell, name, place) for cell, place in zip(cells, places, strict=True)
            ]
            columns[name] = pa.array(numbers, pa.float64(), from_pandas=False)
        else:
            columns[name] = pa.array([None if c is None else str(c) for c in cells], pa.string())
    return longform.Table(source, columns, lambda row: f"{source}:{lines[row]}")


def _known() -> frozenset[str]:
    return frozenset(longform.NUMBERS + longform.WORDS)


def _header(path: Path) -> list[str]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header = next(csv.reader(file), None)
    except (UnicodeDecodeError, csv.Error) as error:
        raise _no_text(path, error) from error
    if header is None:
        message = "the file is empty"
        raise ReadError(str(path), message)
    names = [name.strip() for name in header]
    if len(names) == 1:
        for delimiter in _DELIMITERS:
            if delimiter in names[0]:
                message = f"expected columns separated by ',', but the header uses {delimiter!r}"
                msg = f"{path}:1"
                raise ReadError(msg, message)
    twice = next((name for name in names if name in _known() and names.count(name) > 1), None)
    if twice is not None:
        msg = f"{path}:1"
        raise ReadError(msg, f"the column {twice} is there more than once")
    return names


def _no_text(path: Path, error: Exception) -> ReadError:
    message = f"not a text file in UTF-8: {error}"
    return ReadError(str(path), message)


def _wide_column(source: str, header: Sequence[str], metric: str | None) -> str | None:
    """Return the column to read as the score of a table with one column a metric."""
    if "score" in header or "value" in header or metric is None:
        return None
    others = [name for name in header if name not in _known()]
    column = find(metric, others)
    if column is None and "step" in header and others:
        raise ReadError(source, unknown_metric(metric, others))
    return column


def _by_arrow(path: Path, wanted: Sequence[str], wide: str | None) -> dict[str, pa.Array]:
    numbers = {*longform.NUMBERS, wide}
    types = {name: pa.float64() if name in numbers else pa.string() for name in wanted}
    data = arrow_csv.read_csv(
        path,
        convert_options=arrow_csv.ConvertOptions(
            column_types=types,
            include_columns=list(wanted),
            null_values=_NULLS,
            strings_can_be_null=True,
        ),
    )
    return {name: data[name].combine_chunks() for name in wanted}


def _by_rows(
    path: Path, header: Sequence[str], wanted: Sequence[str], wide: str | None
) -> dict[str, pa.Array]:
    cells: dict[str, list[Any]] = {name: [] for name in wanted}
    numbers = {*longform.NUMBERS, wide}
    places = [(name, header.index(name), name in numbers) for name in wanted]
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            next(reader)
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    message = f"expected {len(header)} cells as in the header, but got {len(row)}"
                    msg = f"{path}:{reader.line_num}"
                    raise ReadError(msg, message)
                for name, index, is_number in places:
                    text = row[index].strip()
                    place = f"{path}:{reader.line_num}"
                    cells[name].append(
                        _number(text, name, place) if is_number else _text_or_none(text)
                    )
    except (UnicodeDecodeError, csv.Error) as error:
        raise _no_text(path, error) from error
    return {
        name: pa.array(cells[name], pa.float64() if is_number else pa.string(), from_pandas=False)
        for name, _, is_number in places
    }


def _text_or_none(text: str) -> str | None:
    return None if text.lower() in _EMPTY else text


def _number(cell: object, name: str, place: str) -> float | None:
    """Return a cell's number, None if it is empty; text may be a number, as loggers write it."""
    if cell is None:
        return None
    if isinstance(cell, (int, float)) and not isinstance(cell, bool):
        return float(cell)
    if isinstance(cell, str):
        if cell.strip().lower() in _EMPTY:
            return None
        try:
            return float(cell)
        except ValueError:
            pass
    raise ReadError(place, f"{name} must be a number, but it is {cell!r}")


def _line_of(path: Path, row: int) -> int:
    """Return the line on which a row (0 = first after the header) ends."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        rows = -2
        for cells in reader:
            rows += bool(cells)
            if rows == row:
                return reader.line_num
    return row + 2


def _cast(column: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_boolean(column.type) and target == pa.string():
        return pc.if_else(column, pa.scalar("true"), pa.scalar("false"))
    return column.cast(target)


def _completed(table: longform.Table, stem: str, wide: str | None) -> longform.Table:
    """Give a table with one column a metric what the long form asks for."""
    if wide is None:
        return table
    columns = dict(table.columns)
    columns["score"] = columns.pop(wide)
    if "trace_id" not in columns and "step" in columns:
        columns["trace_id"] = pa.array([stem] * len(columns["step"]), pa.string())
    columns.pop("metric", None)
    return table._replace(columns=columns)
