"""Which checkpoints a trainer has written so far, by the names trainers use."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from evalstop.custody.verify import WEIGHTS

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Found", "find"]

_STEP = re.compile(r"(?:^|[-_=a-z])(\d{1,15})(?=$|[-_.])")
_UNFINISHED = (".", "tmp", "_tmp")
_UNFINISHED_ENDS = (".tmp", ".part", ".partial", "_tmp", "-tmp", ".incomplete")


class Found(Struct, frozen=True, kw_only=True):
    """A folder or file that is named like a checkpoint: its step, name and path."""

    step: int
    name: str
    path: str


def find(folder: Path) -> list[Found]:
    """Return what looks like checkpoints in a trainer's output folder, by step.

    ``checkpoint-500``, ``step_500``, ``global_step500``, ``epoch=3-step=500.ckpt``,
    ``500.safetensors``: the last number in the name is the step. Names that say they are
    unfinished are left out; whether the others are complete is for `inspect` to tell.
    """
    found = []
    try:
        children = list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    for path in children:
        name = path.name
        if name.startswith(_UNFINISHED) or name.endswith(_UNFINISHED_ENDS):
            continue
        if not path.is_dir() and path.suffix not in WEIGHTS:
            continue
        numbers = _STEP.findall(name.lower())
        if numbers:
            found.append(Found(step=int(numbers[-1]), name=name, path=str(path)))
    return sorted(found, key=lambda one: (one.step, one.name))
