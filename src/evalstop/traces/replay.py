"""What would a rule have done to runs that are over?

Replay sends a run's history through the same `Watch` that EvalStop keeps for a job in a live or
simulated cluster: reports become events, one second a step, and the run stops at the first alarm.

Hindsight: ``stop-at`` needs a job's total service and ``loss-plateau`` its losses as they came.
A finished run tells both, so here progress is step / last step; a live job would have had an
estimate instead. Such results say so in their ``note``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace as altered

from evalstop.core.errors import InputError, MissingExtraError, ReadError
from evalstop.core.events import EvalReported, LossReported
from evalstop.core.job import JobView, Phase
from evalstop.core.series import pool
from evalstop.core.signals import remarks
from evalstop.detectors.never import Never
from evalstop.detectors.paired import Paired
from evalstop.policies.baselines import LossPlateau, StopAt
from evalstop.policies.evalstop import Watch
from evalstop.policies.rules import NamedRule, Rules
from evalstop.traces.quiet import quiet_evaluations
from evalstop.traces.results import (
    FEWEST,
    TOO_FEW,
    Replay,
    Replayed,
    RuleSummary,
    SourceError,
    notes_on,
    oddities,
    summarise,
)
from evalstop.traces.selection import select
from evalstop.traces.series import Direction, Series, SkippedPoint
from evalstop.traces.sources import read_source

if TYPE_CHECKING:
    from pathlib import Path

    from evalstop.core.points import EvalPoint, Verdict

__all__ = [
    "first_alarm",
    "judge",
    "replay",
    "replay_series",
]

_HINDSIGHT = {
    StopAt: "hindsight: progress is step / last step of the finished run",
    LossPlateau: "hindsight: the losses the file holds, in order of step",
}
_NO_LOSS = "the file holds no training loss, which this rule judges"
_NO_ITEMS = "the file holds no scores of single items, which this rule compares"


class Alarm(NamedTuple):
    """Where a rule first fires: the number of the event, and the verdict there."""

    event: int
    verdict: Verdict


def replay(
    sources: str | Path | Sequence[str | Path],
    rules: Rules | Sequence[Rules],
    *,
    metric: str | None = None,
    direction: Direction | None = None,
    job_type: str | None = None,
) -> Replay:
    """Replay every run of the sources under every rule.

    Args:
        sources: files, folders, or ``mlflow:URI``; see docs for the formats.
        rules: what `evalstop.parse_rule` returns, one or several.
        metric: which metric to watch, in any of its spellings.
        direction: "max" or "min", where the sources do not state it.
        job_type: in place of what the sources say.

    Raises:
        InputError: nothing could be read, or the metric is unknown.
        MissingExtraError: a format needs an optional dependency.

    Example:
        >>> from evalstop import parse_rule, replay
        >>> report = replay("runs.csv", parse_rule("paper"), direction="max")  # doctest: +SKIP
        >>> report.summary["paper"].fired  # doctest: +SKIP
        3
    """
    listed = [sources] if isinstance(sources, str) or not isinstance(sources, Sequence) else sources
    curves = []
    errors: list[ReadError] = []
    missing: MissingExtraError | None = None
    for source in listed:
        try:
            loaded = read_source(source, metric)
        except ReadError as error:
            errors.append(error)
            continue
        except MissingExtraError as error:
            missing = error
            errors.append(ReadError(str(source), str(error)))
            continue
        curves += loaded.curves
        errors += loaded.errors
    if not curves:
        raise _nothing_readable(errors) if missing is None or errors[1:] else missing
    chosen = select(curves, metric=metric, direction=direction, job_type=job_type)
    errors += chosen.errors
    if not chosen.series:
        raise _nothing_readable(errors)
    wanted = [rules] if isinstance(rules, Rules) else list(rules)
    report = replay_series(chosen.series, wanted)
    return altered(
        report,
        errors=tuple(SourceError(source=e.source, message=e.message) for e in errors),
        warnings=(*chosen.warnings, *report.warnings),
    )


def replay_series(series: Sequence[Series], rules: Iterable[Rules]) -> Replay:
    """Replay series under rules; pure."""
    results: list[Replayed] = []
    summary: dict[str, RuleSummary] = {}
    warnings: dict[str, None] = {}
    for rule in rules:
        spec = rule.spec or repr(rule)
        if spec in summary:
            continue
        named = [rule.named(one.job_type) for one in series]
        quiet = quiet_evaluations(series, [one.rule for one in named])
        of_rule = [
            judge(one, by_type, spec, quiet=silent)
            for one, by_type, silent in zip(series, named, quiet, strict=True)
        ]
        results += of_rule
        summary[spec] = summarise(of_rule)
        warnings |= dict.fromkeys(notes_on(spec, of_rule))
        if spec != "none":
            kinds = {one.job_type for one in series if _is_never(rule, one.job_type)}
            for kind in sorted(kinds):
                warnings[
                    f"rule {spec!r} has no rule for job type {kind!r}: nothing is stopped there "
                    "(--job-type says what the runs are)"
                ] = None
    of_one_rule = results[: len(series)]
    return Replay(
        results=tuple(results),
        summary=summary,
        series=tuple(series),
        warnings=(*oddities(of_one_rule), *warnings),
    )


def judge(series: Series, named: NamedRule, spec: str, *, quiet: int = 0) -> Replayed:
    """Return what one rule would have done to one run.

    Args:
        series: the run.
        named: the rule for its type.
        spec: what the rule is called in the result.
        quiet: how many evaluations are known to raise no alarm; see `quiet_evaluations`.
    """
    points, repeats = _in_order(series.points)
    finite = [point for point in points if math.isfinite(point.score)]
    last_step = max((point.step for point in points), default=0)
    watch = Watch(named)
    events = _events(series, points, with_losses=watch.judge is not None)
    alarm = None
    if not series.partial:
        alarm = first_alarm(watch, events, _job(series, last_step), quiet=quiet)
    verdict = watch.verdict if alarm is None else alarm.verdict
    stop = None if alarm is None else _stop_point(events, alarm.event, finite)
    best = _best(finite)
    at_stop = watch.history.best if alarm is not None else best
    regret = _regret(finite, at_stop) if alarm is not None else 0.0
    return Replayed(
        trace_id=series.trace_id,
        source=series.source,
        metric=series.metric,
        direction=series.direction,
        job_type=series.job_type,
        rule=spec,
        n_evals=len(finite),
        fired=alarm is not None,
        stop_step=None if stop is None else stop.step,
        stop_index=None if stop is None else finite.index(stop),
        best_step=None if best is None else best.step,
        best_score=None if best is None else series.raw(best.score),
        best_score_at_stop=None if at_stop is None else series.raw(at_stop.score),
        final_score=series.raw(finite[-1].score) if finite else None,
        saved_fraction=0.0 if stop is None or not last_step else 1.0 - stop.step / last_step,
        regret=regret,
        statistic=verdict.statistic,
        threshold=verdict.threshold,
        state=verdict.state.value,
        reason=_reason(series, verdict, named),
        note=_note(series, watch, named),
        skipped_points=(*series.skipped, *repeats, *_not_finite(points)),
        remarks=() if alarm is None else remarks(watch.history.series),
    )


def first_alarm(
    watch: Watch,
    events: Iterable[EvalReported | LossReported],
    job: JobView,
    *,
    quiet: int = 0,
) -> Alarm | None:
    """Feed events to a job's watch, as EvalStop does, until its rule fires.

    The first ``quiet`` events are evaluations that are known to raise no alarm.
    """
    jobs = {job.id: job}
    for number, event in enumerate(events):
        if number < quiet and isinstance(event, EvalReported):
            watch.history.absorb(event.point)
            continue
        verdict = watch.hear(event, jobs)
        if verdict.alarm:
            return Alarm(number, verdict)
    return None


def _in_order(points: Sequence[EvalPoint]) -> tuple[Sequence[EvalPoint], list[SkippedPoint]]:
    """Return one point a step of an attempt and epoch, and what was merged into it.

    Exact repeats count once, replicates are pooled (R15), as `History` would do one by one.
    """
    steps = [(point.attempt, point.step) for point in points]
    if all(a < b for a, b in itertools.pairwise(steps)):
        return points, []
    notes: list[SkippedPoint] = []
    unique: dict[tuple[object, ...], EvalPoint] = {}
    for point in points:
        score = point.score if math.isfinite(point.score) else None
        key = (point.attempt, point.step, point.epoch_key, point.eval_id, score, point.stderr)
        if key in unique:
            notes.append(SkippedPoint(step=point.step, reason="repeat of the same report"))
        unique.setdefault(key, point)
    pooled = pool(unique.values())
    if len(pooled) < len(unique):
        kept = {(p.attempt, p.step, p.epoch_key) for p in pooled}
        for point in unique.values():
            identity = (point.attempt, point.step, point.epoch_key)
            if identity in kept:
                kept.remove(identity)
            else:
                reason = "another score for the same step: pooled with it"
                notes.append(SkippedPoint(step=point.step, reason=reason))
    return pooled, notes


def _events(
    series: Series, points: Sequence[EvalPoint], *, with_losses: bool
) -> list[EvalReported | LossReported]:
    """Return the run's events, one second a step; a loss comes before the score of its step."""
    name = series.trace_id
    evals = [EvalReported(time=float(p.step), job=name, point=p) for p in points]
    if not with_losses or not series.losses:
        return list(evals)
    losses = [LossReported(time=float(s), job=name, step=s, loss=x) for s, x in series.losses]
    return sorted([*losses, *evals], key=lambda event: event.time)


def _job(series: Series, last_step: int) -> JobView:
    return JobView(
        id=series.trace_id,
        tenant="",
        job_type=series.job_type,
        gpus=1,
        min_gpus=None,
        max_gpus=None,
        estimated_s=float(max(1, last_step)),
        labels={},
        submitted_at=0.0,
        phase=Phase.RUNNING,
        held_gpus=1,
        attempt=1,
        started_at=0.0,
        first_started_at=0.0,
    )


def _stop_point(
    events: Sequence[EvalReported | LossReported], number: int, finite: Sequence[EvalPoint]
) -> EvalPoint | None:
    """Return the evaluation at or just before the event that fired."""
    for event in reversed(events[: number + 1]):
        if isinstance(event, EvalReported) and math.isfinite(event.point.score):
            return event.point
    return finite[0] if finite else None


def _best(points: Sequence[EvalPoint]) -> EvalPoint | None:
    return max(points, key=lambda point: (point.score, -point.step), default=None)


def _regret(finite: Sequence[EvalPoint], at_stop: EvalPoint | None) -> float:
    """Return how much better the run got later, among scores that compare with the stop's."""
    if at_stop is None:
        return 0.0
    comparable = (point.score for point in finite if point.epoch_key == at_stop.epoch_key)
    return max(0.0, max(comparable, default=at_stop.score) - at_stop.score)


def _reason(series: Series, verdict: Verdict, named: NamedRule) -> str:
    if series.partial:
        return f"partial history, never a reason to stop: {series.partial}"
    if isinstance(named.rule, Never):
        return f"nothing is stopped: no rule for job type {series.job_type}"
    if math.isfinite(verdict.best_score):
        verdict = altered(verdict, best_score=series.raw(verdict.best_score))
    return verdict.reason


def _note(series: Series, watch: Watch, named: NamedRule) -> str:
    notes = [_HINDSIGHT.get(type(named.rule), "")]  # type: ignore[call-overload]  # any rule's type
    if isinstance(named.rule, LossPlateau) and not series.losses:
        notes.append(_NO_LOSS)
    if isinstance(named.rule, Paired) and all(point.items is None for point in series.points):
        notes.append(_NO_ITEMS)
    if watch.unwatched:
        notes.append(f"the rule failed: {watch.unwatched}")
    if len(series.points) < FEWEST:
        notes.append(TOO_FEW)
    return "; ".join(filter(None, notes))


def _not_finite(points: Iterable[EvalPoint]) -> list[SkippedPoint]:
    return [
        SkippedPoint(step=point.step, reason="the score is not a finite number")
        for point in points
        if not math.isfinite(point.score)
    ]


def _is_never(rules: Rules, job_type: str) -> bool:
    return isinstance(rules.for_type(job_type), Never)


def _nothing_readable(errors: Sequence[ReadError]) -> InputError:
    if len(errors) == 1:
        return errors[0]
    lines = "\n  ".join(str(error) for error in errors) or "no source was given"
    return InputError(f"nothing could be read:\n  {lines}")
