"""Follow the ``trainer_state.json`` that transformers and TRL write into each checkpoint.

The file holds the run's whole log and lags by up to ``save_steps``; there is no other one while
the run lives. It is written in place, so that half a file is normal: it is read again at the next
poll. A resumed run goes back to an earlier step and writes other numbers for steps we know: that
opens a new attempt, never a change of the old curve.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from evalstop.core.errors import ReadError
from evalstop.core.points import EvalPoint
from evalstop.core.signals import signals_of
from evalstop.traces.names import find
from evalstop.traces.trainer_state import curves_of_log

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from evalstop.feedback.scores import Watch
    from evalstop.ports import Reading
    from evalstop.traces.series import Curve

__all__ = ["TrainerStateTail"]

_FILE = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_PATIENCE = 5
"""Polls after which a file that stays half written is told."""

_Signature = tuple[str, int, int]


class TrainerStateTail:
    """Readings of one run's output directory.

    Args:
        directory: the trainer's ``output_dir``; it may appear later.
        watch: what of its log counts.

    Attributes:
        names: metrics seen so far, watched or not.
        problems: what could not be read, in sentences.
    """

    def __init__(self, directory: Path, watch: Watch) -> None:
        self._directory = directory
        self._watch = watch
        self._seen: _Signature | None = None
        self._torn = 0
        self._attempt = watch.attempt
        self._told: dict[str, dict[int, float]] = {}
        self.names: set[str] = set()
        self.problems: list[str] = []

    def resume(self, points: Sequence[EvalPoint]) -> None:
        """Take over what the log has of the primary metric, so that a resume is known as one.

        Args:
            points: the job's evaluations, turned so that higher is better.
        """
        if not points:
            return
        sign = 1.0 if self._watch.direction == "max" else -1.0
        self._attempt = max(point.attempt for point in points)
        last = [point for point in points if point.attempt == self._attempt]
        self._told[""] = {point.step: sign * point.score for point in last}

    def readings(self) -> list[Reading]:
        """Return evaluations that the newest state file holds beyond what was returned.

        Raises:
            ReadError: the directory is there and cannot be read.
        """
        try:
            newest = self._newest()
        except OSError as error:
            message = f"cannot be read: {error.strerror}"
            raise ReadError(str(self._directory), message) from error
        if newest is None:
            return []
        path, signature = newest
        if signature == self._seen:
            return []
        curves = self._curves(path)
        if curves is None:
            self._torn += 1
            if self._torn == _PATIENCE:
                self.problems = [f"{path}: not valid JSON for {_PATIENCE} polls; read on"]
            return []
        self._seen, self._torn, self.problems = signature, 0, []
        return self._news(curves)

    def _newest(self) -> tuple[Path, _Signature] | None:
        """Return the state file written last, and what tells whether it has changed."""
        found = []
        if not self._directory.is_dir():
            return None
        for folder in self._directory.iterdir():
            match = _CHECKPOINT.fullmatch(folder.name)
            path = folder / _FILE if match else None
            if folder.name == _FILE:
                path = folder
            if path is None:
                continue
            try:
                status = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                continue  # not written yet, or rotated away
            step = int(match.group(1)) if match else -1
            found.append((status.st_mtime_ns, step, status.st_size, path))
        if not found:
            return None
        changed_at, _, size, path = max(found)
        return path, (str(path), changed_at, size)

    def _curves(self, path: Path) -> list[Curve] | None:
        try:
            log = json.loads(path.read_bytes())["log_history"]
            return curves_of_log(log, source=str(path), trace_id=self._watch.job)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def _news(self, curves: Sequence[Curve]) -> list[Reading]:
        by_name = {curve.metric: curve for curve in curves}
        self.names |= by_name.keys()
        watched = {
            name: by_name[spelling]
            for name, metric in (("", self._watch.metric), *((g, g) for g in self._watch.guards))
            if (spelling := find(metric, by_name)) is not None
        }
        if any(self._is_rewound(name, curve) for name, curve in watched.items()):
            self._attempt += 1
            self._told = {}
        news = []
        for name, curve in watched.items():
            told = self._told.setdefault(name, {})
            errors = _by_step(by_name.get(f"{curve.metric}_stderr"))
            place = {step: index for index, step in enumerate(curve.steps)}
            for step, score, proxy, error in _rows(curve):
                if step in told:
                    continue
                told[step] = score
                point = EvalPoint(
                    step=step,
                    score=score,
                    stderr=errors.get(step, error),
                    attempt=self._attempt,
                    checkpoint=self._checkpoint(step),
                    proxy=proxy,
                    signals=signals_of({k: v[place[step]] for k, v in curve.signals.items()}),
                )
                news.append(self._watch.reading(name, point))
        return news

    def _is_rewound(self, name: str, curve: Curve) -> bool:
        told = self._told.get(name, {})
        return any(
            step in told and repr(told[step]) != repr(score) for step, score, *_ in _rows(curve)
        )

    def _checkpoint(self, step: int) -> str | None:
        name = f"checkpoint-{step}"
        return name if (self._directory / name).is_dir() else None


def _rows(curve: Curve) -> list[tuple[int, float, float | None, float | None]]:
    """Return (step, score, proxy, standard error), the last one told of each step."""
    unknown = [float("nan")] * len(curve.steps)
    columns = zip(
        curve.steps, curve.scores, curve.proxies or unknown, curve.stderrs or unknown, strict=True
    )
    last = {
        step: (
            step,
            score,
            proxy if proxy == proxy else None,  # noqa: PLR0124 -- NaN test
            error if 0.0 < error < float("inf") else None,
        )
        for step, score, proxy, error in columns
    }
    return list(last.values())


def _by_step(curve: Curve | None) -> dict[int, float]:
    if curve is None:
        return {}
    return {step: error for step, error in zip(curve.steps, curve.scores, strict=True) if error > 0}
