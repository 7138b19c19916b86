"""What callers ask for, as facts for the log: built on the deciding thread, against the picture.

Each function looks at the situation and returns events, or refuses by raising. Nothing here waits,
writes or asks anybody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalstop.core.errors import InputError
from evalstop.core.events import (
    CheckpointSaved,
    EvalReported,
    Event,
    JobSubmitted,
    LossReported,
    OperatorCommanded,
)
from evalstop.core.job import JobSpec, Outcome
from evalstop.service.ledger import report_identity, with_checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evalstop.service.controller import Situation
    from evalstop.service.ledger import JobRecord
    from evalstop.service.requests import EvalIn, LossIn

__all__ = [
    "REVERSIBLE",
    "ConflictError",
    "UnknownJobError",
    "checkpoint",
    "evaluations",
    "known",
    "losses",
    "namesake",
    "order",
    "submission",
    "undo",
]

REVERSIBLE = {Outcome.STOPPED_BY_POLICY, Outcome.CANCELLED}


class UnknownJobError(InputError):
    """No job of this name was ever submitted."""


class ConflictError(InputError):
    """The job is not in a state in which this can be done."""


def known(jobs: Mapping[str, JobRecord], job: str) -> JobRecord:
    """Return what the shell knows of a job.

    Raises:
        UnknownJobError: if there is none of this name.
    """
    record = jobs.get(job)
    if record is None:
        message = f"no job {job!r} was ever submitted here: submit it first, or check its id"
        raise UnknownJobError(message)
    return record


def namesake(job: str) -> ConflictError:
    """Return what to say of a second job of one name."""
    return ConflictError(f"a job {job!r} is known already: choose another id")


def submission(situation: Situation, spec: JobSpec) -> Sequence[Event]:
    """Return that a job was handed in.

    Raises:
        ConflictError: if its name is taken.
        InputError: if it can never run here.
    """
    if spec.id in situation.ledger.jobs:
        raise namesake(spec.id)
    total = situation.view.total_gpus
    if spec.gpus > total:
        message = f"job {spec.id!r} asks for {spec.gpus} GPUs, the cluster has {total}"
        raise InputError(message)
    return [JobSubmitted(time=situation.now, job=spec)]


def evaluations(situation: Situation, job: str, reports: Sequence[EvalIn]) -> Sequence[Event]:
    """Return the evaluations that are new, in order of step; repeats have no effect (R15)."""
    record = known(situation.ledger.jobs, job)
    events: list[EvalReported] = []
    taken: set[int] = set()
    for report in reports:
        metric = report.metric_of(record.spec)
        point = report.point(record.spec)
        identity = report_identity(metric, point)
        if identity in record.reports or identity in taken:
            continue
        taken.add(identity)
        events.append(
            EvalReported(
                time=situation.now,
                job=job,
                point=with_checkpoint(point, record.saved.get(point.step)),
                metric=metric,
                reported_at=report.reported_at,
            )
        )
    return in_order(events)


def in_order(events: Sequence[EvalReported]) -> list[EvalReported]:
    """Return evaluations that came together in order of step.

    The verdict does not depend on it (R11), but its cost does: each that comes after a later one
    has the whole curve judged anew, and ten thousand of them backwards would keep every other job
    waiting for minutes.
    """
    return sorted(events, key=lambda event: (event.point.attempt, event.point.step))


def losses(situation: Situation, job: str, reports: Sequence[LossIn]) -> Sequence[Event]:
    """Return training losses."""
    known(situation.ledger.jobs, job)
    return [
        LossReported(
            time=situation.now,
            job=job,
            step=report.step,
            loss=report.loss,
            throughput=report.throughput,
            efficiency=report.efficiency,
        )
        for report in reports
    ]


def checkpoint(situation: Situation, job: str, step: int, name: str) -> Sequence[Event]:
    """Return that a checkpoint was saved, unless that is known."""
    if known(situation.ledger.jobs, job).saved.get(step) == name:
        return []
    return [CheckpointSaved(time=situation.now, job=job, step=step, checkpoint=name)]


def order(
    situation: Situation, command: str, *, actor: str, job: str, for_s: float | None, note: str
) -> Sequence[Event]:
    """Return a person's order.

    Raises:
        ConflictError: if its job has ended.
    """
    if job and known(situation.ledger.jobs, job).outcome is not None:
        message = f"job {job!r} has ended: there is nothing to {command}"
        raise ConflictError(message)
    until = None if for_s is None else situation.now + for_s
    return [
        OperatorCommanded(
            time=situation.now, command=command, actor=actor, job=job, until=until, note=note
        )
    ]


def undo(situation: Situation, job: str, *, actor: str, note: str) -> Sequence[Event]:
    """Return that a stopped job is reopened.

    Raises:
        ConflictError: if it was not stopped, or is still on its way out.
    """
    record = known(situation.ledger.jobs, job)
    if record.outcome not in REVERSIBLE:
        state = record.outcome.value if record.outcome else situation.view.jobs[job].phase
        message = f"job {job!r} is {state}: only a job that was stopped can be reopened"
        raise ConflictError(message)
    command = OperatorCommanded(time=situation.now, command="undo", actor=actor, job=job, note=note)
    return [command, JobSubmitted(time=situation.now, job=record.spec)]
