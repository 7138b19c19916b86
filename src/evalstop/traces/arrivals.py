"""Arrivals at real clusters: when jobs came, how many GPUs they took, how long they ran.

Three forms of CSV, told by their columns:

* plain: ``job_id, num_gpu, submit_time, duration`` in seconds; optional ``tenant, job_type,
  estimated_duration``. An estimate that is absent equals the duration.
* Philly, flattened (msr-fiddle/philly-traces, CC-BY-4.0, as petuum/adaptdl flattened it):
  ``timestamp, duration, num_gpus, ..., cluster``. The virtual cluster is the tenant.
* Acme (InternLM/AcmeTrace, CC-BY-4.0): ``job_id, user, gpu_num, submit_time, duration, ...``.
  The user is the tenant.

Philly and Acme state no type of fine-tuning job, so types come from the scenario, as curves do.
Times of day become seconds since the first submission; jobs without GPUs, or that ran for no
time, are left out and counted.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # ships no types
from numpy.typing import NDArray

from evalstop.core.errors import ReadError
from evalstop.core.job import canonical_job_type
from evalstop.traces.csv_columns import csv_header, first_row, line_of, read_columns
from evalstop.workloads.generate import Arrived

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["FORMS", "ArrivalTrace", "Form", "read_arrivals"]

Floats: TypeAlias = NDArray[np.float64]

_MOST_GPUS = 2**31
"""More than any cluster has: beyond that it is a mistake in the file."""


class Form(NamedTuple):
    """Where a form of trace keeps what we read; empty for what it does not hold."""

    job_id: str
    gpus: str
    submit: str
    duration: str
    tenant: str = ""
    job_type: str = ""
    estimate: str = ""
    whole_seconds: bool = False


FORMS: Mapping[str, Form] = {
    "plain": Form(
        "job_id", "num_gpu", "submit_time", "duration", "tenant", "job_type", "estimated_duration"
    ),
    # Durations are rounded to whole seconds, at least 1, as the published answers have them.
    "philly": Form("", "num_gpus", "timestamp", "duration", "cluster", whole_seconds=True),
    "acme": Form("job_id", "gpu_num", "submit_time", "duration", "user"),
}
"""Every form of trace by name, with its columns."""


class ArrivalTrace(NamedTuple):
    """Jobs of a trace, in order of submission, and what was left out of it.

    Attributes:
        form: which of `FORMS`.
        arrived: the jobs.
        left_out: how many jobs were left out, by reason.
    """

    form: str
    arrived: Arrived
    left_out: Mapping[str, int]


def read_arrivals(path: Path, *, jobs: int | None = None) -> ArrivalTrace:
    """Read a trace of arrivals.

    Args:
        path: a CSV file of one of the `FORMS`.
        jobs: take the first so many jobs by submission; all by default.

    Raises:
        ReadError: it is no such file, a cell makes no sense (with its line), or no job is left.
    """
    if str(path) in {"", "."} or not os.path.lexists(path):
        message = "there is no such file"
        raise ReadError(str(path), message)
    known = {column for form in FORMS.values() for column in form if isinstance(column, str)}
    header = csv_header(path, known)
    name, form = _form(path, header)
    wanted = [column for column in form[:7] if column and column in header]
    numbers = {form.gpus, form.duration, form.estimate}
    if not _holds_times_of_day(path, header, form):
        numbers.add(form.submit)
    columns = read_columns(path, header, wanted, numbers)
    return _trace(path, name, form, columns, jobs)


def _form(path: Path, header: Sequence[str]) -> tuple[str, Form]:
    for name, form in FORMS.items():
        if {form.gpus, form.submit, form.duration} <= set(header):
            if form.job_id and form.job_id not in header:
                message = f"the column {form.job_id} is missing"
                raise ReadError(str(path), message)
            return name, form
    message = (
        "expected the columns job_id, num_gpu, submit_time, duration (or the Philly or Acme form), "
        f"but the columns are: {', '.join(header)}"
    )
    raise ReadError(str(path), message)


def _holds_times_of_day(path: Path, header: Sequence[str], form: Form) -> bool:
    """Return whether submissions are written as dates, seen in the first row."""
    first = first_row(path)
    place = header.index(form.submit)
    text = first[place].strip() if place < len(first) else ""
    return "-" in text[1:] and ":" in text


def _trace(
    path: Path, name: str, form: Form, columns: Mapping[str, pa.Array], jobs: int | None
) -> ArrivalTrace:
    if len(columns[form.submit]) == 0:
        message = "there is a header, but no rows"
        raise ReadError(str(path), message)
    submit = _submissions(path, form, columns[form.submit])
    gpus = _numbers(path, form.gpus, columns)
    duration = _numbers(path, form.duration, columns)
    odd = (gpus < 0) | (gpus > _MOST_GPUS) | (np.floor(gpus) != gpus)
    _refuse(path, form.gpus, gpus, odd, f"a whole number from 0 to {_MOST_GPUS}")
    _refuse(path, form.duration, duration, duration < 0, "seconds >= 0")
    if form.whole_seconds:
        duration = np.maximum(1.0, np.rint(duration))
    idle, instant = gpus == 0, (gpus > 0) & (duration == 0)
    rows = np.flatnonzero(~(idle | instant))
    rows = rows[np.argsort(submit[rows], kind="stable")][:jobs]
    if rows.size == 0:
        message = "there is no job with GPUs and a duration above 0"
        raise ReadError(str(path), message)
    times = submit[rows] - (submit[rows[0]] if columns[form.submit].type != pa.float64() else 0.0)
    tenant, tenants = _index(columns.get(form.tenant), rows)
    job_type, job_types = _types(columns.get(form.job_type), rows)
    arrived = Arrived(
        submit_s=times,
        duration_s=duration[rows],
        gpus=gpus[rows].astype(np.int64),
        tenant=tenant,
        tenants=tenants,
        job_type=job_type,
        job_types=job_types,
        estimated_s=_estimates(path, form, columns, duration)[rows],
        ids=_ids(path, form, columns, rows),
    )
    left_out = {"no GPU": int(idle.sum()), "no duration": int(instant.sum())}
    return ArrivalTrace(name, arrived, {why: n for why, n in left_out.items() if n})


def _submissions(path: Path, form: Form, column: pa.Array) -> Floats:
    """Return seconds; of times of day, seconds since the epoch."""
    if column.type == pa.float64():
        return _numbers(path, form.submit, {form.submit: column})
    try:
        moments = pc.cast(pc.utf8_slice_codeunits(column, 0, 19), pa.timestamp("s"))
    except pa.ArrowInvalid as error:
        row, came = next(
            (row, text) for row, text in enumerate(column.to_pylist()) if _no_time(text)
        )
        message = f"{form.submit} must be like 2023-03-01 00:00:05, but it is {came!r}"
        place = f"{path}:{line_of(path, row)}"
        raise ReadError(place, message) from error
    seconds = pc.cast(pc.cast(moments, pa.int64()), pa.float64())
    return _numbers(path, form.submit, {form.submit: seconds})


def _no_time(text: str | None) -> bool:
    try:
        pc.cast(pc.utf8_slice_codeunits(pa.scalar(text, pa.string()), 0, 19), pa.timestamp("s"))
    except pa.ArrowInvalid:
        return True
    return False


def _numbers(path: Path, name: str, columns: Mapping[str, pa.Array]) -> Floats:
    """Return a column that has a finite number in every row."""
    values: Floats = columns[name].fill_null(np.nan).to_numpy(zero_copy_only=False)
    _refuse(path, name, values, ~np.isfinite(values), "a finite number")
    return values


def _refuse(path: Path, name: str, values: Floats, bad: NDArray[np.bool_], expected: str) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        came = "nothing" if np.isnan(values[row]) else f"{values[row]:g}"
        message = f"{name} must be {expected}, but it is {came}"
        place = f"{path}:{line_of(path, row)}"
        raise ReadError(place, message)


def _estimates(path: Path, form: Form, columns: Mapping[str, pa.Array], duration: Floats) -> Floats:
    column = columns.get(form.estimate)
    if column is None:
        return duration
    given: Floats = column.fill_null(np.nan).to_numpy(zero_copy_only=False)
    _refuse(path, form.estimate, given, given < 0, "seconds >= 0")
    return np.where(np.isfinite(given), given, duration)


def _ids(
    path: Path, form: Form, columns: Mapping[str, pa.Array], rows: NDArray[np.intp]
) -> tuple[str, ...] | None:
    column = columns.get(form.job_id)
    if column is None:
        return None
    names: list[str | None] = column.take(pa.array(rows)).to_pylist()
    seen: set[str | None] = set()
    for row, name in zip(rows.tolist(), names, strict=True):
        if name is None or name in seen:
            came = "empty" if name is None else f"{name!r} a second time"
            message = f"every job needs a {form.job_id} of its own, but it is {came}"
            place = f"{path}:{line_of(path, row)}"
            raise ReadError(place, message)
        seen.add(name)
    return tuple(name for name in names if name is not None)


def _index(
    column: pa.Array | None, rows: NDArray[np.intp]
) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Return each row's place among the words of a column, and the words."""
    if column is None:
        return None, ()
    coded = column.take(pa.array(rows)).fill_null("").dictionary_encode()
    places: NDArray[np.int64] = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return places, tuple(coded.dictionary.to_pylist())


def _types(
    column: pa.Array | None, rows: NDArray[np.intp]
) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Return job types under their canonical names: grpo and ppo are both rlhf."""
    places, words = _index(column, rows)
    if places is None:
        return None, ()
    names = [canonical_job_type(word or "other") for word in words]
    kinds = tuple(dict.fromkeys(names))
    return np.array([kinds.index(name) for name in names], dtype=np.int64)[places], kinds
