"""Logs of inspect_ai: one ``.eval`` (or ``.json``) file an evaluated checkpoint.

An ``.eval`` file is a zip archive whose ``header.json`` holds all we need: the task, the model,
and each scorer's metrics with their standard error. Newer versions compress it with Zstandard,
which the standard library of Python 3.11 cannot read; Arrow can.

The step is ``evalstop.step`` (or ``step``) of the log's metadata, else read off the model's path.
"""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types

from evalstop.core.errors import ReadError
from evalstop.traces.checkpoint_scores import Reading, placed
from evalstop.traces.json_values import as_float, as_step, parsed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["is_inspect_log", "readings_of_log"]

_HEADER = "header.json"
_ZSTANDARD = 93
_LOCAL_HEADER = struct.Struct("<26xHH")
_ERRORS = ("stderr", "std")
# What zipfile raises on damage depends on the byte that is wrong.
_UNREADABLE = (
    *(ValueError, KeyError, struct.error, zlib.error, EOFError, OSError, RuntimeError),
    *(zipfile.BadZipFile, pa.ArrowException),
)
_STEP_KEYS = ("evalstop.step", "step")


def is_inspect_log(path: Path) -> bool:
    """Return whether a file is named as inspect_ai names its logs."""
    return path.suffix == ".eval"


def readings_of_log(path: Path, step: int | None = None) -> list[Reading]:
    """Return what one log says; nothing if the evaluation has not ended well.

    Args:
        path: the file.
        step: training step of the evaluated checkpoint, where the caller knows it.

    Raises:
        ReadError: no log of inspect_ai, or the checkpoint's step is not known.
    """
    header = _header(path)
    spec, results = header.get("eval"), header.get("results")
    if not isinstance(spec, dict):
        message = "there is no object eval, as inspect_ai writes it"
        raise ReadError(str(path), message)
    if header.get("status") != "success" or not isinstance(results, dict):
        return []
    metadata = _object(spec.get("metadata"))
    stated = next((s for k in _STEP_KEYS if (s := as_step(metadata.get(k))) is not None), None)
    found, run = placed(
        str(path),
        str(spec.get("model", "")),
        path.absolute().parent.name,
        step if stated is None else stated,
    )
    key = f"{spec.get('task')} version {spec.get('task_version')}, {_dataset(spec)}"
    return [
        reading
        for score in _list(results.get("scores"))
        if isinstance(score, dict)
        for reading in _readings_of_score(spec, results, score, _Place(run, found, key))
    ]


class _Place(NamedTuple):
    run: str
    step: int
    epoch_key: str


def _readings_of_score(
    spec: Mapping[str, Any], results: Mapping[str, Any], score: Mapping[str, Any], place: _Place
) -> list[Reading]:
    metrics = _object(score.get("metrics"))
    stderr = _value(metrics.get("stderr", {}))
    items = as_step(score.get("scored_samples")) or as_step(results.get("completed_samples"))
    return [
        Reading(
            run=place.run,
            metric=f"{spec.get('task')}/{score.get('name')}/{name}",
            step=place.step,
            score=_value(metric),
            stderr=stderr,
            n_items=max(0, items or 0),
            greater_is_better=None,
            epoch_key=place.epoch_key,
        )
        for name, metric in metrics.items()
        if name not in _ERRORS
    ]


def _value(metric: object) -> float:
    value = as_float(metric.get("value")) if isinstance(metric, dict) else None
    return math.nan if value is None else value


def _dataset(spec: Mapping[str, Any]) -> str:
    dataset = _object(spec.get("dataset"))
    return f"{dataset.get('name')} of {dataset.get('samples')}"


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _header(path: Path) -> Mapping[str, Any]:
    try:
        value = parsed(_header_bytes(path))
    except _UNREADABLE as error:
        message = f"not a readable log of inspect_ai, perhaps still being written: {error}"
        raise ReadError(str(path), message) from error
    if not isinstance(value, dict):
        message = "expected an object, as inspect_ai writes it"
        raise ReadError(str(path), message)
    return value


def _header_bytes(path: Path) -> bytes:
    if path.suffix == ".json":
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo(_HEADER)
        if entry.compress_type != _ZSTANDARD:
            return archive.read(entry)
    with path.open("rb") as file:
        file.seek(entry.header_offset)
        name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
        file.seek(name + extra, 1)
        packed = pa.BufferReader(file.read(entry.compress_size))
    whole: bytes = pa.CompressedInputStream(packed, "zstd").read()
    return whole
