"""Result folders of lm-evaluation-harness: one ``results_*.json`` an evaluated checkpoint.

A file holds ``results[task]["acc,none"]`` with ``"acc_stderr,none"`` beside it,
``higher_is_better[task]["acc"]``, ``n-samples[task]["effective"]`` and the task's version, but no
training step: that is read off the checkpoint's path (``checkpoint-500``, ``global_step_500``).
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from evalstop.core.errors import ReadError
from evalstop.traces.checkpoint_scores import Reading, curves_of_files, placed
from evalstop.traces.json_values import as_float, as_step, parsed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from evalstop.traces.series import Loaded

__all__ = ["Reading", "is_results", "read_results", "readings_of_file"]


def is_results(path: Path) -> bool:
    """Return whether a file is named as the harness names its results."""
    return path.name.startswith("results") and path.suffix == ".json"


def read_results(paths: Iterable[Path], root: Path) -> Loaded:
    """Read the results of any number of checkpoints, and order them into curves.

    Args:
        paths: the result files.
        root: the folder they were found under, named as their source.
    """
    return curves_of_files(paths, root, readings_of_file)


def readings_of_file(path: Path, step: int | None = None) -> list[Reading]:
    """Return what one ``results_*.json`` says.

    Args:
        path: the file.
        step: training step of the evaluated checkpoint, where the caller knows it; read off the
            checkpoint's path otherwise.

    Raises:
        ReadError: not JSON, not results of the harness, or the checkpoint's step is not known.
    """
    try:
        data = parsed(path.read_bytes())
    except ValueError as error:
        raise ReadError(str(path), f"not valid JSON, perhaps cut short: {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get("results"), dict):
        message = "there is no object results, as lm-evaluation-harness writes it"
        raise ReadError(str(path), message)
    model = _model(data) or path.absolute().parent.name
    found, run = placed(str(path), model, path.absolute().parent.name, step)
    return [
        reading
        for task, metrics in data["results"].items()
        if isinstance(metrics, dict)
        for reading in _readings_of_task(data, task, metrics, run, found)
    ]


def _readings_of_task(
    data: Mapping[str, Any],
    task: str,
    metrics: Mapping[str, Any],
    run: str,
    step: int,
) -> list[Reading]:
    version = _get(data, "versions", task)
    shots = _get(data, "n-shot", task)
    items = as_step(_get(data, "n-samples", task, "effective"))
    readings = []
    # Since 0.4 a metric's key names its filter ("acc,none"); what has none describes the task.
    named = any("," in key for key in metrics)
    for key, value in metrics.items():
        name, _, filter_ = key.partition(",")
        score = as_float(value)
        if name.endswith("_stderr") or score is None or (named and "," not in key):
            continue
        stderr = as_float(metrics.get(f"{name}_stderr,{filter_}"))  # "N/A" where there is none
        better = _get(data, "higher_is_better", task, name)
        label = f"{task}/{name}" if filter_ in {"", "none"} else f"{task}/{name},{filter_}"
        readings.append(
            Reading(
                run=run,
                metric=label,
                step=step,
                score=score,
                stderr=math.nan if stderr is None else stderr,
                n_items=max(0, items or 0),
                greater_is_better=better if isinstance(better, bool) else None,
                epoch_key=f"{task} version {version}, {shots} shots",
            )
        )
    return readings


def _model(data: Mapping[str, Any]) -> str:
    name = data.get("model_name")
    if isinstance(name, str) and name:
        return name
    arguments = _get(data, "config", "model_args")
    if isinstance(arguments, dict):
        return str(arguments.get("pretrained", ""))
    match = re.search(r"pretrained=([^,]+)", arguments) if isinstance(arguments, str) else None
    return match.group(1) if match else ""


def _get(value: object, *keys: str) -> Any:  # noqa: ANN401 -- JSON
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
