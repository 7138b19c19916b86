"""Which entries of the log are worth telling people, and in which words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from evalstop.core.actions import Advise, Stop
from evalstop.core.events import JobEnded, OperatorCommanded
from evalstop.core.job import Outcome
from evalstop.service.explain import sign_of_job

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from evalstop.core.job import JobSpec
    from evalstop.ports import Entry
    from evalstop.service.ledger import JobRecord

__all__ = ["KINDS", "Notice", "is_worth_telling", "notices_of"]

KINDS = {
    "advice": "a stop that was not made: observe mode, or a window for people",
    "stopping": "a stop was ordered; the job ends within its grace",
    "stopped": "a job has ended by a stop, its GPUs are free",
    "operator": "a person ordered something: undo, snooze, approve, stop, freeze, unfreeze",
}


class Notice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing to tell.

    Attributes:
        id: place in the log; the same id is the same notice, however often it arrives.
        kind: one of `KINDS`.
        time: of the fact, in seconds since 1970.
        text: what happened, in a sentence.
        job, tenant, job_type: whose, empty for what concerns the whole cluster.
        owner: address of the job's owner, from its label ``owner``.
        rule: the rule that asked for a stop, as a SPEC.
        reason: what it saw.
        best_step: training step of the checkpoint that is kept; -1 if there is none.
        best_score: its score, in the metric's own direction; None if unknown.
        best_checkpoint: its name.
        author: "policy", or the person.
    """

    id: str
    kind: str
    time: float
    text: str
    job: str = ""
    tenant: str = ""
    job_type: str = ""
    owner: str = ""
    rule: str = ""
    reason: str = ""
    best_step: int = -1
    best_score: float | None = None
    best_checkpoint: str = ""
    author: str = ""


def is_worth_telling(entry: Entry) -> bool:
    """Return whether `notices_of` may make anything of an entry; quick, for every entry."""
    return isinstance(entry.event, JobEnded | OperatorCommanded) or any(
        isinstance(action, Stop | Advise) for action in entry.actions
    )


def notices_of(entry: Entry, jobs: Mapping[str, JobRecord]) -> Iterator[Notice]:
    """Yield what an entry gives to tell.

    Args:
        entry: of the log.
        jobs: the ledger's records.
    """
    event = entry.event
    place = f"{entry.sequence}.e"
    if isinstance(event, JobEnded):
        record = jobs.get(event.job)
        if event.outcome is Outcome.STOPPED_BY_POLICY and record is not None and record.stop:
            told = _of_stop(record.stop, record.spec)
            text = f"Job {event.job} was stopped and its GPUs are free. {_best(told)}"
            yield Notice(id=place, kind="stopped", time=event.time, text=text, **told)
    elif isinstance(event, OperatorCommanded) and event.command in _TOLD_COMMANDS:
        record = jobs.get(event.job)
        what = f" job {event.job}" if event.job else ""
        why = f": {event.note}" if event.note else ""
        yield Notice(
            id=place,
            kind="operator",
            time=event.time,
            text=f"{event.actor} ordered {event.command}{what}{why}.",
            author=event.actor,
            **(_of_job(record.spec) if record else {"job": event.job}),
        )
    for index, action in enumerate(entry.actions):
        place = f"{entry.sequence}.{index}"
        if isinstance(action, Stop) and (record := jobs.get(action.job)) is not None:
            told = _of_stop(action, record.spec)
            text = f"Job {action.job} is being stopped ({told['reason']}). {_best(told)}"
            yield Notice(id=place, kind="stopping", time=event.time, text=text, **told)
        elif isinstance(action, Advise) and (record := jobs.get(action.job)) is not None:
            told = _of_stop(action.action, record.spec)
            text = f"Job {action.job}: {action.note or 'a stop is advised'} ({told['reason']}). "
            yield Notice(id=place, kind="advice", time=event.time, text=text + _best(told), **told)


_TOLD_COMMANDS = frozenset({"undo", "snooze", "approve", "stop", "freeze", "unfreeze"})


def _of_job(spec: JobSpec) -> dict[str, Any]:
    return {
        "job": spec.id,
        "tenant": spec.tenant,
        "job_type": spec.job_type,
        "owner": spec.labels.get("owner", ""),
    }


def _of_stop(stop: Stop, spec: JobSpec) -> dict[str, Any]:
    sign = sign_of_job(spec)
    verdict = msgspec.structs.replace(stop.verdict, best_score=sign * stop.verdict.best_score)
    return _of_job(spec) | {
        "rule": stop.rule,
        "reason": verdict.reason,
        "best_step": stop.best_step,
        "best_score": verdict.best_score if math.isfinite(verdict.best_score) else None,
        "best_checkpoint": stop.best_checkpoint or "",
        "author": stop.author,
    }


def _best(told: Mapping[str, Any]) -> str:
    if told["best_step"] < 0:
        return "No best checkpoint is known."
    name = told["best_checkpoint"]
    return f"Best: step {told['best_step']}" + (f", kept as {name}." if name else ", not saved.")
