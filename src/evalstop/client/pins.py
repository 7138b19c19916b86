"""The best checkpoint, kept out of the trainer's reach by hard links.

A trainer's own rotation knows only its own best, and may delete the checkpoint that evalstop will
want to go back to (R05). So every checkpoint is pinned when it is saved, and unpinned only when
it can no longer be the best: pins are hard links inside the output folder and take no extra
bytes while the original lives. Where links are impossible the files are copied.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._scores: dict[int, float] = {}
        self._saved = self._found()

    @property
    def best_step(self) -> int | None:
        """Step of the best checkpoint that was both scored and saved (R04); ties: the earliest."""
        both = [step for step in self._saved if step in self._scores]
        return max(both, key=lambda step: (self._scores[step], -step), default=None)

    @property
    def best(self) -> Path | None:
        """The pinned folder of `best_step`."""
        step = self.best_step
        return None if step is None else self.folder / f"checkpoint-{step}"

    def scored(self, step: int, score: float) -> None:
        """Note the score of a step, higher is better.

        Nothing is dropped here: after a restart scores come one by one, and a pin whose score is
        still to come must not lose to one that was named first.
        """
        self._scores[step] = score

    def saved(self, step: int, checkpoint: Path) -> bool:
        """Pin a checkpoint just saved; return whether it was whole and is pinned."""
        if not is_complete(checkpoint):
            return False
        target = self.folder / checkpoint.name
        aside = self.folder / f"{checkpoint.name}.part"
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
        self._saved.add(step)
        self.drop_losers()
        return True

    def _found(self) -> set[int]:
        if not self.folder.is_dir():
            return set()
        names = [path.name for path in self.folder.iterdir() if is_complete(path)]
        return {
            int(name.removeprefix("checkpoint-"))
            for name in names
            if name.removeprefix("checkpoint-").isdigit()
        }

    def drop_losers(self) -> None:
        """Unpin all but the best and the newest without a score."""
        unscored = sorted(step for step in self._saved if step not in self._scores)
        keep = {self.best_step, *unscored[-_UNSCORED_KEPT:]}
        for step in self._saved - keep:
            shutil.rmtree(self.folder / f"checkpoint-{step}", ignore_errors=True)
        self._saved &= keep


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
