"""TensorBoard event files, read with TensorBoard's own accumulator (extra ``tensorboard``)."""

from __future__ import annotations

import math
from bisect import bisect_right
from importlib import import_module
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from evalstop.core.errors import MissingExtraError, ReadError
from evalstop.traces import openrlhf
from evalstop.traces.names import canonical
from evalstop.traces.rewinds import attempts_of, current_branch
from evalstop.traces.series import Curve, Loaded, SkippedPoint

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

__all__ = [
    "accumulator",
    "curves_of_events",
    "is_event_file",
    "read_event_folder",
    "scalar_tags",
    "scalars_of",
]

_LOSSES = ("train_loss", "loss")
_REWARDS = (
    "train_reward", "train_rewards_chosen", "critic_rewards_mean", "train_rollout_reward_mean",
    "reward",
)  # fmt: skip


def is_event_file(path: Path) -> bool:
    """Return whether a file is named as TensorBoard's writers name theirs."""
    return "tfevents" in path.name


def accumulator(folder: Path) -> Any:  # noqa: ANN401 -- TensorBoard is untyped
    """Return TensorBoard's accumulator of all scalars of a run, none sampled away or purged.

    TensorBoard would forget what a restarted run wrote beyond the step it restarts from; that
    may hold the best score.

    Raises:
        MissingExtraError: TensorBoard is not installed.
    """
    try:
        module = import_module("tensorboard.backend.event_processing.event_accumulator")
    except ImportError as error:
        msg = "tensorboard"
        raise MissingExtraError(msg, "tensorboard") from error
    return module.EventAccumulator(
        str(folder), size_guidance={"scalars": 0, "tensors": 0}, purge_orphaned_data=False
    )


def read_event_folder(folder: Path, metric: str | None = None) -> Loaded:  # noqa: ARG001 -- as every reader
    """Read a run: a folder of event files (or one such file).

    Raises:
        ReadError: the events cannot be read, or hold no scalar.
        MissingExtraError: TensorBoard is not installed.
    """
    events = accumulator(folder)
    try:
        events.Reload()
    except Exception as error:  # TensorBoard raises what its parser raises
        raise ReadError(str(folder), f"not readable TensorBoard events: {error}") from error
    name = folder.parent.name if folder.is_file() else folder.absolute().name
    curves = curves_of_events(events, source=str(folder), trace_id=name)
    if not curves:
        raise ReadError(str(folder), "the event files hold no scalars (cut short, or empty?)")
    return Loaded(curves, [])


def curves_of_events(events: Any, *, source: str, trace_id: str) -> list[Curve]:  # noqa: ANN401 -- TensorBoard is untyped
    """Return one curve a scalar tag, with training loss and reward where the run logged them.

    A resumed run that goes back opens an attempt; of losses and rewards the last attempt's count.
    """
    scalars = {
        tag: [(step, value) for step, value, _ in scalars_of(events, tag)]
        for tag in scalar_tags(events)
    }
    spelled = {canonical(tag): tag for tag in scalars}
    losses = _newest(next((scalars[spelled[name]] for name in _LOSSES if name in spelled), []))
    rewards = _newest(next((scalars[spelled[name]] for name in _REWARDS if name in spelled), []))
    samples = dict(scalars.get(openrlhf.SAMPLES, ()))
    return [
        Curve(
            trace_id=trace_id,
            source=source,
            metric=tag,
            n_items=_items(tag, scalars, [step for step, _ in points if step >= 0], samples),
            steps=[step for step, _ in points if step >= 0],
            scores=[value for step, value in points if step >= 0],
            attempts=_attempts([step for step, _ in points if step >= 0]),
            proxies=_at_or_before(rewards, [step for step, _ in points if step >= 0]),
            losses=[(step, loss) for step, loss in losses if math.isfinite(loss)],
            skipped=tuple(
                SkippedPoint(step=step, reason=f"step {step} is negative")
                for step, _ in points
                if step < 0
            ),
        )
        for tag, points in scalars.items()
        if points
    ]


def _items(
    tag: str, tags: Collection[str], steps: Sequence[int], samples: Mapping[int, float]
) -> list[int] | None:
    counts = [openrlhf.prompts_evaluated(tag, tags, samples.get(step)) or 0 for step in steps]
    return counts if any(counts) else None


def _newest(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    return current_branch(points, [step for step, _ in points])


def _attempts(steps: Sequence[int]) -> list[int] | None:
    attempts = attempts_of(steps)
    return attempts if any(attempts) else None


def scalar_tags(events: Any) -> list[str]:  # noqa: ANN401 -- TensorBoard is untyped
    """Return tags of scalars; TensorFlow 2 writes them as tensors."""
    tags = events.Tags()
    return [*tags["scalars"], *(tag for tag in tags["tensors"] if _is_scalar(events, tag))]


def scalars_of(events: Any, tag: str) -> list[tuple[int, float, float]]:  # noqa: ANN401 -- TensorBoard is untyped
    """Return a tag's (step, value, wall time in seconds) in the order written."""
    if tag in events.Tags()["scalars"]:
        return [(event.step, event.value, event.wall_time) for event in events.Scalars(tag)]
    make = import_module("tensorboard.util.tensor_util").make_ndarray
    return [
        (event.step, float(make(event.tensor_proto)), event.wall_time)
        for event in events.Tensors(tag)
    ]


def _is_scalar(events: Any, tag: str) -> bool:  # noqa: ANN401 -- TensorBoard is untyped
    plugin = events.SummaryMetadata(tag).plugin_data.plugin_name
    return bool(plugin == "scalars")


def _at_or_before(rewards: Sequence[tuple[int, float]], steps: Sequence[int]) -> list[float] | None:
    """Return the newest reward at or before each step; NaN before the first."""
    if not rewards:
        return None
    ordered = sorted(rewards)
    places = [bisect_right(ordered, step, key=itemgetter(0)) for step in steps]
    return [ordered[place - 1][1] if place else math.nan for place in places]
