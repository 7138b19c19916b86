"""Ray Tune: a stop rule around any trial scheduler, or as a stopper.

```python
from evalstop.client.ray import EvalStopScheduler
scheduler = EvalStopScheduler(ASHAScheduler(), rule="default")
tune.TuneConfig(scheduler=scheduler, metric="win_rate", mode="max")
```

The base scheduler decides who runs next and whom to cut for being worse than others; evalstop ends
a trial whose own quality is falling. Of such a result the base hears only that the trial is
complete, so that its brackets stay whole. Tune keeps the scheduler's state with
the experiment's. A rule that fails lets the trial go on, visibly unwatched (R30).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.stopper import Stopper

from evalstop.config.rules import parse_rule
from evalstop.core.errors import InputError
from evalstop.core.signals import trainer_signals
from evalstop.detectors.monitor import Monitor, sign_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evalstop.core.points import Verdict
    from evalstop.detectors.monitor import Direction

__all__ = ["EvalStopScheduler", "EvalStopStopper"]

_logger = logging.getLogger("evalstop.client")


class _Judge:
    """One rule on the curve of every trial."""

    def __init__(self, rule: str, job_type: str, stderr: str | None, step: str) -> None:
        self._rule = rule
        self._job_type = job_type
        self._stderr = stderr
        self._step = step
        self._monitors: dict[str, Monitor] = {}
        self.verdicts: dict[str, Verdict] = {}

    def alarmed(
        self, trial: str, result: Mapping[str, Any], *, metric: str, direction: Direction
    ) -> bool:
        if result.get(metric) is None:
            return False
        try:
            monitor = self._monitors.get(trial)
            if monitor is None:
                rules = parse_rule(self._rule)
                monitor = Monitor(rules, direction=direction, job_type=self._job_type)
                self._monitors[trial] = monitor
            error = result.get(f"{metric}_stderr" if self._stderr is None else self._stderr)
            verdict = monitor.update(
                score=float(result[metric]),
                step=int(result[self._step]),
                stderr=None if error is None else float(error),
                signals=trainer_signals(result),
            )
        except Exception as error:  # noqa: BLE001 -- fail open
            _logger.warning(
                "evalstop: trial %s goes on unwatched: %s: %s", trial, type(error).__name__, error
            )
            return False
        self.verdicts[trial] = verdict
        if verdict.alarm:
            _logger.warning("evalstop: stopping trial %s: %s", trial, verdict.reason)
        return verdict.alarm


class EvalStopScheduler(TrialScheduler):  # type: ignore[misc] # ray's types are not required
    """Stop trials whose quality is falling; leave everything else to another scheduler.

    Args:
        base: any Tune scheduler; first in, first out by default.
        metric: the held-out metric; by default that of `TuneConfig`.
        direction: "max" or "min"; by default the ``mode`` of `TuneConfig`.
        rule: any rule as `evalstop.parse_rule` reads it.
        stderr: name of the reported standard error of the metric; by default ``METRIC_stderr``.
        step: name of the reported step.
        job_type: rlhf, dpo, lora or other: which entry of a rule map applies.
    """

    def __init__(
        self,
        base: TrialScheduler | None = None,
        *,
        metric: str | None = None,
        direction: Direction | None = None,
        rule: str = "default",
        stderr: str | None = None,
        step: str = "training_iteration",
        job_type: str = "other",
    ) -> None:
        super().__init__()
        if direction is not None:
            sign_of(direction)
        parse_rule(rule)  # a misspelt rule is refused here, not in the middle of an experiment
        self.base = base if base is not None else FIFOScheduler()
        self._watched = metric
        self._direction = direction
        self._judge = _Judge(rule, job_type, stderr, step)

    @property
    def metric(self) -> str | None:
        """The metric of the base scheduler, as Tune asks for it."""
        found: str | None = self.base.metric or self._watched
        return found

    @property
    def supports_buffered_results(self) -> bool:
        """As the base does."""
        return bool(self.base.supports_buffered_results)

    @property
    def verdicts(self) -> Mapping[str, Verdict]:
        """The newest verdict of each trial."""
        return self._judge.verdicts

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: object) -> bool:
        """Take metric and mode from the experiment where they were not given; hand them on."""
        self._watched = self._watched or metric
        if self._direction is None and mode in {"max", "min"}:
            self._direction = "max" if mode == "max" else "min"
        if self._watched is None or self._direction is None:
            msg = (
                "EvalStopScheduler needs a metric and its direction: give them to it, or metric "
                "and mode to TuneConfig"
            )
            raise InputError(msg)
        return bool(self.base.set_search_properties(metric, mode, **spec))

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:  # noqa: ANN401 -- ray's types are not required
        """Stop the trial if its rule says so; else do as the base does."""
        metric, direction = self._watched, self._direction
        if (
            metric is not None
            and direction is not None
            and self._judge.alarmed(trial.trial_id, result, metric=metric, direction=direction)
        ):
            # Tune itself tells the scheduler, and through us the base, that the trial is complete.
            return str(TrialScheduler.STOP)
        return str(self.base.on_trial_result(tune_controller, trial, result))

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:  # noqa: ANN401 -- as above
        """Hand on."""
        self.base.on_trial_add(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:  # noqa: ANN401 -- as above
        """Hand on."""
        self.base.on_trial_error(tune_controller, trial)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:  # noqa: ANN401 -- as above
        """Hand on."""
        self.base.on_trial_complete(tune_controller, trial, result)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:  # noqa: ANN401 -- as above
        """Hand on."""
        self.base.on_trial_remove(tune_controller, trial)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:  # noqa: ANN401 -- as above
        """Choose as the base does."""
        return self.base.choose_trial_to_run(tune_controller)

    def debug_string(self) -> str:
        """Say what is around what."""
        return f"EvalStop around: {self.base.debug_string()}"

    def save(self, checkpoint_path: str) -> None:
        """Hand on."""
        self.base.save(checkpoint_path)

    def restore(self, checkpoint_path: str) -> None:
        """Hand on."""
        self.base.restore(checkpoint_path)


class EvalStopStopper(Stopper):  # type: ignore[misc] # ray's types are not required
    """The same rule for ``tune.RunConfig(stop=...)``, beside whatever schedules.

    Args: as `EvalStopScheduler`; ``metric`` and ``direction`` have to be given.
    """

    def __init__(
        self,
        metric: str,
        *,
        direction: Direction,
        rule: str = "default",
        stderr: str | None = None,
        step: str = "training_iteration",
        job_type: str = "other",
    ) -> None:
        sign_of(direction)
        parse_rule(rule)
        self._metric = metric
        self._direction: Direction = direction
        self._judge = _Judge(rule, job_type, stderr, step)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Say whether the trial should stop."""
        return self._judge.alarmed(trial_id, result, metric=self._metric, direction=self._direction)

    def stop_all(self) -> bool:
        """Never stop the whole experiment."""
        return False
