"""``/metrics`` for Prometheus: counts of the whole platform, with label sets that cannot grow.

No label names a job, a tenant or a person: their number has no bound, and the page needs no
token. Who wants to know more asks the API.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI
from fastapi.responses import Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from evalstop.core.actions import Stop
from evalstop.core.events import EvalReported, JobEnded
from evalstop.core.job import Outcome, Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from evalstop.ports import Entry
    from evalstop.service.platform import Platform

__all__ = ["add_metrics"]

_ACTIONS = ("Start", "Preempt", "Resize", "Stop", "RequestEval", "RequestSave", "Advise", "WakeAt")


def add_metrics(app: FastAPI, platform: Platform) -> None:
    """Serve the platform's counts under ``/metrics``, without a token."""
    registry = CollectorRegistry()
    registry.register(_Collector(platform))
    router = APIRouter()

    @router.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        """Return the counts in Prometheus' text form."""
        text = await asyncio.to_thread(generate_latest, registry)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    app.include_router(router)


class _Collector:
    """Reads gauges when asked; counts actions, evaluations and ends from when it was made."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._actions: Counter[tuple[str, str]] = Counter()
        self._ends: Counter[str] = Counter()
        self._evals = 0
        platform.controller.listen(self._hear)

    def _hear(self, entry: Entry) -> None:
        event = entry.event
        if isinstance(event, EvalReported):
            self._evals += 1
        elif isinstance(event, JobEnded):
            self._ends[event.outcome.value] += 1
        for action in entry.actions:
            by_person = isinstance(action, Stop) and action.author != "policy"
            self._actions[type(action).__name__, "person" if by_person else "policy"] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield every family; each label has a fixed set of values."""
        cluster = self._platform.cluster()
        gpus = cluster["gpus"]
        by_state = {
            "free": gpus["free"],
            "quarantined": len(gpus["quarantined"]),
            **{phase: gpus["held"].get(phase, 0) for phase in _holding()},
        }
        yield _gauge("evalstop_gpus", "GPUs by state", "state", by_state)
        phases = {phase.value: cluster["jobs"].get(phase.value, 0) for phase in Phase}
        phases[Phase.ENDED.value] = cluster["ended"]
        yield _gauge("evalstop_jobs", "jobs by phase", "phase", phases)
        total = self._platform.savings()["total"]
        hours = {kind: total[f"gpu_hours_{kind}"] for kind in ("used", "saved", "advised")}
        yield _gauge("evalstop_gpu_hours", "GPU-hours used, saved, or advised", "kind", hours)
        yield _plain("evalstop_troubles", "things to fix now", len(self._platform.troubles()))
        yield _plain("evalstop_ready", "1 if reports are taken in", int(self._platform.ready()))
        yield _plain("evalstop_log_sequence", "entries in the log", cluster["sequence"])
        evals = CounterMetricFamily("evalstop_evals", "evaluations logged since the start")
        evals.add_metric([], self._evals)
        yield evals
        ends = CounterMetricFamily(
            "evalstop_ends", "jobs ended since the start", labels=["outcome"]
        )
        for outcome in Outcome:
            ends.add_metric([outcome.value], self._ends[outcome.value])
        yield ends
        actions = CounterMetricFamily(
            "evalstop_actions", "actions decided since the start", labels=["action", "author"]
        )
        for action in _ACTIONS:
            for author in ("policy", "person"):
                actions.add_metric([action, author], self._actions[action, author])
        yield actions


def _holding() -> tuple[str, ...]:
    return tuple(
        phase.value for phase in (Phase.STARTING, Phase.RUNNING, Phase.PREEMPTING, Phase.RELEASING)
    )


def _gauge(name: str, words: str, label: str, values: dict[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, words, labels=[label])
    for value, number in values.items():
        family.add_metric([value], number)
    return family


def _plain(name: str, words: str, number: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, words)
    family.add_metric([], number)
    return family
