"""What is doubtful about the score a job is judged by: said aloud, never acted upon.

A job that is blind, stale or judged by a number it was trained on goes on (R30); people must see
it. All of it is read off the ledger, so that a restart says the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalstop.core.job import Phase
from evalstop.core.points import State
from evalstop.traces.names import is_trained_reward, suggested, unknown_metric

if TYPE_CHECKING:
    from collections.abc import Iterable

    from evalstop.core.job import JobSpec
    from evalstop.service.ledger import JobRecord
    from evalstop.service.live_watches import Watched

__all__ = ["blindness", "doubts_of", "doubts_of_live", "staleness", "state_of"]

BLIND_AFTER = 3
"""Reports of one other metric, and none of the watched one, after which a job is blind."""

STALE_AFTER_GAPS = 3.0
STALE_AFTER_S = 60.0
"""A job is stale when no score came for thrice its longest pause, and a minute at least."""

_FEWEST_REPORTS = 3


def doubts_of(spec: JobSpec) -> list[str]:
    """Return what a submission should be looked at again for, in sentences.

    Names only hint (R07): nothing is refused or changed for them.
    """
    metric = spec.labels.get("metric", "")
    direction = spec.labels.get("direction", "max")
    found = []
    if metric and is_trained_reward(metric):
        found.append(
            f"{metric!r} has the name of a reward that trainers optimise: it rises while quality "
            "falls; watch a held-out metric instead"
        )
    hint = suggested(metric) if metric else None
    if hint is not None and hint != direction:
        found.append(
            f"{metric!r} reads like a metric with direction {hint!r}, but the job was submitted "
            f"with {direction!r}: check which scores are better"
        )
    return found


def blindness(record: JobRecord) -> str:
    """Return a sentence for a job whose own metric never came while others did; "" otherwise."""
    most = max(record.other_metrics.values(), default=0)
    if record.metric_reports or most < BLIND_AFTER:
        return ""
    wanted = record.spec.labels.get("metric", "")
    if wanted:
        return f"blind: {unknown_metric(wanted, record.other_metrics)}"
    names = ", ".join(sorted(record.other_metrics))
    return f"blind: the job names no metric, and its reports are of others: {names}"


def staleness(record: JobRecord, now: float) -> str:
    """Return a sentence for a running job whose scores have ceased to come; "" otherwise."""
    view = record.view
    if record.outcome is not None or view is None or view.phase is not Phase.RUNNING:
        return ""
    if record.metric_reports < _FEWEST_REPORTS:
        return ""
    silent_s = now - max(record.last_metric_at, view.started_at)
    if silent_s <= max(STALE_AFTER_S, STALE_AFTER_GAPS * record.longest_gap_s):
        return ""
    return (
        f"stale: no score for {silent_s:.0f} s, the longest pause before was "
        f"{record.longest_gap_s:.0f} s; the job goes on unwatched"
    )


def doubts_of_live(records: Iterable[JobRecord], now: float) -> list[str]:
    """Return which jobs are blind or stale, in sentences."""
    return [
        f"job {record.spec.id!r} is {words}"
        for record in records
        if record.outcome is None and (words := blindness(record) or staleness(record, now))
    ]


def state_of(record: JobRecord, watch: Watched | None) -> str:
    """Return what a reporter is told of its job's verdict."""
    if watch is None:
        return "unwatched"
    return State.BLIND.value if blindness(record) else watch.verdict.state.value
