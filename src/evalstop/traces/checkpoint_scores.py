"""Scores of single checkpoints, one file each, and the curves they make together.

Harnesses that evaluate one checkpoint at a time know no training step: it is read off the
checkpoint's path (``checkpoint-500``, ``global_step_500``), as every trainer writes it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from evalstop.core.errors import ReadError
from evalstop.traces.json_values import as_step
from evalstop.traces.series import Curve, Loaded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

__all__ = ["Reading", "curves_of_files", "placed", "step_in_path"]

_DIGITS = 20
_STEP = re.compile(r"(?:checkpoint|global_?step|step|iter|iteration|ckpt)[-_]?(\d+)", re.IGNORECASE)


class Reading(NamedTuple):
    """One metric of one task for one checkpoint; NaN and 0 where error and items are unknown."""

    run: str
    metric: str
    step: int
    score: float
    stderr: float
    n_items: int
    greater_is_better: bool | None
    epoch_key: str


def step_in_path(path: str) -> tuple[int, str] | None:
    """Return the step in a checkpoint's path, and the path without it; None if it has none."""
    matches = list(_STEP.finditer(path))
    if not matches:
        return None
    last = matches[-1]
    run = (path[: last.start()] + path[last.end() :]).rstrip("/_-")
    step = as_step(int(last.group(1)[:_DIGITS]))
    return None if step is None else (step, run or "run")


def placed(source: str, model: str, folder: str, step: int | None) -> tuple[int, str]:
    """Return the step and the run of an evaluated checkpoint.

    Args:
        source: the file, for the message.
        model: path or name of what was evaluated.
        folder: name of the folder the file lies in.
        step: the step, where it is known otherwise.

    Raises:
        ReadError: it is not known.
    """
    found = step_in_path(model) or step_in_path(folder)
    if step is not None:
        return step, (found[1] if found else model)
    if found is None:
        message = (
            f"the training step is not known: expected checkpoint-N (or step_N) in the model's "
            f"path, but it is {model!r}"
        )
        raise ReadError(source, message)
    return found


def curves_of_files(
    paths: Iterable[Path], root: Path, read: Callable[[Path], Sequence[Reading]]
) -> Loaded:
    """Read each file, and order what they say into one curve a run and metric.

    Args:
        paths: one file a checkpoint.
        root: the folder they were found under, named as their source.
        read: reads one file; a `ReadError` spares the others.
    """
    groups: dict[tuple[str, str], list[Reading]] = {}
    errors: list[ReadError] = []
    for path in paths:
        try:
            for reading in read(path):
                groups.setdefault((reading.run, reading.metric), []).append(reading)
        except ReadError as error:
            errors.append(error)
    curves = [
        Curve(
            trace_id=run,
            source=str(root),
            metric=metric,
            steps=[reading.step for reading in readings],
            scores=[reading.score for reading in readings],
            stderrs=[reading.stderr for reading in readings],
            n_items=[reading.n_items for reading in readings],
            greater_is_better=readings[0].greater_is_better,
            epoch_keys=[reading.epoch_key for reading in readings],
        )
        for (run, metric), readings in groups.items()
    ]
    if not curves and not errors:
        message = "no score in it: nothing was evaluated to its end, or no metric is a number"
        errors.append(ReadError(str(root), message))
    return Loaded(curves, errors)
