"""TensorBoard event files, read with TensorBoard's own accumulator (extra ``tensorboard``)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from evalstop.core.errors import MissingExtraError, ReadError
from evalstop.traces.scalars import curves_of_scalars
from evalstop.traces.series import Curve, Loaded

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "accumulator",
    "curves_of_events",
    "is_event_file",
    "read_event_folder",
    "scalar_tags",
    "scalars_of",
]


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
    """Return one curve a scalar tag; see `curves_of_scalars`."""
    scalars = {
        tag: [(step, value) for step, value, _ in scalars_of(events, tag)]
        for tag in scalar_tags(events)
    }
    return curves_of_scalars(scalars, source=source, trace_id=trace_id)


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
