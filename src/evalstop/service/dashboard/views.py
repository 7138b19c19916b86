"""What each page shows, as plain data for its template."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from evalstop.core.actions import Stop
from evalstop.core.events import OperatorCommanded
from evalstop.core.job import Outcome
from evalstop.service.dashboard.pictures import Dot, cumulative, curve, sparkline
from evalstop.service.explain import own_words, sign_of_job
from evalstop.service.views import saved_gpu_hours

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evalstop.ports import Entry
    from evalstop.service.ledger import JobRecord
    from evalstop.service.platform import Platform

__all__ = ["audit_page", "cluster_page", "job_page", "jobs_page", "policies_page", "savings_page"]

_MOST_JOBS = 500
_AUDIT_ENTRIES = 20_000
_AUDIT_ROWS = 300
_BUSY = ("starting", "running", "preempting", "releasing")


def cluster_page(platform: Platform, tenant: str | None) -> dict[str, Any]:
    """Return GPUs by state, the jobs on them and the queue; one tenant's jobs for a tenant."""
    jobs = platform.jobs(tenant=tenant, limit=_MOST_JOBS)
    shown = {
        "running": [_row(platform, job) for job in jobs if job["phase"] in _BUSY],
        "waiting": [job for job in reversed(jobs) if job["phase"] == "waiting"],
        "gpus": None,
        "bar": [],
        "troubles": [],
    }
    return shown if tenant is not None else shown | _whole_cluster(platform)


def _whole_cluster(platform: Platform) -> dict[str, Any]:
    """Return what no single tenant may see."""
    gpus = platform.cluster()["gpus"]
    states = [(phase, gpus["held"].get(phase, 0)) for phase in _BUSY]
    states += [("free", gpus["free"]), ("quarantined", len(gpus["quarantined"]))]
    total = sum(count for _, count in states) or 1
    return {
        "gpus": gpus,
        "bar": [(name, count, 100.0 * count / total) for name, count in states if count],
        "troubles": platform.troubles(),
    }


def jobs_page(platform: Platform, tenant: str | None, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the newest jobs, filtered by tenant and by phase or outcome."""
    chosen = tenant or query.get("tenant") or None
    phase = query.get("phase") or None
    jobs = platform.jobs(tenant=chosen, phase=phase, limit=_MOST_JOBS)
    every = platform.jobs(tenant=tenant, limit=_MOST_JOBS)
    return {
        "jobs": [_row(platform, job) for job in jobs],
        "tenants": sorted({job["tenant"] for job in every}),
        "tenant": chosen or "",
        "phase": phase or "",
        "phases": ["waiting", *_BUSY, *(outcome.value for outcome in Outcome)],
        "most": _MOST_JOBS,
    }


def job_page(platform: Platform, name: str) -> dict[str, Any]:
    """Return one job: its curve, checkpoints and decisions in words."""
    job = platform.job(name)
    dots = [
        Dot(point["step"], point["score"], point.get("stderr"), point.get("proxy"))
        for point in job["series"]
        if point["score"] is not None
    ]
    record = platform.record(name)
    best_step = job["best"]["step"] if job["best"] else None
    return {
        "job": job,
        "picture": curve(
            dots,
            metric=job["metric"] or "score",
            best_step=best_step,
            # The curve of a stopped job ends with the evaluation that stopped it.
            stop_step=dots[-1].step if dots and record.stop is not None else None,
        ),
        "has_proxy": any(dot.proxy is not None for dot in dots),
        "output": platform.log_tail(name, bytes_=4000),
        "can_order": job["outcome"] is None,
        "can_undo": job["outcome"] in {Outcome.STOPPED_BY_POLICY.value, Outcome.CANCELLED.value},
    }


def savings_page(platform: Platform) -> dict[str, Any]:
    """Return what was saved, by tenant and over time."""
    moments = [
        (record.stopped_at, saved_gpu_hours(record) or 0.0)
        for record in list(platform.controller.ledger.jobs.values())
        if record.outcome is Outcome.STOPPED_BY_POLICY and math.isfinite(record.stopped_at)
    ]
    return platform.savings() | {"picture": cumulative(moments, now=platform.controller.now())}


def policies_page(platform: Platform) -> dict[str, Any]:
    """Return the policies that were in force, newest first, with the entry each began at."""
    return {"policies": list(reversed(platform.controller.ledger.policies))}


def audit_page(platform: Platform) -> dict[str, Any]:
    """Return the newest orders of people and stops, from the last entries of the log."""
    after = max(0, platform.controller.sequence - _AUDIT_ENTRIES)
    rows: list[dict[str, Any]] = []
    for entry in platform.parts.store.read(after):
        rows += _audit_rows(platform, entry)
    return {"rows": rows[::-1][:_AUDIT_ROWS], "entries": _AUDIT_ENTRIES, "most": _AUDIT_ROWS}


def _audit_rows(platform: Platform, entry: Entry) -> list[dict[str, Any]]:
    event = entry.event
    head = {"sequence": entry.sequence, "at": event.time}
    rows: list[dict[str, Any]] = []
    if isinstance(event, OperatorCommanded):
        rows.append(
            head
            | {
                "who": event.actor,
                "what": event.command,
                "job": event.job,
                "note": event.note.partition("\n")[0],
            }
        )
    rows += [
        head
        | {
            "who": action.author,
            "what": "stop",
            "job": action.job,
            "note": f"{action.rule}: {_reason(platform, action)}",
        }
        for action in entry.actions
        if isinstance(action, Stop)
    ]
    return rows


def _reason(platform: Platform, stop: Stop) -> str:
    return own_words(stop.verdict, sign_of_job(platform.record(stop.job).spec))


def _row(platform: Platform, job: dict[str, Any]) -> dict[str, Any]:
    """Return a job with its sparkline and how near its verdict is to the alarm."""
    record = platform.record(job["id"])
    sign = sign_of_job(record.spec)
    dots = [Dot(step, sign * score) for step, score in sorted(record.scores.items())]
    best_step = job["best"]["step"] if job["best"] else None
    verdict = job["verdict"] or {}
    statistic, threshold = verdict.get("statistic"), verdict.get("threshold")
    nearness = min(1.0, max(0.0, statistic / threshold)) if statistic and threshold else 0.0
    return job | {
        "spark": sparkline(dots, best_step=best_step, stop_step=_stop_step(record)),
        "nearness": nearness,
    }


def _stop_step(record: JobRecord) -> float | None:
    """Return the step of the last evaluation before a stop, None without one."""
    if record.stop is None or not record.scores:
        return None
    return max(record.scores)
