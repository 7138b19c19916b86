"""EvalStop: world feedback around any base scheduler.

The paper's algorithm (arXiv 2606.04145). On an evaluation, update the job's rule; when it raises
the alarm, mark the job. On every event, stop each marked job, then let the base scheduler decide
on the rest. Our reading where the paper leaves room: the stop is issued at the alarm, and the
base places on the GPUs when their release is a fact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evalstop.core.actions import Action, Preempt, Resize, Start, Stop
from evalstop.core.cluster import MAY_BE_STOPPED
from evalstop.core.detector import Detector
from evalstop.core.events import EvalReported, JobEnded, JobPreempted, LossReported
from evalstop.core.history import History
from evalstop.core.points import State, Verdict
from evalstop.policies.rules import JobRule, NamedRule, Rule, Rules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evalstop.core.events import Event
    from evalstop.core.job import JobView
    from evalstop.core.policy import ClusterView, Policy

__all__ = ["EvalStop", "Watch"]

_PLACES = (Start, Preempt, Resize, Stop)


class Watch:
    """One job under its rule."""

    __slots__ = ("history", "judge", "judge_state", "spec", "unwatched", "verdict")

    def __init__(self, named: NamedRule) -> None:
        self.spec = named.spec
        rule = named.rule
        self.judge: JobRule[Any] | None = None if isinstance(rule, Detector) else rule
        self.judge_state: Any = None if self.judge is None else self.judge.begin()
        self.history: History[Any] = History(rule if isinstance(rule, Detector) else _BEST_ONLY)
        self.verdict = Verdict()
        self.unwatched = ""

    def hear(self, event: EvalReported | LossReported, job: JobView, now: float) -> Verdict:
        """Take in one event of the job and return the verdict.

        Fail open (R30): a rule that raises watches no further, and the job goes on.
        """
        if self.unwatched:
            return self.verdict
        try:
            verdict = self.verdict
            if isinstance(event, EvalReported):
                verdict = self.history.add(event.point)
            if self.judge is not None:
                self.judge_state, verdict = self.judge.judge(self.judge_state, event, job, now)
        except Exception as error:  # noqa: BLE001 -- whatever a rule raises must not cost a job
            self.unwatched = f"{type(error).__name__}: {error}"
            verdict = Verdict(state=State.BLIND, note=f"the rule failed: {self.unwatched}")
        self.verdict = verdict
        return verdict

    def stop(self, job: str) -> Stop:
        """Return the order to stop the job, naming the checkpoint to keep."""
        best = self.history.best_saved or self.history.best
        return Stop(
            job=job,
            rule=self.spec,
            verdict=self.verdict,
            best_step=-1 if best is None else best.step,
            best_checkpoint=None if best is None else best.checkpoint,
        )


class EvalStop:
    """Wrap a base scheduler: stop jobs whose evaluations decline for real.

    Args:
        base: any policy: a base scheduler, or another EvalStop.
        rules: a rule map (`evalstop.parse_rule`), a map of rule objects, or one rule for all.

    A job's guardrail metrics (``EvalReported.metric`` not empty) are left to other wrappers.
    """

    def __init__(self, *, base: Policy, rules: Rules | Mapping[str, Rule] | Rule) -> None:
        self.base = base
        self.rules = rules if isinstance(rules, Rules) else Rules.of(rules)
        self._watches: dict[str, Watch] = {}

    @property
    def watches(self) -> Mapping[str, Watch]:
        """The jobs watched now, by id: their curves, verdicts and failures."""
        return self._watches

    def decide(self, event: Event, view: ClusterView) -> Sequence[Action]:
        """Return stops for declined jobs, then what the base decides on the others."""
        stops: Sequence[Stop] = ()
        if isinstance(event, (EvalReported, LossReported)):
            stops = self._hear(event, view)
        elif isinstance(event, JobPreempted):
            # An alarm that came while the job was being preempted is carried out now.
            stops = self._stop_if_alarmed(event.job, view)
        elif isinstance(event, JobEnded):
            self._watches.pop(event.job, None)
        chosen = self.base.decide(event, view)
        if not stops:
            return chosen
        stopped = stops[0].job
        return [
            *stops,
            *(a for a in chosen if not (isinstance(a, _PLACES) and a.job == stopped)),
        ]

    def _hear(self, event: EvalReported | LossReported, view: ClusterView) -> Sequence[Stop]:
        name = event.job
        job = view.jobs.get(name)
        if job is None or (isinstance(event, EvalReported) and event.metric):
            return ()
        watch = self._watches.get(name)
        if watch is None:
            watch = self._watches[name] = Watch(self.rules.named(job.job_type))
        verdict = watch.hear(event, job, event.time)
        if verdict.state is State.ALARM and job.phase in MAY_BE_STOPPED:
            return (watch.stop(name),)
        return ()

    def _stop_if_alarmed(self, name: str, view: ClusterView) -> Sequence[Stop]:
        watch = self._watches.get(name)
        job = view.jobs.get(name)
        if watch is None or job is None or not watch.verdict.alarm:
            return ()
        return (watch.stop(name),) if job.phase in MAY_BE_STOPPED else ()


class _BestOnly:
    """Detector under a `JobRule`: the rule judges, the history still keeps the best."""

    def start(self) -> None:
        return None

    def step(self, state: None, point: object) -> tuple[None, Verdict]:  # noqa: ARG002
        return None, _QUIET


_QUIET = Verdict()
_BEST_ONLY = _BestOnly()
