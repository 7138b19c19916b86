"""Between lists of Python objects and flat columns: how `Workload` stores what may be absent."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "flat_floats",
    "flat_integers",
    "index_of",
    "known",
    "listed",
    "nested",
    "optional_column",
    "optional_floats",
    "optional_integers",
    "optional_values",
    "packed",
    "padded",
    "ragged",
]

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]

_NAN = float("nan")


def flat_floats(values: Iterable[float]) -> Floats:
    """Return a float64 column."""
    return np.fromiter(values, dtype=np.float64)


def flat_integers(values: Iterable[int]) -> Integers:
    """Return an int64 column."""
    return np.fromiter(values, dtype=np.int64)


def index_of(names: Sequence[str]) -> tuple[tuple[str, ...], Integers]:
    """Return the distinct names in order of first use, and each entry's index into them."""
    place = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return tuple(place), flat_integers(place[name] for name in names)


def optional_floats(values: Sequence[float | None]) -> Floats | None:
    """Return a column with NaN for None; None where all are."""
    if all(value is None for value in values):
        return None
    return flat_floats(_NAN if value is None else value for value in values)


def optional_integers(values: Sequence[int | None]) -> Integers | None:
    """Return a column with 0 for None; None where all are."""
    if all(value is None for value in values):
        return None
    return flat_integers(value or 0 for value in values)


def ragged(rows: Sequence[Sequence[float] | None], counts: Sequence[int]) -> Floats | None:
    """Return rows of the given lengths end to end, NaN for absent ones; None where all are."""
    if all(row is None for row in rows):
        return None
    whole = [
        [_NAN] * count if row is None else row for row, count in zip(rows, counts, strict=True)
    ]
    return flat_floats(value for row in whole for value in row)


def nested(
    rows: Sequence[Sequence[Sequence[float]] | None], counts: Sequence[int]
) -> tuple[Integers | None, Floats | None]:
    """Return bounds and entries of lists of lists; an absent row is one 0 for each evaluation."""
    if all(row is None for row in rows):
        return None, None
    whole: list[Sequence[float]] = []
    for row, count in zip(rows, counts, strict=True):
        whole.extend([(0.0,)] * count if row is None else row)
    lengths = np.cumsum([0, *map(len, whole)], dtype=np.int64)
    return lengths, flat_floats(value for entry in whole for value in entry)


def padded(
    rows: Sequence[Sequence[Sequence[float]] | None], counts: Sequence[int]
) -> Floats | None:
    """Return lists of lists as a rectangle, filled up with NaN; None where all are absent."""
    if all(row is None for row in rows):
        return None
    whole: list[Sequence[float]] = []
    for row, count in zip(rows, counts, strict=True):
        whole.extend([()] * count if row is None else row)
    rectangle = np.full((len(whole), max(map(len, whole), default=0)), np.nan)
    for place, entry in enumerate(whole):
        rectangle[place, : len(entry)] = entry
    return rectangle


def optional_column(column: NDArray[Any] | None, start: int, stop: int) -> list[Any] | None:
    """Return part of a column as Python objects; None where there is no such column."""
    return None if column is None else column[start:stop].tolist()


def optional_values(
    column: NDArray[Any] | None, start: int, stop: int
) -> list[float | None] | None:
    """Return part of a column as Python objects, None for NaN, and where there is no column."""
    if column is None:
        return None
    values: list[float] = column[start:stop].tolist()
    return [value if value == value else None for value in values]  # noqa: PLR0124 -- NaN test


def listed(column: NDArray[Any], start: int, stop: int) -> Sequence[Any]:
    """Return part of a column as a list."""
    part: list[Any] = column[start:stop].tolist()
    return part


def packed(column: NDArray[Any], start: int, stop: int) -> Sequence[Any]:
    """Return part of a column as an `array.array` of 8-byte numbers."""
    if np.issubdtype(column.dtype, np.integer):
        return array("q", column[start:stop].astype(np.int64).tobytes())
    return array("d", column[start:stop].astype(np.float64).tobytes())


def known(column: Sequence[float], low: int, high: int) -> Sequence[float] | None:
    """Return one job's part of a column; None where it holds NaN only, and is not empty."""
    part = column[low:high]
    if part and part[0] != part[0] and all(value != value for value in part):  # noqa: PLR0124 -- NaN test without a call
        return None
    return part
