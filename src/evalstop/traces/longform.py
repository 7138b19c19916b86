"""Tables in long form: one row an evaluation.

Columns: ``trace_id`` (or ``run``), ``step``, ``score`` (or ``value``); optional ``metric``,
``greater_is_better``, ``stderr``, ``n_items``, ``job_type``, ``loss``, ``proxy``, ``attempt``,
``epoch_key``, ``eval_id``, ``label``. The parsers of CSV, Parquet and JSONL end here, so that
every format says the same about the same mistake.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # ships no types

from evalstop.core.errors import ReadError
from evalstop.traces.series import Curve, Loaded, SkippedPoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = [
    "NUMBERS",
    "REQUIRED",
    "RUN_NAMES",
    "SIGNAL",
    "WORDS",
    "Table",
    "curves",
    "missing_column",
    "whole_steps",
]

NUMBERS = ("step", "score", "value", "stderr", "n_items", "loss", "proxy", "attempt")
RUN_NAMES = ("run_id", "run", "run_name")
"""Other names for the column ``trace_id``, taken where that is not there."""
WORDS = (
    *("trace_id", "metric", "greater_is_better", "job_type", "epoch_key", "eval_id", "label"),
    *RUN_NAMES,
)
REQUIRED = ("score", "step", "trace_id")

SIGNAL = "signals."
"""Start of the name of a column that holds a side signal (`evalstop.core.signals`)."""

_TRUE, _FALSE = ("true", "max", "1", "1.0"), ("false", "min", "0", "0.0")
"""A table that lacks some of them holds the others as floats."""

_TRUTH = dict.fromkeys(_TRUE, True) | dict.fromkeys(_FALSE, False)
_LARGEST_STEP = 2.0**53
_OPTIONAL = ("stderr", "n_items", "loss", "proxy", "attempt")

_Numbers: TypeAlias = "Mapping[str, NDArray[np.float64]]"
"""The optional numbers of all rows, NaN where a cell was empty."""


class Table(NamedTuple):
    """Columns of a file that mean something to us.

    Attributes:
        source: the file.
        columns: numbers as float64, words as strings, nulls where a cell was empty.
        place: names the place of a row, for messages.
        header: all of the file's columns, for messages.
    """

    source: str
    columns: Mapping[str, pa.Array]
    place: Callable[[int], str]
    header: Sequence[str] = ()


def missing_column(source: str, name: str, there: Iterable[str]) -> ReadError:
    """Return the error for a required column that a file lacks."""
    wanted = "score (or value)" if name == "score" else name
    names = ", ".join(there)
    hint = (
        " For a table with one column a metric, name the column with --metric."
        if name == "score"
        else ""
    )
    return ReadError(source, f"the column {wanted} is missing; the columns are: {names}.{hint}")


def curves(table: Table, *, metric: str = "score") -> Loaded:
    """Return one curve a (trace_id, metric) of a long-form table, in order of appearance.

    A run without a usable evaluation is named among the errors, and spares the others.

    Args:
        table: the file's columns.
        metric: the metric's name where the table does not give it.

    Raises:
        ReadError: a column is missing, the table is empty, a cell makes no sense, or no run has
            an evaluation.
    """
    columns = dict(table.columns)
    if "score" not in columns and "value" in columns:
        columns["score"] = columns.pop("value")
    runs = next((name for name in RUN_NAMES if name in columns), None)
    if "trace_id" not in columns and runs is not None:
        columns["trace_id"] = columns.pop(runs)
    for name in REQUIRED:
        if name not in columns:
            raise missing_column(table.source, name, table.header or table.columns)
    count = len(columns["step"])
    if count == 0:
        raise ReadError(table.source, "there is a header, but no rows")
    checked = _checked(table, columns)
    numbers = {
        name: columns[name].fill_null(math.nan).to_numpy(zero_copy_only=False)
        for name in columns
        if name in _OPTIONAL or name.startswith(SIGNAL)
    }
    order, bounds = _groups(table, columns, metric, count)
    found: list[Curve] = []
    errors: list[ReadError] = []
    for start, end in bounds:
        try:
            found.append(_curve(table, columns, numbers, order[start:end], checked, metric))
        except _NothingUsableError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    return Loaded(found, errors)


class _NothingUsableError(ReadError):
    """A run has no evaluation that could be used."""


class _Checked(NamedTuple):
    """Steps, scores (NaN for none) and whether there was a score, row by row."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    given: NDArray[np.bool_]


def _checked(table: Table, columns: Mapping[str, pa.Array]) -> _Checked:
    scores = columns["score"]
    return _Checked(
        whole_steps(columns["step"], "step", table.place),
        scores.fill_null(math.nan).to_numpy(zero_copy_only=False),
        ~np.asarray(scores.is_null(), dtype=bool),
    )


def whole_steps(column: pa.Array, name: str, place: Callable[[int], str]) -> NDArray[np.int64]:
    """Return a column of steps as whole numbers.

    Args:
        column: as floats, null for none.
        name: what the file calls it.
        place: where a row (0 = first) stands, for errors.

    Raises:
        ReadError: a step is none, or none that a float tells from the next.
    """
    raw = column.fill_null(math.nan).to_numpy(zero_copy_only=False)
    bad = ~(np.isfinite(raw) & (np.floor(raw) == raw) & (np.abs(raw) < _LARGEST_STEP))
    if bad.any():
        row = int(np.argmax(bad))
        value = column[row].as_py()
        came = "nothing" if value is None else f"{value:g}"
        raise ReadError(place(row), f"{name} must be a whole number below 2^53, but it is {came}")
    whole: NDArray[np.int64] = raw.astype(np.int64)
    return whole


def _groups(
    table: Table, columns: Mapping[str, pa.Array], metric: str, count: int
) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
    """Return the rows in order of group, and where in that order each group lies."""
    trace = columns["trace_id"]
    if trace.null_count:
        row = int(np.argmax(np.asarray(trace.is_null(), dtype=bool)))
        raise ReadError(table.place(row), "trace_id is empty")
    metrics = columns.get("metric")
    keys = _codes(trace)
    if metrics is not None:
        named = _codes(metrics.fill_null(metric))
        keys = keys * (int(named.max()) + 1) + named
    order = np.argsort(keys, kind="stable")
    cuts = np.flatnonzero(np.diff(keys[order])) + 1
    starts = [0, *cuts.tolist()]
    bounds = list(zip(starts, [*cuts.tolist(), count], strict=True))
    bounds.sort(key=lambda bound: int(order[bound[0]]))
    return order, bounds


def _codes(column: pa.Array) -> NDArray[np.int64]:
    """Return a number for each distinct word of a column."""
    codes: NDArray[np.int64] = (
        column.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    )
    return codes


def _curve(  # noqa: PLR0917 -- the table in its parts, made once for all curves
    table: Table,
    columns: Mapping[str, pa.Array],
    numbers: _Numbers,
    rows: NDArray[np.int64],
    checked: _Checked,
    metric: str,
) -> Curve:
    steps, values, given = checked
    skipped: tuple[SkippedPoint, ...] = ()
    keep = given[rows] & (steps[rows] >= 0)
    losses = _losses(numbers, rows, steps)
    if not keep.all():
        skipped = tuple(_left_out(rows[~keep], steps, given))
        if not keep.any():
            raise _NothingUsableError(
                table.place(int(rows[0])),
                f"run {columns['trace_id'][int(rows[0])].as_py()!r} has no usable evaluation: "
                f"{skipped[0].reason}",
            )
        rows = rows[keep]
    first = int(rows[0])
    return Curve(
        trace_id=columns["trace_id"][first].as_py(),
        source=table.source,
        metric=_word(columns, "metric", first) or metric,
        steps=steps[rows].tolist(),
        scores=values[rows].tolist(),
        greater_is_better=_direction(table, columns, rows),
        job_type=_word(columns, "job_type", first),
        stderrs=_numbers(numbers, "stderr", rows),
        n_items=_whole(numbers, "n_items", rows),
        proxies=_numbers(numbers, "proxy", rows),
        attempts=_whole(numbers, "attempt", rows),
        epoch_keys=_words(columns, "epoch_key", rows),
        eval_ids=_words(columns, "eval_id", rows),
        losses=losses,
        signals={
            name.removeprefix(SIGNAL): column[rows].tolist()
            for name, column in numbers.items()
            if name.startswith(SIGNAL) and np.isfinite(column[rows]).any()
        },
        skipped=skipped,
        label=_word(columns, "label", first),
    )


def _left_out(
    rows: NDArray[np.int64], steps: NDArray[np.int64], given: NDArray[np.bool_]
) -> Iterator[SkippedPoint]:
    for row in rows.tolist():
        step = int(steps[row])
        reason = "no score" if not given[row] else f"step {step} is negative"
        yield SkippedPoint(step=step, reason=reason)


def _losses(
    numbers: _Numbers, rows: NDArray[np.int64], steps: NDArray[np.int64]
) -> tuple[tuple[int, float], ...]:
    losses = _numbers(numbers, "loss", rows)
    if losses is None:
        return ()
    pairs = zip(steps[rows].tolist(), losses, strict=True)
    return tuple(sorted((step, loss) for step, loss in pairs if math.isfinite(loss)))


def _direction(
    table: Table, columns: Mapping[str, pa.Array], rows: NDArray[np.int64]
) -> bool | None:
    column = columns.get("greater_is_better")
    if column is None:
        return None
    taken = column.take(pa.array(rows))
    words = pc.unique(taken).to_pylist()
    stated = {_TRUTH.get(word.lower()) for word in words if word is not None}
    if None in stated:
        row = next(
            row
            for row in rows.tolist()
            if column[row].as_py() is not None and column[row].as_py().lower() not in _TRUTH
        )
        came = column[row].as_py()
        raise ReadError(
            table.place(row), f"greater_is_better must be true or false, but it is {came!r}"
        )
    if len(stated) > 1:
        raise ReadError(
            table.place(int(rows[0])),
            f"greater_is_better is both true and false within run "
            f"{columns['trace_id'][int(rows[0])].as_py()!r}",
        )
    return stated.pop() if stated else None


def _word(columns: Mapping[str, pa.Array], name: str, row: int) -> str:
    column = columns.get(name)
    value = None if column is None else column[row].as_py()
    return "" if value is None else str(value)


def _words(
    columns: Mapping[str, pa.Array], name: str, rows: NDArray[np.int64]
) -> Sequence[str] | None:
    column = columns.get(name)
    if column is None:
        return None
    words: list[str] = column.take(pa.array(rows)).fill_null("").to_pylist()
    return words if any(words) else None


def _numbers(numbers: _Numbers, name: str, rows: NDArray[np.int64]) -> Sequence[float] | None:
    column = numbers.get(name)
    if column is None:
        return None
    values = column[rows]
    return values.tolist() if np.isfinite(values).any() else None


def _whole(numbers: _Numbers, name: str, rows: NDArray[np.int64]) -> Sequence[int] | None:
    values = _numbers(numbers, name, rows)
    if values is None:
        return None
    return [int(value) if math.isfinite(value) and value > 0 else 0 for value in values]
