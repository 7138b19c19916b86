"""CSV and Parquet files in long form, or with one column a metric."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types

from evalstop.core.errors import ReadError
from evalstop.traces import longform
from evalstop.traces.csv_columns import (
    as_number,
    csv_header,
    line_of,
    read_columns,
    require_header,
    require_once,
)
from evalstop.traces.json_values import as_float
from evalstop.traces.names import find, unknown_metric
from evalstop.traces.wandb_export import is_wandb_export, read_wandb_export

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from evalstop.traces.series import Loaded

__all__ = ["read_csv", "read_parquet", "table_from_arrow", "table_from_rows"]

_FEWEST_STEPS = 3
_MOST_A_STEP = 1.5


def read_csv(path: Path, metric: str | None = None) -> Loaded:
    """Read a CSV file, in long form or as Weights & Biases exports a chart.

    Args:
        path: the file.
        metric: the column to take as the score where there is no ``score`` or ``value``; such a
            table is one run unless it has a ``trace_id``.

    Raises:
        ReadError: the file is empty, has no rows, lacks a column, or a cell is not a number.
    """
    header = csv_header(path, _known())
    if is_wandb_export(header):
        return read_wandb_export(path, header)
    header = [_spelt(name, header) for name in header]
    wide = _wide_column(str(path), header, metric)
    wanted = [name for name in header if name in _known() or name == wide]
    require_header(path, header, wanted)
    require_once(str(path), header, wanted)
    numbers = (*longform.NUMBERS, wide) if wide else longform.NUMBERS
    columns = read_columns(path, header, wanted, numbers)
    table = longform.Table(str(path), columns, lambda row: f"{path}:{line_of(path, row)}", header)
    return longform.curves(_completed(table, path.stem, wide), metric=wide or "score")


def read_parquet(path: Path, metric: str | None = None) -> Loaded:
    """Read a Parquet file; see `read_csv`."""
    try:
        with pa.OSFile(os.fsencode(path)) as file:  # Arrow itself knows names in UTF-8 only
            parquet = pq.ParquetFile(file)
            header = parquet.schema_arrow.names
            names = [_spelt(name, header) for name in header]
            wide = _wide_column(str(path), names, metric)
            wanted = [name for name in names if name in _known() or name == wide]
            require_once(str(path), names, wanted)
            columns = [old for old, name in zip(header, names, strict=True) if name in wanted]
            data = parquet.read(columns=columns).select(columns).rename_columns(wanted)
            data.validate(full=True)  # text that is none would be found much later
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        message = f"not a readable Parquet file: {error}"
        raise ReadError(str(path), message) from error
    table = table_from_arrow(data, str(path), wide)._replace(header=names)
    return longform.curves(_completed(table, path.stem, wide), metric=wide or "score")


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
    source: str,
    rows: Sequence[Mapping[str, object]],
    lines: Sequence[int],
    *,
    stem: str,
    metric: str | None = None,
) -> tuple[longform.Table, str]:
    """Return a table of JSON objects, and what its scores are called.

    Args:
        source: the file.
        rows: one object a row.
        lines: each row's line in the file.
        stem: what the run is called, where objects with one key a metric name none.
        metric: the key to take as the score where there is no ``score`` or ``value``.

    Raises:
        ReadError: a value is neither a number, nor text that is one.
    """
    keys = list(dict.fromkeys(name for row in rows for name in row))
    header = [_spelt(name, keys) for name in keys]
    wide = _wide_column(source, header, metric)
    require_once(source, header, [name for name in header if name in _known()])
    columns: dict[str, pa.Array] = {}
    for key, name in zip(keys, header, strict=True):
        if name not in _known() and name != wide:
            continue
        cells = [row.get(key) for row in rows]
        if name in longform.NUMBERS or name == wide:
            places = (f"{source}:{line}" for line in lines)
            numbers = [
                as_number(cell, name, place) for cell, place in zip(cells, places, strict=True)
            ]
            columns[name] = pa.array(numbers, pa.float64(), from_pandas=False)
        else:
            columns[name] = _words([None if c is None else str(c) for c in cells])
    columns |= _signals(rows)
    table = longform.Table(source, columns, lambda row: f"{source}:{lines[row]}", header)
    return _completed(table, stem, wide), wide or "score"


def _words(cells: Sequence[str | None]) -> pa.Array:
    """Return a column of text; half a character, which JSON can hold, is written as an escape."""
    try:
        return pa.array(cells, pa.string())
    except UnicodeEncodeError:
        whole = [None if c is None else c.encode(errors="backslashreplace") for c in cells]
        return pa.array(whole, pa.binary()).cast(pa.string())


def _signals(rows: Sequence[Mapping[str, object]]) -> dict[str, pa.Array]:
    """Return a column for each side signal that an object ``signals`` of a row names."""
    given = [row.get("signals") for row in rows]
    found: list[Mapping[str, object]] = [c if isinstance(c, Mapping) else {} for c in given]
    return {
        f"{longform.SIGNAL}{name}": pa.array(
            [as_float(cell.get(name)) for cell in found], pa.float64()
        )
        for name in dict.fromkeys(str(name) for cell in found for name in cell)
    }


def _spelt(name: str, header: Sequence[str]) -> str:
    """Return a column's name as we spell it: ``Step`` is ``step``, unless that is there too."""
    lower = name.lower()
    return lower if lower in _known() and lower not in header else name


def _known() -> frozenset[str]:
    return frozenset(longform.NUMBERS + longform.WORDS)


def _wide_column(source: str, header: Sequence[str], metric: str | None) -> str | None:
    """Return the column to read as the score of a table with one column a metric."""
    if "score" in header or "value" in header or metric is None:
        return None
    others = [name for name in header if name not in _known()]
    column = find(metric, others)
    if column is None and "step" in header and others:
        raise ReadError(source, unknown_metric(metric, others))
    return column


def _cast(column: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_boolean(column.type) and target == pa.string():
        return pc.if_else(column, pa.scalar("true"), pa.scalar("false"))
    if pa.types.is_integer(column.type) and target == pa.float64():
        return column.cast(target, safe=False)  # a step too large is refused with its row
    return column.cast(target)


def _completed(table: longform.Table, stem: str, wide: str | None) -> longform.Table:
    """Give a table with one column a metric what the long form asks for."""
    if wide is None:
        return table
    columns = dict(table.columns)
    columns["score"] = columns.pop(wide)
    if not {"trace_id", *longform.RUN_NAMES} & columns.keys() and "step" in columns:
        _require_one_run(table.source, columns["step"], columns["score"])
        columns["trace_id"] = pa.array([stem] * len(columns["step"]), pa.string())
    columns.pop("metric", None)
    return table._replace(columns=columns)


def _require_one_run(source: str, steps: pa.Array, scores: pa.Array) -> None:
    """Refuse a table that names no run and scores most of its steps twice or more.

    A run that was resumed goes through some steps again; several runs below each other go through
    all of them, and pooled they would be judged as a run that never was.

    Raises:
        ReadError: it is such a table.
    """
    given = pc.is_valid(scores)
    at = steps.filter(given)
    values = scores.filter(given)
    places = len(pc.unique(at))
    told = len(pa.table({"at": at, "values": values}).group_by(["at", "values"]).aggregate([]))
    if places >= _FEWEST_STEPS and told > _MOST_A_STEP * places:
        message = (
            f"{told} scores for {places} steps, and no column says of which run: if the file "
            "holds several runs, name them in a column trace_id"
        )
        raise ReadError(source, message)
