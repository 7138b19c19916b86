"""A workload on one sheet, to check by eye: curves, peaks, what observers see, who comes when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from evalstop.workloads.job import Workload

__all__ = ["workload_figure"]

HEALTHY, HACKING = "#1f77b4", "#d62728"
_CURVES = 25
_HOUR = 3600.0


def workload_figure(workload: Workload, *, gpus: int, title: str) -> Figure:
    """Return six panels of a workload meant for a cluster of ``gpus``.

    True curves of the first jobs of each label; the same as observed; where hacking runs peak;
    how long jobs take; how far estimates are off; and the GPUs that would run if nothing waited.
    """
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    axes = figure.subplots(2, 3)
    figure.suptitle(title)
    _curves(axes[0, 0], workload, observed=False)
    _curves(axes[0, 1], workload, observed=True)
    _peaks(axes[0, 2], workload)
    _durations(axes[1, 0], workload)
    _estimates(axes[1, 1], workload)
    _demand(axes[1, 2], workload, gpus)
    return figure


def _curves(axes: Axes, workload: Workload, *, observed: bool) -> None:
    """Draw scores over progress."""
    for label, colour in ((False, HEALTHY), (True, HACKING)):
        for index in np.flatnonzero(workload.hacking == label)[:_CURVES].tolist():
            part = slice(int(workload.bounds[index]), int(workload.bounds[index + 1]))
            progress = workload.eval_offsets[part] / workload.duration_s[index]
            scores = (workload.scores if observed else workload.true_scores)[part]
            axes.plot(progress, scores, color=colour, linewidth=0.7, alpha=0.7)
    axes.set_title(f"{'Observed' if observed else 'True'} scores, {_CURVES} jobs of each label")
    axes.set_xlabel("progress")
    axes.set_ylabel("score")
    axes.plot([], [], color=HEALTHY, label="healthy")
    axes.plot([], [], color=HACKING, label="hacking")
    axes.legend(loc="lower right", frameon=False)


def _peaks(axes: Axes, workload: Workload) -> None:
    """Draw where hacking runs peak."""
    peaks = (workload.peak_s / workload.duration_s)[workload.hacking]
    axes.hist(peaks, bins=np.linspace(0, 1, 41).tolist(), color=HACKING)
    axes.set_title(f"True peaks of {peaks.size} hacking jobs")
    axes.set_xlabel("progress at the peak")
    axes.set_ylabel("jobs")


def _durations(axes: Axes, workload: Workload) -> None:
    """Draw durations by size of gang."""
    hours = workload.duration_s / _HOUR
    sizes = np.unique(workload.gpus)
    bins = np.geomspace(hours.min(), hours.max() * 1.001, 25) if hours.size else np.ones(2)
    axes.hist(
        [hours[workload.gpus == size] for size in sizes],
        bins=bins.tolist(),
        stacked=True,
        label=[f"{size} GPU{'s' if size > 1 else ''}" for size in sizes.tolist()],
    )
    _log_axis(axes)
    axes.set_title("Durations")
    axes.set_xlabel("hours")
    axes.set_ylabel("jobs")
    if sizes.size:
        axes.legend(frameon=False)


def _estimates(axes: Axes, workload: Workload) -> None:
    """Draw estimate over duration."""
    ratio: Any = [] if workload.estimated_s is None else workload.estimated_s / workload.duration_s
    axes.hist(ratio, bins=np.geomspace(1 / 8, 8, 49).tolist(), color="#7f7f7f")
    _log_axis(axes)
    axes.set_title("Estimate over duration")
    axes.set_xlabel("ratio")
    axes.set_ylabel("jobs")


def _log_axis(axes: Axes) -> None:
    """Make the horizontal axis logarithmic, with plain numbers at 1, 2 and 5."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _demand(axes: Axes, workload: Workload, gpus: int) -> None:
    """Draw the GPUs that would be held if no job ever waited."""
    ends = workload.submit_s + workload.duration_s
    times = np.concatenate([workload.submit_s, ends])
    steps = np.concatenate([workload.gpus, -workload.gpus])
    order = np.argsort(times, kind="stable")
    axes.step(times[order] / _HOUR, np.cumsum(steps[order]), where="post", color="#7f7f7f")
    axes.axhline(gpus, color="black", linewidth=0.8, linestyle="--", label=f"{gpus} GPUs")
    axes.set_title("GPUs asked for, if nothing waited")
    axes.set_xlabel("hours")
    axes.set_ylabel("GPUs")
    axes.legend(frameon=False)
