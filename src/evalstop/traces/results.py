"""What a replay found: one record a run and rule, and a summary a rule."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, to_builtins

from evalstop.traces.series import Series, SkippedPoint

__all__ = [
    "FEWEST",
    "TOO_FEW",
    "Replay",
    "Replayed",
    "RuleSummary",
    "SourceError",
    "notes_on",
    "oddities",
    "summarise",
]

FEWEST = 3
"""Evaluations that a rise and a fall take."""

TOO_FEW = f"fewer than {FEWEST} evaluations: too few to see a decline"


class Replayed(Struct, frozen=True, kw_only=True):
    """One rule on one run; scores in the metric's own units and sense.

    Attributes:
        trace_id, source, metric, direction, job_type: which run.
        rule: the SPEC as given.
        n_evals: evaluations with a finite score, replicates of one step counted once.
        fired: whether the rule would have stopped the run.
        stop_step: step of the evaluation that raised the alarm, None if none did.
        stop_index: its place among the ``n_evals`` evaluations, from 0.
        best_step: step of the best score of the whole run (ties: the earliest).
        best_score: that score.
        best_score_at_stop: best score by the stop, or of the whole run where nothing stopped.
        final_score: the last finite score.
        saved_fraction: (last step - stop step) / last step; 0 where nothing stopped.
        regret: how much better the best of the whole run is than the best at the stop, >= 0.
        statistic: the rule's evidence at the stop, or at the end.
        threshold: what it is compared with.
        state: ok, suspect, alarm, blind or diverged.
        reason: the verdict in one sentence.
        note: what to know about this result, empty if nothing.
        skipped_points: evaluations that took no part, and why.
        remarks: what side signals had done by a stop, in words; no rule reads them.
    """

    trace_id: str
    source: str
    metric: str
    direction: str
    job_type: str
    rule: str
    n_evals: int
    fired: bool
    stop_step: int | None
    stop_index: int | None
    best_step: int | None
    best_score: float | None
    best_score_at_stop: float | None
    final_score: float | None
    saved_fraction: float
    regret: float
    statistic: float
    threshold: float
    state: str
    reason: str
    note: str = ""
    skipped_points: tuple[SkippedPoint, ...] = ()
    remarks: tuple[str, ...] = ()


class RuleSummary(Struct, frozen=True, kw_only=True):
    """One rule on all runs; the means are over all of them, stopped or not.

    Attributes:
        runs: how many there are.
        fired: how many the rule stops.
        saved_fraction_mean: mean part of a run's steps that is saved; 0 without runs.
        regret_mean: mean regret, in the metrics' units; 0 without runs.
        regret_max: largest regret; 0 without runs.
    """

    runs: int
    fired: int
    saved_fraction_mean: float
    regret_mean: float
    regret_max: float


class SourceError(Struct, frozen=True, kw_only=True):
    """A source, or a part of one, that could not be read."""

    source: str
    message: str


class Replay(Struct, frozen=True, kw_only=True):
    """What a replay found.

    Attributes:
        results: every rule on every run, rule by rule.
        summary: by SPEC.
        series: the runs that were judged.
        errors: what could not be read.
        warnings: what people should know.
    """

    results: tuple[Replayed, ...]
    summary: Mapping[str, RuleSummary]
    series: tuple[Series, ...] = ()
    errors: tuple[SourceError, ...] = ()
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the report as the command prints it: all but the runs' points."""
        return {
            "results": to_builtins(self.results),
            "summary": to_builtins(self.summary),
            "errors": to_builtins(self.errors),
            "warnings": list(self.warnings),
        }


def oddities(results: Sequence[Replayed]) -> list[str]:
    """Return what people should know of the runs' evaluations, in a sentence a kind.

    Args:
        results: one rule's, so that each run is there once.
    """
    said: list[str] = []
    kinds = Counter(_kind(point) for result in results for point in result.skipped_points)
    if kinds:
        runs = sum(bool(result.skipped_points) for result in results)
        listed = ", ".join(f"{kind} ({count})" for kind, count in kinds.most_common())
        said.append(
            f"{_counted(kinds.total(), 'evaluation')} of {_counted(runs, 'run')} left out or "
            f"merged: {listed}; skipped_points of --json names each"
        )
    short = sum(result.n_evals < FEWEST for result in results)
    if short:
        said.append(
            f"{_counted(short, 'run')} of {len(results)} with fewer than {FEWEST} usable "
            "evaluations: too few to see a decline"
        )
    return said


def notes_on(spec: str, results: Sequence[Replayed]) -> list[str]:
    """Return what to know of one rule's verdicts, such as that it had nothing to judge."""
    notes = Counter(note for r in results if (note := r.note.removesuffix(TOO_FEW).rstrip("; ")))
    return [
        f"rule {spec!r}, {_counted(count, 'run')} of {len(results)}: {note}"
        for note, count in notes.items()
    ]


def _kind(point: SkippedPoint) -> str:
    """Return a reason without what is one point's own: its step, its value."""
    return point.reason.replace(f"step {point.step} is", "the step is").partition(":")[0]


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def summarise(results: Sequence[Replayed]) -> RuleSummary:
    """Return the summary of one rule's results; all zeros for none."""
    runs = len(results)
    regrets = [result.regret for result in results]
    return RuleSummary(
        runs=runs,
        fired=sum(result.fired for result in results),
        saved_fraction_mean=math.fsum(r.saved_fraction for r in results) / max(1, runs),
        regret_mean=math.fsum(regrets) / max(1, runs),
        regret_max=max(regrets, default=0.0),
    )
