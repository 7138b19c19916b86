"""What jobs and workloads must be before anything is simulated: columns that fit and make sense."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from evalstop.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.workloads.job import SimJob, Workload

__all__ = ["PER_EVAL", "PER_EVAL_OPTIONAL", "PER_JOB_OPTIONAL", "require_fitting", "require_sound"]

Column: TypeAlias = NDArray[Any]

_EVALS_AT_A_TIME = 1 << 20
"""Evaluations looked at in one go: what is computed of them takes memory too."""

PER_JOB_OPTIONAL = (
    "estimated_s",
    "fails_at_s",
    "min_gpus",
    "max_gpus",
    "noise_scale",
    "sync_share",
    "ids",
    "labels",
)
PER_EVAL = ("eval_offsets", "eval_steps", "scores", "true_scores")
PER_EVAL_OPTIONAL = ("stderrs", "proxies", "losses")


def require_fitting(job: SimJob) -> None:
    """Refuse a job whose lists over evaluations are of different lengths.

    In flat columns too long a list of one job would be the next job's evaluations.

    Raises:
        InputError: one is.
    """
    evals = len(job.eval_offsets)
    for name in (*PER_EVAL, *PER_EVAL_OPTIONAL, "deliveries", "replicates"):
        column: Sequence[Any] | None = getattr(job, name)
        if column is not None and len(column) != evals:
            message = (
                f"job {job.spec.id!r}: {name} must have an entry for each of its {evals} "
                f"evaluations (eval_offsets), got {len(column)}"
            )
            raise InputError(message)


def require_sound(workload: Workload) -> None:
    """Refuse columns that do not fit together, and jobs that cannot be.

    Raises:
        InputError: if lengths differ, submissions or a job's evaluations are out of order, a name
            comes twice, or a number is out of range.
    """
    _require_lengths(workload)
    jobs = len(workload)
    if not jobs:
        return
    _require(workload, "submit_s", np.isfinite(workload.submit_s), "a finite number")
    if bool((np.diff(workload.submit_s) < 0).any()):
        message = "jobs must come in order of submission: sort by submit_s first"
        raise InputError(message)
    durations = workload.duration_s
    if not bool((durations > 0).all() and (workload.gpus > 0).all()):
        message = "every job needs a duration above 0 and at least one GPU"
        raise InputError(message)
    _require(workload, "duration_s", np.isfinite(durations), "a finite number")
    if workload.ids is not None and len(set(workload.ids)) < jobs:
        known: set[str] = set()
        twice = next(name for name in workload.ids if name in known or known.add(name))  # type: ignore[func-returns-value]  # the idiom
        message = f"every job needs an id of its own, but {twice!r} comes twice"
        raise InputError(message)
    for name in ("estimated_s", "fails_at_s", "noise_scale", "sync_share"):
        column = getattr(workload, name)
        if column is not None:
            _require(workload, name, ~(column < 0), "at least 0, or not known")
    _require_gangs(workload)
    _require_order(workload.eval_offsets, workload.bounds)
    delays = workload.delivery_delays_s
    if delays is not None and not bool((np.isfinite(delays) & (delays >= 0)).all()):
        message = "deliveries must be finite delays of at least 0 seconds: none if a report is lost"
        raise InputError(message)


def _require_lengths(workload: Workload) -> None:
    jobs, evals = len(workload), int(workload.bounds[-1])
    for name in ("duration_s", "gpus", "hacking", "peak_s", "tenant", "job_type"):
        _require_length(name, getattr(workload, name), jobs)
    for name in PER_JOB_OPTIONAL:
        _require_length(name, getattr(workload, name), jobs)
    _require_length("bounds", workload.bounds, jobs + 1)
    for name in (*PER_EVAL, *PER_EVAL_OPTIONAL, "replicates"):
        _require_length(name, getattr(workload, name), evals)
    _require_length("delivery_bounds", workload.delivery_bounds, evals + 1)


def _require_length(name: str, column: Sequence[Any] | Column | None, length: int) -> None:
    """Refuse a column of the wrong length."""
    if column is not None and len(column) != length:
        message = f"{name} must have {length} entries, got {len(column)}"
        raise InputError(message)


def _require_gangs(workload: Workload) -> None:
    """Refuse elastic jobs that cannot run on the gang they ask for."""
    fewest, gpus, most = workload.min_gpus, workload.gpus, workload.max_gpus
    if fewest is not None:
        _require(workload, "min_gpus", (fewest >= 0) & (fewest <= gpus), "from 1 to gpus")
    if most is not None:
        _require(workload, "max_gpus", (most == 0) | (most >= gpus), "at least gpus")


def _require(workload: Workload, name: str, good: Column, wanted: str) -> None:
    """Refuse the first job whose entry is not good."""
    if good.all():
        return
    index = int(np.flatnonzero(~good)[0])
    value = getattr(workload, name)[index]
    message = f"job {workload.job_id(index)!r}: {name} must be {wanted}, got {value}"
    raise InputError(message)


def _require_order(offsets: Column, bounds: Column) -> None:
    """Refuse evaluations before their job begins, and before the one before them."""
    if len(offsets) and not bool((offsets[bounds[:-1][np.diff(bounds) > 0]] >= 0).all()):
        message = "eval_offsets are seconds of service and must be at least 0"
        raise InputError(message)
    for start in range(0, len(offsets), _EVALS_AT_A_TIME):
        part = offsets[start : start + _EVALS_AT_A_TIME + 1]
        places = start + 1 + np.flatnonzero(~(part[1:] >= part[:-1]))
        inside = places[bounds[np.searchsorted(bounds, places)] != places]
        if inside.size:
            job = int(np.searchsorted(bounds, inside[0], side="right")) - 1
            message = (
                f"eval_offsets of job {job} of {len(bounds) - 1} must not fall, but "
                f"{offsets[inside[0]]} comes after {offsets[inside[0] - 1]}"
            )
            raise InputError(message)
