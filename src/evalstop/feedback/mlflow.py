"""Poll a run's metrics on an MLflow tracking server, or in a store that MLflow itself opens.

``mlflow:URI?run=ID`` names the run. Without ``run`` it is the newest one whose tag
``evalstop.job_id`` is the job's id; a training script sets that tag, or the launcher does.

A history that may be incomplete is held back and told, for as long as it is: no stop from part of
a history (R27). Repeats do no harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalstop.core.points import EvalPoint
from evalstop.feedback.sibling import Siblings
from evalstop.traces.mlflow import Address, curve_of_history, store_of
from evalstop.traces.siblings import SUFFIX, places_of

if TYPE_CHECKING:
    from evalstop.feedback.scores import Watch
    from evalstop.ports import Reading
    from evalstop.traces.mlflow import Run, Server
    from evalstop.traces.series import Curve

__all__ = ["JOB_TAG", "MlflowPoll"]

JOB_TAG = "evalstop.job_id"
"""Tag of a run that says whose it is."""


class MlflowPoll:
    """Readings of one job's run.

    Args:
        address: ``mlflow:URI``, with ``run`` or ``experiment`` where wanted.
        watch: what of its metrics counts.
        server: how to reach it; by the address unless a test says otherwise.

    Raises:
        MissingExtraError: the URI is no server's, and MLflow is not installed.

    Attributes:
        names: metrics seen so far, watched or not.
        problems: histories that are held back, and why.
    """

    def __init__(self, address: str, watch: Watch, server: Server | None = None) -> None:
        self._address = Address.parse(address)
        self._store = server or store_of(self._address.uri)
        self._watch = watch
        self._told: dict[str, int] = {}
        self._siblings = Siblings()
        self.names: set[str] = set()
        self.problems: list[str] = []

    def readings(self) -> list[Reading]:
        """Return what the run has reported beyond what was returned.

        Raises:
            ReadError: the server does not answer as it should.
        """
        run = self._run()
        if run is None:
            return []
        self.names |= run.newest.keys()
        self.problems = []
        found: list[Reading] = []
        for name, metric in self._watch.wanted(run.newest):
            found += self._news(run, name, metric)
        return found

    def _run(self) -> Run | None:
        tag = "" if self._address.run else f"tags.`{JOB_TAG}` = '{self._watch.job}'"
        runs = self._store.runs(self._address, tag)
        return runs[0] if runs else None

    def _news(self, run: Run, name: str, metric: str) -> list[Reading]:
        curve = self._curve(run, metric)
        sibling = f"{metric}{SUFFIX}"
        errors = self._curve(run, sibling) if curve and sibling in run.newest else None
        if curve is None or (errors is None and sibling in run.newest):
            return []
        places = places_of(curve)
        stated = {} if errors is None else dict(zip(places_of(errors), errors.scores, strict=True))
        stderrs = self._siblings.matched(metric, places, stated)
        if len(stderrs) == self._told.get(metric):
            return []
        self._told[metric] = len(stderrs)
        return [
            self._watch.reading(
                name,
                EvalPoint(
                    step=step, score=score, stderr=stderr, attempt=self._watch.attempt + attempt
                ),
            )
            for (attempt, step), score, stderr in zip(places, curve.scores, stderrs, strict=False)
        ]

    def _curve(self, run: Run, metric: str) -> Curve | None:
        """Return a metric's whole history; None, and the reason among `problems`, if partial."""
        history = self._store.history(run, metric)
        if history.partial:
            self.problems.append(f"{metric}: held back, the history is partial: {history.partial}")
            return None
        return curve_of_history(history, source=self._address.uri, trace_id=run.id, metric=metric)
