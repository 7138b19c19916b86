"""What one evaluation printed or wrote, as a point.

Two forms: the result files of lm-evaluation-harness under the output folder, and one JSON object
as the last line of the standard output: ``{"score": 0.61, "stderr": 0.012, "n_items": 500}``
(or the metric's own name in place of ``score``). Whatever else is printed before it is ignored.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from evalstop.core.errors import InputError
from evalstop.core.points import NOT_FINITE, EvalPoint
from evalstop.feedback.scores import Watch, is_number, readings_of_object
from evalstop.traces.lm_eval import readings_of_file
from evalstop.traces.names import find, unknown_metric

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["point_of_run"]

_MOST_OUTPUT = 1 << 20
_MOST_ITEMS = 1_000_000


def point_of_run(
    out: Path, *, metric: str, step: int, checkpoint: str, suite: str, repeat: int
) -> EvalPoint:
    """Return the raw point (direction not turned) of a finished evaluation.

    Args:
        out: its folder, with ``stdout`` in it.
        metric: the watched metric.
        step: training step of what was evaluated.
        checkpoint: its name.
        suite: epoch key, where the result names none.
        repeat: number of an extra evaluation, 0 for the first.

    Raises:
        InputError: there is no result, or not one of this metric.
    """
    files = sorted(out.rglob("results*.json"))
    found = _of_harness(files[-1], metric, step) if files else _of_stdout(out, metric, step)
    return EvalPoint(
        step=step,
        score=found.score,
        stderr=found.stderr,
        n_items=found.n_items,
        epoch_key=found.epoch_key or suite,
        eval_id=found.eval_id or (f"repeat-{repeat}" if repeat else None),
        checkpoint=checkpoint,
        items=found.items,
    )


def _of_harness(path: Path, metric: str, step: int) -> EvalPoint:
    readings = {reading.metric: reading for reading in readings_of_file(path, step=step)}
    spelling = find(metric, readings) or _of_one_task(metric, readings)
    if spelling is None:
        raise InputError(unknown_metric(metric, readings))
    reading = readings[spelling]
    return EvalPoint(
        step=step,
        score=reading.score if math.isfinite(reading.score) else NOT_FINITE,
        stderr=reading.stderr if reading.stderr > 0 else None,
        n_items=reading.n_items or None,
        epoch_key=reading.epoch_key,
    )


def _of_one_task(metric: str, names: Iterable[str]) -> str | None:
    """Return the one name TASK/METRIC that a bare ``acc`` can mean; None where there are several.

    The harness writes every metric with its task; who runs one task names the metric alone.
    """
    bare = [(name.rpartition("/")[2], name) for name in names]
    wanted = find(metric, [metric_alone for metric_alone, _ in bare])
    found = [name for metric_alone, name in bare if metric_alone == wanted]
    return found[0] if len(found) == 1 else None


def _of_stdout(out: Path, metric: str, step: int) -> EvalPoint:
    with (out / "stdout").open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _MOST_OUTPUT))
        lines = file.read().decode(errors="replace").split("\n")
    row = next((row for line in reversed(lines) if (row := _object(line)) is not None), None)
    if row is None:
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        message = (
            f'expected a last line such as {{"score": 0.61, "stderr": 0.01}}, got {last[:80]!r}'
        )
        raise InputError(message)
    watch = Watch(job="", metric=metric, direction="max")  # the caller turns it
    try:
        readings = readings_of_object({**row, "step": step}, watch)
    except ValueError as error:
        raise InputError(str(error)) from error
    if not readings:
        raise InputError(unknown_metric(metric, [key for key in row if key != "step"]))
    point = readings[0].point
    items = row.get("items")
    if not isinstance(items, list) or len(items) > _MOST_ITEMS:
        return point
    numbers = [item for item in items if is_number(item)]
    if len(numbers) != len(items):
        return point
    return EvalPoint(
        step=step,
        score=point.score,
        stderr=point.stderr,
        n_items=point.n_items or len(items),
        epoch_key=point.epoch_key,
        eval_id=point.eval_id,
        items=tuple(float(item) for item in numbers),
    )


def _object(line: str) -> dict[str, Any] | None:
    if not line.lstrip().startswith("{"):
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
