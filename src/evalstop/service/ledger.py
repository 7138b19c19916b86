"""What the shell itself must remember of each job: a fold of the log, like everything else.

The picture of the cluster is the kernel's. Here is what carrying out needs: which command no
event has acknowledged yet, how often a job was started, which checkpoints it saved, which
reports it has sent already, and how it ended.
"""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from evalstop.core.actions import Advise, Preempt, RequestEval, Start, Stop
from evalstop.core.events import (
    CheckpointSaved,
    EvalReported,
    JobEnded,
    JobPreempted,
    JobStarted,
    JobSubmitted,
    OperatorCommanded,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evalstop.core.actions import Action
    from evalstop.core.job import JobSpec, JobView, Outcome
    from evalstop.core.points import EvalPoint
    from evalstop.ports import Entry

__all__ = ["JobRecord", "Ledger", "key_of", "report_identity"]


def key_of(sequence: int, index: int) -> str:
    """Return the key under which a backend tells one command from all others."""
    return f"{sequence}.{index}"


def report_identity(metric: str, point: EvalPoint) -> int:
    """Return what makes two reports the same one (R15); the same in every process."""
    key = (metric, point.attempt, point.step, point.eval_id, point.epoch_key, point.score)
    words = repr((*key, point.stderr, point.n_items)).encode()
    return int.from_bytes(blake2b(words, digest_size=8).digest(), "big")


class JobRecord:
    """One job, as the shell knows it.

    ``starts`` counts the runs that were seen. ``launched`` numbers the starts that were promised,
    and so the attempts that a backend was told of; ``began`` is the newest of them that was seen.
    They part when a job is stopped before anybody saw it run: its attempt is used up all the same.
    Where somebody else places the job, both stay 0. ``repeats`` counts the extra evaluations that a
    policy asked for, by step.
    """

    __slots__ = (
        "advice",
        "advice_gpu_s",
        "began",
        "bests",
        "ended_at",
        "epoch",
        "last_metric_at",
        "launched",
        "longest_gap_s",
        "metric_reports",
        "newest",
        "other_metrics",
        "outcome",
        "pending",
        "repeats",
        "replicated",
        "reports",
        "saved",
        "scores_of",
        "spec",
        "starts",
        "stop",
        "stop_key",
        "stopped_at",
        "view",
    )

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        self.view: JobView | None = None
        self.starts = 0
        self.launched = 0
        self.began = 0
        self.pending: dict[str, Action] = {}
        self.repeats: dict[int, int] = {}
        self.saved: dict[int, str] = {}
        self.reports: set[int] = set()
        self.bests: dict[str, EvalPoint] = {}
        self.scores_of: dict[str, dict[tuple[int, int], float]] = {}
        self.replicated: dict[tuple[str, int, int], int] = {}
        self.epoch = ""
        self.newest = (-1, -1)
        self.stop: Stop | None = None
        self.stop_key = ""
        self.stopped_at = math.nan
        self.advice: Advise | None = None
        self.advice_gpu_s = math.nan
        self.outcome: Outcome | None = None
        self.ended_at = math.nan
        self.last_metric_at = math.nan
        self.longest_gap_s = 0.0
        self.metric_reports = 0
        self.other_metrics: dict[str, int] = {}

    @property
    def best(self) -> EvalPoint | None:
        """The highest score of the current eval epoch: it never gets worse within one (R03)."""
        return self.bests.get(self.epoch)

    @property
    def scored(self) -> dict[tuple[int, int], float]:
        """Finite scores of the current eval epoch by (attempt, step), replicates pooled.

        Those of other epochs do not compare (R14).
        """
        return self.scores_of.get(self.epoch, {})

    @property
    def scores(self) -> dict[int, float]:
        """The same by step: what the newest attempt that came there scored."""
        return {step: score for (_, step), score in sorted(self.scored.items())}

    def score(self, point: EvalPoint) -> None:
        """Take in a finite score; the epoch of the newest step is the current one.

        Replicates of a step are pooled (R15), so that best is not the luckiest of several looks.
        """
        epoch, key = point.epoch_key or "", (point.attempt, point.step)
        scores = self.scores_of.setdefault(epoch, {})
        best = self.bests.get(epoch)
        if key not in scores:
            scores[key] = point.score
            if best is None or point.score > best.score:
                self.bests[epoch] = point
        else:
            many = self.replicated.get((epoch, *key), 1)
            self.replicated[epoch, *key] = many + 1
            scores[key] += (point.score - scores[key]) / (many + 1)
            self.bests[epoch] = self._best_of(scores, point, best)
        if key >= self.newest:
            self.newest, self.epoch = key, epoch

    @staticmethod
    def _best_of(
        scores: Mapping[tuple[int, int], float], point: EvalPoint, best: EvalPoint | None
    ) -> EvalPoint:
        """Return the best of an epoch after a step in it was scored once more."""
        attempt, step = max(scores, key=lambda key: (scores[key], -key[1], -key[0]))
        names = {(one.attempt, one.step): one.checkpoint for one in (best, point) if one}
        return msgspec.structs.replace(
            point,
            attempt=attempt,
            step=step,
            score=scores[attempt, step],
            checkpoint=names.get((attempt, step)),
        )


class Ledger:
    """Records of all jobs of the log, ended ones included."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobRecord] = {}
        self.sequence = 0
        self.stops = 0
        self.policies: list[tuple[int, str]] = []

    def note(self, entry: Entry, live: Mapping[str, JobView]) -> None:
        """Take in one entry; ``live`` is the picture after it."""
        self.sequence = entry.sequence
        event = entry.event
        match event:
            case JobSubmitted():
                self._submitted(event, live)
            case EvalReported():
                self._reported(event)
            case JobStarted(job=name):
                record = self.jobs[name]
                record.starts += 1
                record.began = record.launched
                record.pending = _without(record.pending, Start)
            case JobPreempted(job=name):
                record = self.jobs[name]
                record.pending = _without(record.pending, (Start, Preempt))
            case CheckpointSaved():
                self.jobs[event.job].saved[event.step] = event.checkpoint
            case JobEnded(job=name):
                record = self.jobs[name]
                record.outcome, record.ended_at = event.outcome, event.time
                record.pending = {}
                record.reports = set()
            case OperatorCommanded(command="configure"):
                self.policies.append((entry.sequence, event.note))
            case OperatorCommanded(command="undo", job=name):
                record = self.jobs[name]
                record.outcome, record.stop, record.stop_key = None, None, ""
            case _:
                pass
        for index, action in enumerate(entry.actions):
            self._promised(key_of(entry.sequence, index), action, event.time)

    def _submitted(self, event: JobSubmitted, live: Mapping[str, JobView]) -> None:
        old = self.jobs.get(event.job.id)
        record = JobRecord(event.job)
        record.view = live.get(event.job.id)
        if old is not None:  # reopened after an undo: runs are counted on, best never gets worse
            record.starts, record.saved = old.starts, old.saved
            record.launched, record.began = old.launched, old.launched
            record.bests, record.scores_of, record.epoch = old.bests, old.scores_of, old.epoch
            record.replicated = old.replicated
        self.jobs[event.job.id] = record

    def _reported(self, event: EvalReported) -> None:
        record = self.jobs[event.job]
        if record.outcome is None:
            record.reports.add(report_identity(event.metric, event.point))
        if event.metric:
            count = record.other_metrics.get(event.metric, 0)
            record.other_metrics[event.metric] = count + 1
            return
        if record.metric_reports:
            gap = event.time - record.last_metric_at
            record.longest_gap_s = max(record.longest_gap_s, gap)
        record.metric_reports += 1
        record.last_metric_at = event.time
        if math.isfinite(event.point.score):
            record.score(event.point)

    def _promised(self, key: str, action: Action, time: float) -> None:
        match action:
            case Start():
                record = self.jobs[action.job]
                record.launched += 1
                record.pending[key] = action
            case Preempt():
                self.jobs[action.job].pending[key] = action
            case Stop():
                record = self.jobs[action.job]
                record.pending = {key: action}  # what was under way before is void
                record.stop, record.stop_key, record.stopped_at = action, key, time
                self.stops += 1
            case RequestEval():
                repeats = self.jobs[action.job].repeats
                for step in action.steps:
                    repeats[step] = repeats.get(step, 0) + 1
            case Advise():
                record = self.jobs[action.job]
                record.advice = action
                if math.isnan(record.advice_gpu_s) and record.view is not None:
                    record.advice_gpu_s = record.view.attained_gpu_s(time)
            case _:
                pass

    def live(self) -> list[JobRecord]:
        """Return the jobs that have not ended, in order of submission."""
        return [record for record in self.jobs.values() if record.outcome is None]

    def checkpoint_at(self, job: str, step: int) -> str | None:
        """Return the name of the checkpoint saved at a step, if any."""
        return self.jobs[job].saved.get(step)


def _without(
    pending: dict[str, Action], kinds: type[Action] | tuple[type[Action], ...]
) -> dict[str, Action]:
    return {key: action for key, action in pending.items() if not isinstance(action, kinds)}


def with_checkpoint(point: EvalPoint, name: str | None) -> EvalPoint:
    """Return the evaluation with its checkpoint named, where the report left it out."""
    if name is None or point.checkpoint is not None:
        return point
    return msgspec.structs.replace(point, checkpoint=name)
