"""Runs that Weights & Biases logged offline (extra ``wandb``).

``wandb/offline-run-DATE-ID/run-ID.wandb`` is a log of blocks as LevelDB's: 32 KiB each, records cut
at their ends, a checksum before each part. A record is a protocol buffer that the package itself
can parse; of them rows of history are read, and the run's name. The package flushes the file
every few seconds: that of a run that goes on lags behind, and may end in half a record.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from importlib import import_module
from typing import TYPE_CHECKING, Any

from evalstop.core.errors import MissingExtraError, ReadError
from evalstop.traces.scalars import curves_of_scalars
from evalstop.traces.series import Loaded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from evalstop.traces.scalars import Scalars

__all__ = ["MAGIC", "OWN_STEPS", "own_step", "read_wandb_offline"]

MAGIC = b":W&B"
"""How such a file begins."""

OWN_STEPS = ("train/global_step", "eval/global_step", "global_step", "trainer/global_step")
"""Names under which trainers log their own step; W&B's ``_step`` counts calls of ``log``."""

_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
_STEP = "_step"
_HEADER = 7  # magic, and a version
_BLOCK = 32 * 1024
_PART = struct.Struct("<IHB")  # checksum, length, kind
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def own_step(row: Mapping[str, Any]) -> int:
    """Return a row's step: the trainer's own, where it logs one, else W&B's."""
    return int(next((row[name] for name in OWN_STEPS if row.get(name) is not None), row[_STEP]))


def read_wandb_offline(paths: Iterable[Path], metric: str | None = None) -> Loaded:  # noqa: ARG001 -- as every reader
    """Read the files of one run: a resumed run has several, in order of their folders' names.

    Raises:
        ReadError: a file is damaged, or none holds a number.
        MissingExtraError: the package is not installed.
    """
    files = sorted(paths, key=lambda path: (path.parent.name, path.name))
    scalars: Scalars = {}
    errors: list[ReadError] = []
    name = ""
    for path in files:
        for record in _records(path, errors):
            name = record.run.display_name or name
            if record.WhichOneof("record_type") == "history":
                try:
                    _add(scalars, _row(record.history))
                except (ValueError, TypeError, OverflowError) as error:
                    message = f"a row of its history makes no sense: {error}"
                    raise ReadError(str(path), message) from error
    if not scalars:
        message = "the offline run holds no numbers (cut short, or nothing logged yet?)"
        raise ReadError(str(files[0]), message)
    trace_id = name or files[0].stem.removeprefix("run-")
    return Loaded(curves_of_scalars(scalars, source=str(files[-1]), trace_id=trace_id), errors)


def _add(scalars: Scalars, row: Mapping[str, Any]) -> None:
    for key, value in row.items():
        if not key.startswith("_") and key not in OWN_STEPS and isinstance(value, float):
            scalars.setdefault(key, []).append((own_step(row), value))


def _row(history: Any) -> dict[str, Any]:  # noqa: ANN401 -- the package's own
    row: dict[str, Any] = {_STEP: history.step.num}
    for item in history.item:
        value = _value(item)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        row[item.key or "/".join(item.nested_key)] = float(value) if number else value
    return row


def _value(item: Any) -> Any:  # noqa: ANN401 -- as above, and any JSON
    if item.value_json:
        value = json.loads(item.value_json)
        return math.nan if value in _NOT_FINITE else value
    kind = item.WhichOneof("value")  # what later releases may write
    return getattr(item, kind) if kind in {"integer", "number"} else None


def _records(path: Path, errors: list[ReadError]) -> Iterator[Any]:
    try:
        parse = import_module("wandb.proto.wandb_internal_pb2").Record.FromString
    except ImportError as error:
        package = "wandb"
        raise MissingExtraError(package, package) from error
    data = path.read_bytes()
    if not data.startswith(MAGIC):
        message = "not a file that Weights & Biases logged offline"
        raise ReadError(str(path), message)
    for body in _bodies(path, data, errors):
        try:
            record = parse(body)
        except Exception as error:  # the package raises what its parser raises
            message = f"a record that this version of the package wandb cannot read: {error}"
            raise ReadError(str(path), message) from error
        yield record


def _bodies(path: Path, data: bytes, errors: list[ReadError]) -> Iterator[bytes]:
    place, parts = _HEADER, b""
    while place < len(data):
        left = _BLOCK - place % _BLOCK
        if left < _PART.size:  # too short for a part: padding
            place += left
            continue
        head = data[place : place + _PART.size]
        checksum, length, kind = _PART.unpack(head) if len(head) == _PART.size else (0, _BLOCK, 0)
        body = data[place + _PART.size : place + _PART.size + length]
        if len(body) < length:
            errors.append(ReadError(str(path), "the last record is cut short and left out"))
            return
        if zlib.crc32(bytes([kind]) + body) != checksum:
            message = f"damaged: the checksum at byte {place} is wrong"
            raise ReadError(str(path), message)
        place += _PART.size + length
        parts = body if kind in {_WHOLE, _FIRST} else parts + body
        if kind in {_WHOLE, _LAST}:
            yield parts
