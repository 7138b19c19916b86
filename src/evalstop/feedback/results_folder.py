"""Follow a folder into which a harness puts one file an evaluated checkpoint.

lm-evaluation-harness writes ``results_*.json``, inspect_ai writes ``*.eval``. A file that is half
written is read again at the next poll, and told once it stays so.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from evalstop.core.errors import ReadError
from evalstop.core.points import EvalPoint
from evalstop.traces.inspect_log import is_inspect_log, readings_of_log
from evalstop.traces.lm_eval import is_results, readings_of_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from evalstop.feedback.scores import Watch
    from evalstop.ports import Reading
    from evalstop.traces.checkpoint_scores import Reading as Score

__all__ = ["ResultsFolder"]

_PATIENCE = 5
"""Polls after which a file that stays unreadable is told."""


class ResultsFolder:
    """Readings of one job's evaluations.

    Args:
        folder: where the files appear, at any depth; it may appear later.
        watch: what of them counts. A metric is found by its whole name (``gsm8k/acc``) or by its
            end (``acc``), if only one has it.

    Attributes:
        names: metrics seen so far, watched or not.
        problems: what could not be read, in sentences, by file.
    """

    def __init__(self, folder: Path, watch: Watch) -> None:
        self._folder = folder
        self._watch = watch
        self._done: dict[Path, tuple[int, int]] = {}
        self._failures: dict[Path, int] = {}
        self._problems: dict[Path, str] = {}
        self.names: set[str] = set()

    @property
    def problems(self) -> list[str]:
        """What could not be read, in sentences."""
        return list(self._problems.values())

    def readings(self) -> list[Reading]:
        """Return what new or changed files say.

        Raises:
            ReadError: the folder is there and cannot be read.
        """
        try:
            files = sorted(
                path
                for path in self._folder.rglob("*")
                if (is_results(path) or is_inspect_log(path)) and path.is_file()
            )
            fresh = [(path, _signature(path)) for path in files]
        except OSError as error:
            message = f"cannot be read: {error.strerror}"
            raise ReadError(str(self._folder), message) from error
        found: list[Reading] = []
        for path, signature in fresh:
            if self._done.get(path) != signature:
                found += self._read(path, signature)
        return found

    def _read(self, path: Path, signature: tuple[int, int]) -> list[Reading]:
        try:
            scores = readings_of_log(path) if is_inspect_log(path) else readings_of_file(path)
        except ReadError as error:
            failures = self._failures[path] = self._failures.get(path, 0) + 1
            if failures >= _PATIENCE:
                self._problems[path] = str(error)
            return []
        if not scores and is_inspect_log(path):
            return []  # an evaluation under way: the same file will say more
        self._done[path] = signature
        self._problems.pop(path, None)
        return self._wanted(scores)

    def _wanted(self, scores: Sequence[Score]) -> list[Reading]:
        by_name = {score.metric: score for score in scores}
        self.names |= by_name.keys()
        ends: dict[str, list[str]] = {}
        for name in by_name:
            parts = name.split("/")
            for start in range(1, len(parts)):
                ends.setdefault("/".join(parts[start:]), []).append(name)
        known = {end: by_name[whole[0]] for end, whole in ends.items() if len(whole) == 1} | by_name
        return [
            self._watch.reading(name, _point(known[spelling]))
            for name, spelling in self._watch.wanted(known)
        ]


def _point(score: Score) -> EvalPoint:
    return EvalPoint(
        step=score.step,
        score=score.score,
        stderr=score.stderr if 0 < score.stderr < math.inf else None,
        n_items=score.n_items or None,
        epoch_key=score.epoch_key,
    )


def _signature(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size
