"""Which sources a job's scores are pulled from, by what the job said when it came.

Labels ``metric`` and ``direction`` say what is watched, ``evals`` names a JSONL file the job
appends to; its checkpoint folder may hold trainer_state.json files. A job without a metric or a
direction is not pulled from: a guessed direction has kept the worst model before (R07).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from evalstop.feedback.jsonl import JsonlTail
from evalstop.feedback.scores import Watch
from evalstop.feedback.trainer_state import TrainerStateTail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.core.job import JobSpec
    from evalstop.core.points import EvalPoint
    from evalstop.ports import FeedbackSource, Launch

__all__ = ["sources_of", "watch_of"]

_GUARD = "guard."


def watch_of(spec: JobSpec) -> Watch | None:
    """Return what is watched of a job; None where it does not say so in full.

    A label ``guard.NAME`` with the value max or min names a guardrail metric.
    """
    metric, direction = spec.labels.get("metric", ""), _direction(spec.labels.get("direction"))
    if not metric or direction is None:
        return None
    guards = {
        name.removeprefix(_GUARD): sense
        for name, value in spec.labels.items()
        if name.startswith(_GUARD) and (sense := _direction(value)) is not None
    }
    return Watch(job=spec.id, metric=metric, direction=direction, guards=guards)


def sources_of(
    spec: JobSpec, launch: Launch | None, logged: Sequence[EvalPoint]
) -> list[FeedbackSource]:
    """Return the files that a job's scores are followed in.

    Args:
        spec: the job.
        launch: what is known of how it runs.
        logged: its evaluations so far, as the log has them.
    """
    watch = watch_of(spec)
    if watch is None:
        return []
    found: list[FeedbackSource] = []
    if path := spec.labels.get("evals"):
        found.append(JsonlTail(Path(path), watch))
    if launch is not None and launch.checkpoints:
        tail = TrainerStateTail(Path(launch.checkpoints), watch)
        tail.resume(logged)
        found.append(tail)
    return found


def _direction(value: str | None) -> Literal["max", "min"] | None:
    if value == "max":
        return "max"
    return "min" if value == "min" else None
