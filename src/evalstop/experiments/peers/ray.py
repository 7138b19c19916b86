"""Ray Tune's MedianStoppingRule, told the results of trials that run in step, without a cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
from ray.tune.schedulers import MedianStoppingRule, TrialScheduler

from evalstop.experiments.peers.field import experiments

if TYPE_CHECKING:
    from evalstop.experiments.peers.field import Field, Stops

__all__ = ["Median"]


class Median:
    """Stops a trial whose best so far is below the median of the others' running means.

    Args:
        grace: evaluations before which no trial is stopped, and which no mean counts.
        fewest: trials that must have come as far.
    """

    def __init__(self, grace: int = 4, fewest: int = 3) -> None:
        self._grace = grace
        self._fewest = fewest

    def stops(self, field: Field) -> Stops:
        """Return the index at which each run is stopped, -1 if never: (runs,)."""
        found = np.full(field.declines.size, -1, dtype=np.int64)
        controller = SimpleNamespace(get_live_trials=list)
        for runs in experiments(field):
            rule = MedianStoppingRule(
                time_attr="training_iteration",
                metric="score",
                mode="max",
                grace_period=self._grace,
                min_samples_required=self._fewest,
            )
            trials = {int(run): _Trial(f"trial-{run}") for run in runs}
            for trial in trials.values():
                rule.on_trial_add(controller, trial)
            for step, column in enumerate(field.scores.T.tolist(), start=1):
                for run, trial in list(trials.items()):
                    result = {"training_iteration": step, "score": column[run]}
                    answer = rule.on_trial_result(controller, trial, result)
                    if answer == TrialScheduler.STOP:
                        found[run] = step - 1
                        del trials[run]
        return found


class _Trial:
    """A trial as far as the rule looks at one: a name, told apart by identity."""

    def __init__(self, trial_id: str) -> None:
        self.trial_id = trial_id
