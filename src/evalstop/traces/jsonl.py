"""JSONL files: evaluations in long form, or verl's file log.

verl's ``trainer.logger=[file]`` writes ``{"step": 5, "data": {"val-core/gsm8k/reward/mean@1":
0.31, "critic/rewards/mean": 0.4, ...}}``, one line a step, some lines without evaluations
(verl.utils.tracking.FileLogger).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from evalstop.core.errors import ReadError
from evalstop.traces import longform
from evalstop.traces.json_values import as_float, as_step, parsed
from evalstop.traces.series import Curve, Loaded, SkippedPoint
from evalstop.traces.tables import table_from_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

__all__ = ["read_jsonl", "verl_curves"]

_EVALUATIONS = ("val-core/", "val-aux/", "val/", "eval/")
_PROXY = "critic/rewards/mean"
_DECODE = msgspec.json.Decoder(dict[str, Any]).decode


def read_jsonl(path: Path, metric: str | None = None) -> Loaded:
    """Read a JSONL file of either form.

    A last line without line end that is cut short is named among the errors, and the lines
    before it are used: a run that is still being written looks like that.

    Raises:
        ReadError: the file is empty, a line is not a JSON object, or a column is missing.
    """
    rows, lines, errors = _objects(path)
    if not rows:
        raise errors[0] if errors else ReadError(str(path), "the file is empty")
    if "data" in rows[0] and "trace_id" not in rows[0]:
        return Loaded(verl_curves(str(path), path.stem, rows, lines), errors)
    table, name = table_from_rows(str(path), rows, lines, stem=path.stem, metric=metric)
    loaded = longform.curves(table, metric=name)
    return Loaded(loaded.curves, [*errors, *loaded.errors])


def verl_curves(
    source: str, trace_id: str, rows: Sequence[Mapping[str, Any]], lines: Sequence[int]
) -> list[Curve]:
    """Return one curve a validation metric of verl's file log, with the reward as proxy.

    Raises:
        ReadError: a line has no whole step, or no line holds a validation metric.
    """
    found: dict[str, list[tuple[int, float, float]]] = {}
    skipped: dict[str, list[SkippedPoint]] = {}
    proxy = math.nan
    for row, line in zip(rows, lines, strict=True):
        step, data = as_step(row.get("step")), row.get("data")
        if step is None or not isinstance(data, dict):
            message = 'expected {"step": whole number, "data": {...}} as in verl\'s file log'
            msg = f"{source}:{line}"
            raise ReadError(msg, message)
        reward = as_float(data.get(_PROXY))
        proxy = proxy if reward is None else reward
        for name, value in data.items():
            if not name.startswith(_EVALUATIONS):
                continue
            score = as_float(value)
            if score is not None and step >= 0:
                found.setdefault(name, []).append((step, score, proxy))
                continue
            reason = f"step {step} is negative" if step < 0 else f"not a number: {value!r}"
            skipped.setdefault(name, []).append(SkippedPoint(step=step, reason=reason))
    if not found:
        raise ReadError(source, _nothing_in(rows, skipped))
    return [
        Curve(
            trace_id=trace_id,
            source=source,
            metric=name,
            steps=[step for step, _, _ in points],
            scores=[value if math.isfinite(value) else math.nan for _, value, _ in points],
            proxies=[reward for _, _, reward in points],
            skipped=tuple(skipped.get(name, ())),
        )
        for name, points in found.items()
    ]


def _nothing_in(rows: Sequence[Mapping[str, Any]], skipped: Iterable[str]) -> str:
    """Return why a log of verl gave no curve."""
    if evaluated := sorted(skipped):
        return f"no entry of {', '.join(evaluated)} is a number at a step of 0 or more"
    names = ", ".join(sorted({name for row in rows for name in row["data"]})[:20])
    return f"no validation metric (val-core/..., val-aux/...) in verl's log; it has: {names}"


def _objects(path: Path) -> tuple[list[dict[str, Any]], list[int], list[ReadError]]:
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    errors: list[ReadError] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                rows.append(_object(line))
            except (ValueError, msgspec.DecodeError) as error:
                place = f"{path}:{number}"
                if line.endswith(b"\n") or not rows:
                    raise ReadError(place, f"not a JSON object: {error}") from error
                message = f"the last line is cut short and left out: {error}"
                errors.append(ReadError(place, message))
            else:
                lines.append(number)
    return rows, lines, errors


def _object(line: bytes) -> dict[str, Any]:
    """Return a line's object; the standard library knows NaN, which Python loggers write."""
    try:
        return _DECODE(line)
    except (msgspec.DecodeError, RecursionError):
        value = parsed(line)
        if not isinstance(value, dict):
            msg = f"expected an object, got {type(value).__name__}"
            raise ValueError(msg) from None  # noqa: TRY004 -- one kind for all that line can be
        return value
