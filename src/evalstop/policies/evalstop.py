"""EvalStop: world feedback around any base scheduler.

The paper's algorithm (arXiv 2606.04145). On an evaluation, update the job's rule; when it raises
the alarm, mark the job. On every event, stop each marked job, then let the base scheduler decide
on the rest. Our reading where the paper leaves room: the stop is issued at the alarm, and the
base places on the GPUs when their release is a fact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from evalstop.core.actions import Action, Preempt, Resize, Start, Stop
from evalstop.core.cluster import MAY_BE_STOPPED
from evalstop.core.errors import SpecError
from evalstop.core.events import (
    CheckpointSaved,
    EvalReported,
    JobEnded,
    JobPreempted,
    JobStarted,
    JobSubmitted,
    LossReported,
)
from evalstop.core.history import History
from evalstop.core.points import State, Verdict
from evalstop.core.policy import foresight_of, hears_evals
from evalstop.core.settings import has_methods
from evalstop.policies.guard import is_guard
from evalstop.policies.rules import JobRule, NamedRule, Rule, Rules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evalstop.core.ahead import Ahead
    from evalstop.core.events import Event
    from evalstop.core.job import JobView
    from evalstop.core.points import EvalPoint
    from evalstop.core.policy import ClusterView, Policy
    from evalstop.policies.guard import Guard

__all__ = ["EvalStop", "Watch"]

# Bound once: looking up a member of an Enum costs 0.25 us on CPython 3.11.
_BLIND = State.BLIND

_PLACES = (Start, Preempt, Resize, Stop)


class Watch:
    """One job under its rule."""

    __slots__ = ("_judged_so", "history", "judge", "judge_state", "spec", "unwatched")

    def __init__(self, named: NamedRule) -> None:
        self.spec = named.spec
        rule = named.rule
        # By attribute: an isinstance against a Protocol costs as much as ten evaluations.
        judges = hasattr(rule, "judge")
        self.judge: JobRule[Any] | None = rule if judges else None  # type: ignore[assignment]  # by attribute
        self.judge_state: Any = None
        self.history: History[Any]
        self.unwatched = ""
        self._judged_so = _QUIET
        try:
            if self.judge is not None:
                self.judge_state = self.judge.begin()
            self.history = History(_BEST_ONLY if judges else rule)  # type: ignore[arg-type]  # by attribute
        except Exception as error:  # noqa: BLE001 -- whatever a rule raises must not cost a job
            self.history = History(_BEST_ONLY)
            self._go_blind(error)

    @property
    def verdict(self) -> Verdict:
        """What the rule says of the job."""
        return self.history.verdict if self.judge is None else self._judged_so

    @property
    def series(self) -> Sequence[EvalPoint]:
        """The evaluations that count, in order."""
        return self.history.series

    @property
    def alarmed(self) -> bool:
        """Whether the rule asks for the job to be stopped."""
        return self.history.alarmed if self.judge is None else self._judged_so.alarm

    def hear(self, event: EvalReported | LossReported, jobs: Mapping[str, JobView]) -> Verdict:
        """Take in one event of a job among ``jobs`` and return the verdict."""
        if type(event) is EvalReported or self.judge is not None:
            self.is_alarmed_by(event, jobs)
        return self.verdict

    def is_alarmed_by(
        self, event: EvalReported | LossReported, jobs: Mapping[str, JobView]
    ) -> bool:
        """Take in one event of a job among ``jobs``; return whether the alarm is on.

        Losses are for rules that judge them. Fail open (R30): a rule that raises watches no
        further, and the job goes on.
        """
        try:
            if self.judge is None:
                return self.history.hear(event.point)  # type: ignore[union-attr]  # no loss
            self._judged_so = self._judged(self.judge, event, jobs)
        except Exception as error:  # noqa: BLE001 -- whatever a rule raises must not cost a job
            self._go_blind(error)
        return self.verdict.alarm

    def _go_blind(self, error: Exception) -> None:
        """Watch no further: the rule has failed."""
        self.unwatched = f"{type(error).__name__}: {error}"
        blind = Verdict(state=_BLIND, note=f"the rule failed: {self.unwatched}")
        self.judge, self.judge_state, self._judged_so = _BLINDED, blind, blind

    def _judged(
        self,
        judge: JobRule[Any],
        event: EvalReported | LossReported,
        jobs: Mapping[str, JobView],
    ) -> Verdict:
        if isinstance(event, EvalReported) and not self.unwatched:
            self.history.add(event.point)
        self.judge_state, verdict = judge.judge(
            self.judge_state, event, jobs[event.job], event.time
        )
        return verdict

    def saved(self, step: int, checkpoint: str) -> None:
        """Name the checkpoint of evaluations that came before it was saved (R04).

        Trainers evaluate first and save afterwards. Where a run went through a step twice, the
        checkpoint is the newer one's.
        """
        found = [point for point in self.history.reports if point.step == step]
        newest = max((point.attempt for point in found), default=0)
        for point in found:
            if point.attempt == newest and point.checkpoint is None:
                self.history.add(msgspec.structs.replace(point, checkpoint=checkpoint))

    def stop(self, job: str) -> Stop:
        """Return the order to stop the job, naming the checkpoint to keep."""
        best = self.history.best_saved or self.history.best
        newest = self.history.newest
        return Stop(
            job=job,
            rule=self.spec,
            verdict=self.verdict,
            best_step=-1 if best is None else best.step,
            step=-1 if newest is None else newest.step,
            best_checkpoint=None if best is None else best.checkpoint,
        )


class EvalStop:
    """Wrap a base scheduler: stop jobs whose evaluations decline for real.

    Args:
        base: any policy: a base scheduler, or another EvalStop.
        rules: a rule map (`evalstop.parse_rule`), a map of rule objects, or one rule for all.
        guard: what screens stops (`evalstop.policies.guards`); None: every alarm stops.

    A job's guardrail metrics (``EvalReported.metric`` not empty) are left to other wrappers.

    Raises:
        SpecError: one of them is not what it should be, such as a name in place of a rule.
    """

    def __init__(
        self,
        *,
        base: Policy,
        rules: Rules | Mapping[str, Rule] | Rule,
        guard: Guard | None = None,
    ) -> None:
        if not has_methods(base, "decide"):
            msg = f"base must be a scheduler or another policy, such as Fifo(), but got {base!r}"
            raise SpecError(msg)
        if guard is not None and not is_guard(guard):
            msg = (
                f"guard must be one guard, such as Observe() or a Chain of them, but got {guard!r}"
            )
            raise SpecError(msg)
        self.base = base
        self.guard = guard
        self.rules = rules if isinstance(rules, Rules) else Rules.of(rules)
        self._watches: dict[str, Watch] = {}
        self._base_hears_evals = hears_evals(base)
        # A subclass that decides otherwise promises nothing by what is promised here.
        self._may_foresee = type(self).decide is EvalStop.decide

    @property
    def watches(self) -> Mapping[str, Watch]:
        """The jobs watched now, by id: their curves, verdicts and failures."""
        return self._watches

    def decide(self, event: Event, view: ClusterView) -> Sequence[Action]:  # noqa: C901 -- one arm for each fact
        """Return stops for declined jobs, then what the base decides on the others."""
        ours: Sequence[Action] = ()
        if type(event) is EvalReported and not event.metric:
            # As _hear does, in place: most events are evaluations.
            watch = self._watches.get(event.job) or self._watch(event.job, view)
            if watch is not None:  # a report may come after its job has ended
                if watch.is_alarmed_by(event, view.jobs):
                    ours = self._stop_if_alarmed(event.job, view)
                elif self.guard is not None:
                    self.guard.withdraw(event.job)
            if not self._base_hears_evals:
                return ours
        elif type(event) is JobStarted or type(event) is JobSubmitted:
            if self.guard is None:
                return self.base.decide(event, view)
            ours = self.guard.hear(event, view)
        elif type(event) is JobPreempted and self.guard is None:
            if event.job not in self._watches:
                return self.base.decide(event, view)
            # An alarm that came while the job was being preempted is carried out now.
            ours = self._stop_if_alarmed(event.job, view)
        elif type(event) is JobEnded and self.guard is None:
            self._watches.pop(event.job, None)
            return self.base.decide(event, view)
        else:
            ours = self._hear_other(event, view)
        chosen = self.base.decide(event, view)
        if not ours:
            return chosen
        stopped = {action.job for action in ours if isinstance(action, Stop)}
        return [*ours, *(a for a in chosen if not (isinstance(a, _PLACES) and a.job in stopped))]

    def _hear(self, event: EvalReported | LossReported, view: ClusterView) -> Sequence[Action]:
        """Take in one event of a job; stop it if its rule raises the alarm."""
        watch = self._watches.get(event.job) or self._watch(event.job, view)
        if watch is None:  # a report may come after its job has ended
            return ()
        if watch.hear(event, view.jobs).alarm:
            return self._stop_if_alarmed(event.job, view)
        if self.guard is not None:
            self.guard.withdraw(event.job)
        return ()

    def _hear_other(self, event: Event, view: ClusterView) -> Sequence[Action]:
        """Take in what is no evaluation of a job's own metric."""
        if type(event) is LossReported:
            return self._hear(event, view)
        if type(event) is EvalReported:
            if event.job not in self._watches:  # other metrics are other wrappers'
                self._watch(event.job, view)
            return ()
        ours: Sequence[Action] = ()
        if type(event) is JobEnded:
            self._watches.pop(event.job, None)
        elif type(event) is JobPreempted:
            ours = self._stop_if_alarmed(event.job, view)
        elif type(event) is CheckpointSaved and event.job in self._watches:
            self._watches[event.job].saved(event.step, event.checkpoint)
        return ours if self.guard is None else [*ours, *self.guard.hear(event, view)]

    def foresee(self, job: str, ahead: Ahead, start: int, view: ClusterView) -> int:
        """Return up to where no rule of a job will raise the alarm, and the base says nothing.

        A guard hears when there is no alarm, and a judge reads more than scores: where there is
        one of them nothing is promised.
        """
        if self.guard is not None or not self._may_foresee:
            return start
        # Looked up here: a snapshot of a policy holds data, and no functions.
        stop = foresight_of(self.base)(job, ahead, start, view)
        if stop <= start:
            return start
        watch = self._watches.get(job) or self._watch(job, view)
        if watch is None or watch.judge is not None:
            return start
        return watch.history.foresee(ahead, start, stop)

    def take_in(self, job: str, ahead: Ahead, start: int, stop: int) -> None:
        """Hear of evaluations that were foreseen to raise no alarm, and have happened."""
        self._watches[job].history.take_in(ahead, start, stop)
        take_in = getattr(self.base, "take_in", None)
        if take_in is not None:
            take_in(job, ahead, start, stop)

    def disown(self, job: str) -> None:
        """Forget that a stop was announced, held or told: in a replay, it was decided otherwise.

        The log was written under other settings, and what it says was done stands. A guard that
        went on believing in a notice nobody was given would hold the job's stop for ever.
        """
        if self.guard is not None:
            getattr(self.guard, "disown", self.guard.withdraw)(job)
        if isinstance(self.base, EvalStop):
            self.base.disown(job)

    def _watch(self, name: str, view: ClusterView) -> Watch | None:
        """Begin to watch a job, if it has not ended."""
        job = view.jobs.get(name)
        if job is None:
            return None
        watch = self._watches[name] = Watch(self.rules.for_job(job))
        return watch

    def _stop_if_alarmed(self, name: str, view: ClusterView) -> Sequence[Action]:
        watch = self._watches.get(name)
        job = view.jobs.get(name)
        if watch is None or job is None or not watch.alarmed:
            return ()
        if job.phase not in MAY_BE_STOPPED:
            return ()
        stop = watch.stop(name)
        return (stop,) if self.guard is None else self.guard.screen(stop, view)


class _BestOnly:
    """Detector under a `JobRule`: the rule judges, the history still keeps the best."""

    def start(self) -> None:
        return None

    def step(self, state: None, point: object) -> tuple[None, Verdict]:  # noqa: ARG002
        return None, _QUIET


_QUIET = Verdict()
_BEST_ONLY = _BestOnly()


class _Blinded:
    """Judge of a job whose rule failed: what it says is the failure, for good."""

    def begin(self) -> Verdict:
        return _QUIET

    def judge(
        self, state: Verdict, event: object, job: object, now: object
    ) -> tuple[Verdict, Verdict]:
        del event, job, now
        return state, state


_BLINDED = _Blinded()
