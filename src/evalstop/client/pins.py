"""The best checkpoint, kept out of the trainer's reach by hard links.

A trainer's own rotation knows only its own best, and may delete the checkpoint that evalstop will
want to go back to (R05). So every checkpoint is pinned when it is saved, and unpinned only when
it can no longer be the best: pins are hard links inside the output folder and take no extra
bytes while the original lives. Where links are impossible the files are copied.
"""

from __future__ import annotations

import os
import re
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["INCOMPLETE", "Pins", "is_complete"]

INCOMPLETE = "checkpoint-is-incomplete.txt"
"""What transformers' just-in-time saving leaves in a checkpoint that is not whole."""

_STATE = "trainer_state.json"
_UNSCORED_KEPT = 3
_WEIGHTS = (".safetensors", ".bin", ".pt", ".distcp")


def is_complete(checkpoint: Path) -> bool:
    """Say whether a checkpoint folder is whole: state file and weights there, no torn mark."""
    return (
        checkpoint.is_dir()
        and not (checkpoint / INCOMPLETE).exists()
        and (checkpoint / _STATE).is_file()
        and any(path.suffix in _WEIGHTS for path in checkpoint.rglob("*"))
    )


class Pins:
    """Pinned checkpoints of one run: the best saved one, and the newest without a score.

    Args:
        folder: where pins lie, on the same file system as the checkpoints.
        prefix: how the trainer names checkpoints, before the step.
        whole: tells a whole checkpoint folder from a torn one.
    """

    def __init__(
        self,
        folder: Path,
        *,
        prefix: str = "checkpoint-",
        whole: Callable[[Path], bool] = is_complete,
    ) -> None:
        self.folder = folder
        self._prefix = prefix
        self._whole = whole
        self._scores: dict[tuple[int, int], float] = {}
        self._saved = self._found()

    @property
    def best_step(self) -> int | None:
        """Step of the best checkpoint that was both scored and saved (R04); ties: the earliest."""
        key = self._best_key()
        return None if key is None else key[1]

    @property
    def best(self) -> Path | None:
        """The pinned folder of `best_step`."""
        key = self._best_key()
        return None if key is None else self._place(key)

    def scored(self, step: int, score: float, *, attempt: int = 0) -> None:
        """Note the score of a step, higher is better.

        Nothing is dropped here: after a restart scores come one by one, and a pin whose score is
        still to come must not lose to one that was named first.
        """
        self._scores[attempt, step] = score

    def saved(self, step: int, checkpoint: Path, *, attempt: int = 0) -> bool:
        """Pin a checkpoint just saved; return whether it was whole and is pinned."""
        if not self._whole(checkpoint):
            return False
        key = (attempt, step)
        target = self._place(key)
        aside = target.with_name(f"{target.name}.part")
        shutil.rmtree(aside, ignore_errors=True)
        for path in sorted(checkpoint.rglob("*")):
            copy = aside / path.relative_to(checkpoint)
            if path.is_dir():
                copy.mkdir(parents=True, exist_ok=True)
            else:
                copy.parent.mkdir(parents=True, exist_ok=True)
                _link(path, copy)
        shutil.rmtree(target, ignore_errors=True)
        aside.rename(target)
        self._saved.add(key)
        self.drop_losers()
        return True

    def detach_best(self) -> None:
        """Give the best pin files of its own.

        A run resumed from an earlier step may write that checkpoint anew, in place: into the very
        files that the pin links to.
        """
        best = self.best
        for path in [] if best is None else best.rglob("*"):
            if path.is_file() and path.stat().st_nlink > 1:
                aside = path.with_name(f"{path.name}.part")
                shutil.copy2(path, aside)
                aside.replace(path)

    def drop_losers(self) -> None:
        """Unpin all but the best and the newest without a score."""
        unscored = sorted(key for key in self._saved if key not in self._scores)
        keep = {self._best_key(), *unscored[-_UNSCORED_KEPT:]}
        for key in self._saved - keep:
            shutil.rmtree(self._place(key), ignore_errors=True)
        self._saved &= keep

    def _best_key(self) -> tuple[int, int] | None:
        both = [key for key in self._saved if key in self._scores]
        return max(both, key=lambda key: (self._scores[key], -key[1], -key[0]), default=None)

    def _place(self, key: tuple[int, int]) -> Path:
        attempt, step = key
        return self.folder / (f"{self._prefix}{step}" + (f"-attempt{attempt}" if attempt else ""))

    def _found(self) -> set[tuple[int, int]]:
        if not self.folder.is_dir():
            return set()
        name = re.compile(re.escape(self._prefix) + r"(\d+)(?:-attempt(\d+))?")
        return {
            (int(match[2] or 0), int(match[1]))
            for path in self.folder.iterdir()
            if (match := name.fullmatch(path.name)) and self._whole(path)
        }


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
