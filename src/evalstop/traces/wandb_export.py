"""CSV files that Weights & Biases exports from a chart: one column a run.

``Step, RUN - METRIC, RUN - METRIC__MIN, RUN - METRIC__MAX, ...``; the extremes of smoothed charts
are passed over, and a cell is empty where a run has no value at that step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalstop.core.errors import ReadError
from evalstop.traces.csv_columns import line_of, read_columns
from evalstop.traces.longform import whole_steps
from evalstop.traces.rewinds import attempts_of
from evalstop.traces.series import Curve, Loaded, SkippedPoint
from evalstop.traces.wandb_offline import OWN_STEPS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["is_wandb_export", "read_wandb_export"]

_STEPS = ("Step", *OWN_STEPS, "_step")
_PART = " - "
_EXTREMES = ("__MIN", "__MAX")


def is_wandb_export(header: Sequence[str]) -> bool:
    """Return whether a header is that of an exported chart."""
    return bool(header) and header[0] in _STEPS and any(_PART in name for name in header[1:])


def read_wandb_export(path: Path, header: Sequence[str]) -> Loaded:
    """Read an exported chart; runs that share a name are told apart by their order.

    Raises:
        ReadError: a cell is no number, or a step is not whole.
    """
    header = _told_apart(header)
    step_column = header[0]
    wanted = [name for name in header[1:] if _PART in name and not name.endswith(_EXTREMES)]
    columns = read_columns(path, header, [step_column, *wanted], [step_column, *wanted])
    column_of_steps = columns.pop(step_column)
    steps = whole_steps(column_of_steps, step_column, lambda row: f"{path}:{line_of(path, row)}")
    curves = []
    for name, column in columns.items():
        run, _, metric = name.rpartition(_PART)
        written = [
            (step, score)
            for step, score in zip(steps.tolist(), column.to_pylist(), strict=True)
            if score is not None
        ]
        rows = [(step, score) for step, score in written if step >= 0]
        attempts = attempts_of([step for step, _ in rows])
        if rows:
            curves.append(
                Curve(
                    trace_id=run,
                    source=str(path),
                    metric=metric,
                    steps=[step for step, _ in rows],
                    scores=[score for _, score in rows],
                    attempts=attempts if any(attempts) else None,
                    skipped=tuple(
                        SkippedPoint(step=step, reason=f"step {step} is negative")
                        for step, _ in written
                        if step < 0
                    ),
                )
            )
    if not curves:
        message = "the export holds no values"
        raise ReadError(str(path), message)
    return Loaded(curves, [])


def _told_apart(header: Sequence[str]) -> list[str]:
    """Return the header with runs numbered that share a name, as a sweep's often do."""
    seen: dict[str, int] = {}
    names = []
    for name in header:
        if header.count(name) > 1 and _PART in name:
            seen[name] = seen.get(name, 0) + 1
            run, _, metric = name.rpartition(_PART)
            names.append(f"{run} ({seen[name]}){_PART}{metric}")
        else:
            names.append(name)
    return names
