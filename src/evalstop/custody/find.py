"""Which checkpoints a trainer has written so far, by the names trainers use."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from msgspec import Struct

from evalstop.custody.verify import WEIGHTS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["Found", "find", "named"]

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
    try:
        children = [(path.name, path.is_dir()) for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return named(str(folder), children)


def named(folder: str, children: Iterable[tuple[str, bool]]) -> list[Found]:
    """Return those of a folder's children that are named like checkpoints, by step.

    Args:
        folder: its path or URL.
        children: names, and whether each is a folder.
    """
    found = []
    for name, is_folder in children:
        if name.startswith(_UNFINISHED) or name.endswith(_UNFINISHED_ENDS):
            continue
        if not is_folder and PurePosixPath(name).suffix not in WEIGHTS:
            continue
        numbers = _STEP.findall(name.lower())
        if numbers:
            found.append(Found(step=int(numbers[-1]), name=name, path=f"{folder}/{name}"))
    return sorted(found, key=lambda one: (one.step, one.name))
