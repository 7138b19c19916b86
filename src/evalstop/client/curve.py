"""The curve so far, written beside a checkpoint's own files: what a resumed run starts from.

Scores that the trainer logs could be read back from its log; those that a script adds by itself
could not. So each checkpoint carries every point that was judged until then, whatever its source,
and a resume from an earlier checkpoint takes the curve back with it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NotRequired, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["FILE_NAME", "CurvePoint", "read_curve", "write_curve"]

FILE_NAME = "evalstop.json"

_VERSION = 1


class CurvePoint(TypedDict):
    """One judged evaluation: the arguments of `Monitor.update`."""

    step: int
    score: float | None
    stderr: float | None
    n_items: int | None
    proxy: float | None
    epoch_key: str | None
    attempt: NotRequired[int]
    signals: NotRequired[dict[str, float]]


def write_curve(checkpoint: Path, points: Iterable[CurvePoint]) -> None:
    """Write the points into the checkpoint's folder, all or nothing."""
    aside = checkpoint / f"{FILE_NAME}.part"
    aside.write_text(
        json.dumps({"version": _VERSION, "points": list(points)}, allow_nan=False), encoding="utf-8"
    )
    aside.replace(checkpoint / FILE_NAME)


def read_curve(checkpoint: Path) -> list[CurvePoint]:
    """Return the points a checkpoint carries; none if it was made without evalstop.

    Raises:
        ValueError: if the file is of a newer version or damaged.
    """
    file = checkpoint / FILE_NAME
    if not file.is_file():
        return []
    data = json.loads(file.read_text(encoding="utf-8"))
    if data.get("version") != _VERSION:
        msg = f"{file} has version {data.get('version')}, expected {_VERSION}: update evalstop"
        raise ValueError(msg)
    points: list[CurvePoint] = data["points"]
    return points
