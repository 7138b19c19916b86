"""Which sources a job's scores are pulled from, by what the job said when it came.

Labels ``metric`` and ``direction`` say what is watched, ``evals`` names a JSONL file the job
appends to or another place (``tensorboard:DIR``, ``mlflow:URI``: `evalstop.feedback.address`);
without one, its checkpoint folder may hold trainer_state.json files. Never both: the same
evaluation from two places would count as two, and its error as smaller than it is. A job without
a metric or a direction is not pulled from: a guessed direction has kept the worst model before
(R07).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from evalstop.core.errors import EvalStopError, ReadError
from evalstop.custody import is_url
from evalstop.feedback.address import source_at
from evalstop.feedback.scores import Watch
from evalstop.feedback.trainer_state import TrainerStateTail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.core.job import JobSpec
    from evalstop.core.points import EvalPoint
    from evalstop.ports import FeedbackSource, Launch, Reading

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
    if address := spec.labels.get("evals"):
        source = _source(address, watch)
    elif launch is not None and launch.checkpoints and not is_url(launch.checkpoints):
        source = TrainerStateTail(Path(launch.checkpoints), watch)
    else:
        return []
    if isinstance(source, TrainerStateTail):
        source.resume(logged)
    return [source]


class _Unreadable:
    """A source that cannot be made: its job runs on, visibly unwatched (R30)."""

    def __init__(self, address: str, error: EvalStopError) -> None:
        self._address = address
        self._error = error

    def readings(self) -> list[Reading]:
        raise ReadError(self._address, str(self._error))


def _source(address: str, watch: Watch) -> FeedbackSource:
    try:
        return source_at(address, watch)
    except EvalStopError as error:
        return _Unreadable(address, error)


def _direction(value: str | None) -> Literal["max", "min"] | None:
    if value == "max":
        return "max"
    return "min" if value == "min" else None
