"""TensorBoard event files, read with TensorBoard's own accumulator (extra ``tensorboard``)."""

from __future__ import annotations

import math
from importlib import import_module
from typing import TYPE_CHECKING, Any

from evalstop.core.errors import MissingExtraError, ReadError
from evalstop.traces.names import canonical
from evalstop.traces.series import Curve, Loaded, SkippedPoint

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["accumulator", "curves_of_events", "is_event_file", "read_event_folder"]

_LOSSES = ("train_loss", "loss")
_REWARDS = ("train_reward", "train_rewards_chosen", "critic_rewards_mean", "reward")


def is_event_file(path: Path) -> bool:
    """Return whether a file is named as TensorBoard's writers name theirs."""
    return "tfevents" in path.name


def accumulator(folder: Path) -> Any:  # noqa: ANN401 -- TensorBoard is untyped
    """Return TensorBoard's accumulator of all scalars of a run, none sampled away.

    Raises:
        MissingExtraError: TensorBoard is not installed.
    """
    try:
        module = import_module("tensorboard.backend.event_processing.event_accumulator")
    except ImportError as error:
        msg = "tensorboard"
        raise MissingExtraError(msg, "tensorboard") from error
    return module.EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})


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
    """Return one curve a scalar tag, with training loss and reward where the run logged them."""
    scalars = {tag: _scalars(events, tag) for tag in _tags(events)}
    spelled = {canonical(tag): tag for tag in scalars}
    losses = next((scalars[spelled[name]] for name in _LOSSES if name in spelled), [])
    rewards = next((scalars[spelled[name]] for name in _REWARDS if name in spelled), [])
    return [
        Curve(
            trace_id=trace_id,
            source=source,
            metric=tag,
            steps=[step for step, _ in points if step >= 0],
            scores=[value for step, value in points if step >= 0],
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


def _tags(events: Any) -> list[str]:  # noqa: ANN401 -- TensorBoard is untyped
    """Return tags of scalars; TensorFlow 2 writes them as tensors."""
    tags = events.Tags()
    return [*tags["scalars"], *(tag for tag in tags["tensors"] if _is_scalar(events, tag))]


def _is_scalar(events: Any, tag: str) -> bool:  # noqa: ANN401 -- TensorBoard is untyped
    plugin = events.SummaryMetadata(tag).plugin_data.plugin_name
    return bool(plugin == "scalars")


def _scalars(events: Any, tag: str) -> list[tuple[int, float]]:  # noqa: ANN401 -- TensorBoard is untyped
    if tag in events.Tags()["scalars"]:
        return [(event.step, event.value) for event in events.Scalars(tag)]
    make = import_module("tensorboard.util.tensor_util").make_ndarray
    return [(event.step, float(make(event.tensor_proto))) for event in events.Tensors(tag)]


def _at_or_before(rewards: Sequence[tuple[int, float]], steps: Sequence[int]) -> list[float] | None:
    """Return the newest reward at or before each step; NaN before the first."""
    if not rewards:
        return None
    ordered = sorted(rewards)
    found: list[float] = []
    for step in steps:
        earlier = [value for at, value in ordered if at <= step]
        found.append(earlier[-1] if earlier else math.nan)
    return found
