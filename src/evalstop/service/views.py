"""What people and programs see of the platform: plain data, read from the picture and ledger."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from evalstop.core.job import Outcome, Phase
from evalstop.core.points import State
from evalstop.core.signals import remarks
from evalstop.service.doubts import blindness, doubts_of, staleness
from evalstop.service.explain import own_words, sign_of_job

if TYPE_CHECKING:
    from evalstop.service.controller import Controller
    from evalstop.service.ledger import JobRecord
    from evalstop.service.live_watches import Watched

__all__ = ["cluster_view", "finite", "job_view", "savings_view"]

_SECONDS_AN_HOUR = 3600.0


def finite(value: float | None) -> float | None:
    """Return a number JSON can hold, None for NaN and infinity."""
    return value if value is not None and math.isfinite(value) else None


def job_view(
    record: JobRecord, watch: Watched | None, *, now: float, series: bool = False
) -> dict[str, Any]:
    """Return one job as plain data; scores in the metric's own direction.

    Args:
        record: what the shell knows of it.
        watch: its rule and curve, None where it is not watched.
        now: the time to measure running service by.
        series: with every evaluation that counts.
    """
    spec, view = record.spec, record.view
    sign = sign_of_job(spec)
    shown: dict[str, Any] = {
        "id": spec.id,
        "tenant": spec.tenant,
        "job_type": spec.job_type,
        "metric": spec.labels.get("metric", ""),
        "direction": spec.labels.get("direction", "max"),
        "labels": dict(spec.labels),
        "gpus": spec.gpus,
        "phase": _phase(record),
        "outcome": record.outcome.value if record.outcome else None,
        "attempt": record.starts,
        "estimated_s": spec.estimated_s,
        "ended_at": finite(record.ended_at),
        "best": _best(record, sign),
        "verdict": _verdict(record, watch, sign),
        "warnings": _warnings(record, now),
        "stop": _stop(record),
        "advice": record.advice.note if record.advice and record.outcome is None else "",
        "gpu_hours_saved": saved_gpu_hours(record),
    }
    if view is not None:
        shown |= {
            "submitted_at": view.submitted_at,
            "started_at": finite(view.first_started_at),
            "held_gpus": view.held_gpus,
            "evals_seen": view.evals_seen,
            "last_eval_at": finite(view.last_eval_at),
            "service_s": view.attained_s(now),
            "gpu_hours": view.attained_gpu_s(now) / _SECONDS_AN_HOUR,
        }
    if series:
        shown["series"] = _series(watch, sign)
        shown["checkpoints"] = [
            {"step": step, "checkpoint": name} for step, name in sorted(record.saved.items())
        ]
    return shown


def _phase(record: JobRecord) -> str:
    if record.outcome is not None or record.view is None:
        return Phase.ENDED.value
    return record.view.phase.value


def _best(record: JobRecord, sign: float) -> dict[str, Any] | None:
    best = record.best
    if best is None:
        return None
    name = best.checkpoint or record.saved.get(best.step)
    return {"step": best.step, "score": sign * best.score, "checkpoint": name}


def _warnings(record: JobRecord, now: float) -> list[str]:
    found = [*doubts_of(record.spec), blindness(record), staleness(record, now)]
    return [words for words in found if words]


def _verdict(record: JobRecord, watch: Watched | None, sign: float) -> dict[str, Any] | None:
    if watch is None:
        return None
    verdict = watch.verdict
    if blind := blindness(record):  # no evaluation was judged: what the rule says is nothing
        verdict = msgspec.structs.replace(verdict, state=State.BLIND, note=blind)
    words = own_words(verdict, sign)
    return {
        "state": verdict.state.value,
        "kind": verdict.kind.value,
        "statistic": finite(verdict.statistic),
        "threshold": finite(verdict.threshold),
        "reason": words,
        "rule": watch.spec,
        "unwatched": watch.unwatched,
        "remarks": list(remarks(watch.series)),
    }


def _series(watch: Watched | None, sign: float) -> list[dict[str, Any]]:
    if watch is None:
        return []
    return [
        {
            "step": point.step,
            "score": finite(sign * point.score),
            "stderr": finite(point.stderr),
            "proxy": finite(point.proxy),
            "checkpoint": point.checkpoint,
        }
        for point in watch.series
    ]


def _stop(record: JobRecord) -> dict[str, Any] | None:
    stop = record.stop
    if stop is None:
        return None
    return {
        "at": finite(record.stopped_at),
        "author": stop.author,
        "rule": stop.rule,
        "reason": own_words(stop.verdict, sign_of_job(record.spec)),
        "best_step": stop.best_step,
        "best_checkpoint": stop.best_checkpoint,
    }


def saved_gpu_hours(record: JobRecord) -> float | None:
    """Return GPU-hours that a stop saved by the job's own estimate; None without estimate."""
    stopped = record.outcome is Outcome.STOPPED_BY_POLICY
    if not stopped or record.view is None:
        return 0.0
    if record.spec.estimated_s is None:
        return None
    left = max(0.0, record.spec.estimated_s - record.view.service_s)
    return left * record.spec.gpus / _SECONDS_AN_HOUR


def would_have_saved(record: JobRecord) -> float:
    """Return GPU-hours an ended job used after the first advice to stop it."""
    view = record.view
    if record.outcome in {None, Outcome.STOPPED_BY_POLICY} or view is None:
        return 0.0
    if math.isnan(record.advice_gpu_s):
        return 0.0
    return max(0.0, view.gpu_seconds - record.advice_gpu_s) / _SECONDS_AN_HOUR


def savings_view(controller: Controller, *, price: float | None) -> dict[str, Any]:
    """Return what was saved, by tenant and in all, in GPU-hours and, with a price, in money.

    ``saved`` rests on each stopped job's own estimate; ``without_estimate`` counts the stops that
    have none and are not in it. ``advised`` is measured: what jobs used after the advice to stop.
    """
    now = controller.now()
    tenants: dict[str, dict[str, Any]] = {}
    for record in list(controller.ledger.jobs.values()):
        row = tenants.setdefault(
            record.spec.tenant,
            {
                "tenant": record.spec.tenant,
                "jobs": 0,
                "stops": 0,
                "without_estimate": 0,
                "gpu_hours_used": 0.0,
                "gpu_hours_saved": 0.0,
                "gpu_hours_advised": 0.0,
            },
        )
        row["jobs"] += 1
        if record.view is not None:
            row["gpu_hours_used"] += record.view.attained_gpu_s(now) / _SECONDS_AN_HOUR
        if record.outcome is Outcome.STOPPED_BY_POLICY:
            row["stops"] += 1
            saved = saved_gpu_hours(record)
            row["without_estimate"] += saved is None
            row["gpu_hours_saved"] += saved or 0.0
        row["gpu_hours_advised"] += would_have_saved(record)
    rows = [tenants[name] for name in sorted(tenants)]
    total = {
        name: sum(row[name] for row in rows)
        for name in (
            "jobs",
            "stops",
            "without_estimate",
            "gpu_hours_used",
            "gpu_hours_saved",
            "gpu_hours_advised",
        )
    }
    for row in (*rows, total):
        row["money_saved"] = None if price is None else price * row["gpu_hours_saved"]
    return {"tenants": rows, "total": total, "price_per_gpu_hour": price}


def cluster_view(controller: Controller, quarantined: tuple[str, ...]) -> dict[str, Any]:
    """Return GPUs by state, and how many jobs are in each phase."""
    view = controller.kernel.state.view
    phases: dict[str, int] = {}
    held: dict[str, int] = {}
    for job in list(view.jobs.values()):
        phases[job.phase.value] = phases.get(job.phase.value, 0) + 1
        if job.held_gpus:
            held[job.phase.value] = held.get(job.phase.value, 0) + job.held_gpus
    return {
        "now": controller.now(),
        "sequence": controller.sequence,
        "gpus": {
            "total": view.total_gpus,
            "free": view.free_gpus,
            "held": held,
            "quarantined": list(quarantined),
        },
        "jobs": phases,
        "ended": len(controller.kernel.state.ended),
    }
