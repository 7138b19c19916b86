"""Why a job was stopped, or would have been: a pure fold of its story in the log (R20).

The same log gives the same record, byte for byte, whoever folds it and whenever.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from evalstop.core.actions import Advise, Stop
from evalstop.core.events import (
    EvalReported,
    JobEnded,
    JobPreempted,
    JobStarted,
    JobSubmitted,
    OperatorCommanded,
)
from evalstop.core.history import History
from evalstop.core.points import Verdict
from evalstop.core.signals import remarks
from evalstop.policies.rules import RULE_LABEL
from evalstop.service.ledger import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from evalstop.core.events import Event
    from evalstop.core.job import JobSpec
    from evalstop.core.points import EvalPoint
    from evalstop.ports import Entry

__all__ = ["encode_record", "explain", "own_words", "sign_of_job"]

_SECONDS_AN_HOUR = 3600.0
_OPERATOR = "operator"


class _Silent:
    """A detector that judges nothing: the history alone is wanted."""

    def start(self) -> None:
        return None

    def step(self, state: None, point: EvalPoint) -> tuple[None, Verdict]:  # noqa: ARG002
        return None, Verdict()


def sign_of_job(spec: JobSpec) -> float:
    """Return -1 where the job's metric is better when lower: the log holds it negated."""
    return -1.0 if spec.labels.get("direction") == "min" else 1.0


class _Story:
    """One job, folded as far as the log has been read."""

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        self.history: History[None] = History(_Silent())
        self.evals: dict[int, EvalPoint] = {}
        self.service_s = 0.0
        self.gpu_s = 0.0
        self.started_at = math.nan
        self.gpus = 0

    def hear(self, sequence: int, event: Event) -> None:
        match event:
            case EvalReported(metric=""):
                self.evals[sequence] = event.point
                self.history.add(event.point)
            case JobStarted():
                self.started_at, self.gpus = event.time, event.gpus
            case JobPreempted() | JobEnded():
                ran = self.attained_s(event.time) - self.service_s
                self.service_s += ran
                self.gpu_s += ran * self.gpus
                self.started_at = math.nan
            case _:
                pass

    def attained_s(self, now: float) -> float:
        running = 0.0 if math.isnan(self.started_at) else now - self.started_at
        return self.service_s + running

    def saved_gpu_hours(self, now: float) -> float | None:
        """GPU-hours the job would still have used, by its own estimate."""
        if self.spec.estimated_s is None:
            return None
        left = max(0.0, self.spec.estimated_s - self.attained_s(now))
        return left * self.spec.gpus / _SECONDS_AN_HOUR


def explain(
    entries: Iterable[Entry],
    job: str,
    *,
    false_alarms: Mapping[str, str],
    policies: Sequence[tuple[int, str]] = (),
) -> dict[str, Any]:
    """Return the record of every decision on a job, newest last.

    Args:
        entries: the job's story (`evalstop.ports.EventStore.read_job`), or a whole log.
        job: which job.
        false_alarms: what is known of each rule's false alarms, by the rule's name.
        policies: (sequence, words) of every configuration that took effect.
    """
    story: _Story | None = None
    decisions: list[dict[str, Any]] = []
    orders: list[dict[str, Any]] = []
    for entry in entries:
        event = entry.event
        if isinstance(event, JobSubmitted) and event.job.id == job:
            story = _Story(event.job)
        if story is None:
            continue
        if isinstance(event, OperatorCommanded) and event.job == job:
            orders.append(msgspec.to_builtins(event))
        elif getattr(event, "job", None) == job:
            story.hear(entry.sequence, event)
        for index, action in enumerate(entry.actions):
            if isinstance(action, (Stop, Advise)) and action.job == job:
                key = key_of(entry.sequence, index)
                decision = _decision(story, action, event.time, false_alarms)
                decisions.append({"key": key, "policy": _policy_at(policies, entry)} | decision)
    record: dict[str, Any] = {"job": job, "decisions": decisions, "operators": orders}
    if story is not None and (asked := story.spec.labels.get(RULE_LABEL)):
        words = policies[-1][1] if policies else ""
        record["rule_asked"] = {"rule": asked, "why_not": _why_not(asked, words)}
    return record


def _why_not(asked: str, words: str) -> str:
    """Return why the rule a job asks for does not judge it; "" where the settings allow it."""
    policy = msgspec.json.decode(words).get("policy", {}) if words else {}
    allowed = [str(spec).strip() for spec in policy.get("job_may_choose", ())]
    if asked in allowed:
        return ""
    known = ", ".join(allowed) or "none"
    return f"policy.job_may_choose does not allow {asked!r} (allowed: {known})"


def _policy_at(policies: Sequence[tuple[int, str]], entry: Entry) -> str:
    return next((words for at, words in reversed(policies) if at <= entry.sequence), "")


def _decision(
    story: _Story, action: Stop | Advise, time: float, false_alarms: Mapping[str, str]
) -> dict[str, Any]:
    stop = action.action if isinstance(action, Advise) else action
    sign = sign_of_job(story.spec)
    verdict = stop.verdict
    used = story.history.series
    best = _best(stop, story)
    return {
        "kind": "advise" if isinstance(action, Advise) else "stop",
        "note": action.note if isinstance(action, Advise) else "",
        "time": time,
        "author": stop.author,
        "rule": stop.rule,
        "reason": _reason(stop, sign),
        "state": verdict.state.value,
        "decline": verdict.kind.value,
        "statistic": _finite(verdict.statistic),
        "threshold": _finite(verdict.threshold),
        "false_alarms": false_alarms.get(stop.rule.partition(":")[0], ""),
        "best": best | {"score": _finite(sign * best["score"])},
        "series": [_shown(point, sign) for point in used],
        "left_out": _left_out(story, used, sign),
        "remarks": list(remarks(used)),
        "gpu_hours_used": story.attained_s(time) * story.spec.gpus / _SECONDS_AN_HOUR,
        "gpu_hours_saved": story.saved_gpu_hours(time),
    }


def _best(stop: Stop, story: _Story) -> dict[str, Any]:
    """Return the evaluation that a stop keeps; a person's names none, so the curve's best."""
    best = story.history.best
    if stop.best_step >= 0 or best is None:
        return {
            "step": stop.best_step,
            "score": stop.verdict.best_score,
            "checkpoint": stop.best_checkpoint,
        }
    return {"step": best.step, "score": best.score, "checkpoint": best.checkpoint}


def _reason(stop: Stop, sign: float) -> str:
    """Return the verdict's sentence, or that no rule had one: a person ordered the stop."""
    if stop.rule == _OPERATOR and stop.verdict == Verdict():
        return f"ordered by {stop.author}; no rule asked for it"
    return own_words(stop.verdict, sign)


def own_words(verdict: Verdict, sign: float) -> str:
    """Return the verdict's sentence in the metric's own sign."""
    return msgspec.structs.replace(verdict, best_score=sign * verdict.best_score).reason


def _left_out(story: _Story, used: Sequence[EvalPoint], sign: float) -> list[dict[str, Any]]:
    steps = {(point.attempt, point.step, point.epoch_key) for point in used}
    seen: set[bytes] = set()
    left = []
    for point in story.evals.values():
        identity = msgspec.json.encode(point)
        if identity in seen:
            left.append(_shown(point, sign) | {"why": "repeat of an earlier report"})
        elif not math.isfinite(point.score):
            left.append(_shown(point, sign) | {"why": "no finite score"})
        elif (point.attempt, point.step, point.epoch_key) not in steps:
            current = used[-1].epoch_key if used else None
            why = "another eval epoch" if point.epoch_key != current else "rewound by a restart"
            left.append(_shown(point, sign) | {"why": why})
        seen.add(identity)
    return left


def _shown(point: EvalPoint, sign: float) -> dict[str, Any]:
    shown: dict[str, Any] = {"step": point.step, "score": _finite(sign * point.score)}
    for name in ("stderr", "n_items", "epoch_key", "eval_id", "checkpoint", "proxy"):
        value = getattr(point, name)
        if value is not None:
            shown[name] = value
    if point.signals:
        shown["signals"] = dict(point.signals)
    if point.attempt:
        shown["attempt"] = point.attempt
    if point.replicates > 1:
        shown["replicates"] = point.replicates  # pooled (R15)
    return shown


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def encode_record(record: dict[str, Any]) -> bytes:
    """Return the record as JSON, the same bytes for the same record."""
    return msgspec.json.format(msgspec.json.encode(record, order="deterministic"), indent=2)
