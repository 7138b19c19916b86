"""Optuna's pruners, in studies that live in memory.

``median`` and ``patient`` see a run as a trial whose evaluations are its intermediate values. The
trials of an experiment run one after another, as in a study with one worker, and a trial is
compared with those that ran to their end.

``wilcoxon`` is made for trials that score the same problems one by one. Here the best evaluation
of a run so far is the best trial, its items are the problems, and the newest evaluation is the
trial that may be pruned: the run is stopped when it is.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner, MedianPruner, NopPruner, PatientPruner, WilcoxonPruner
from optuna.trial import TrialState, create_trial

from evalstop.experiments.peers.field import experiments, first_of, items

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evalstop.experiments.peers.field import Array, Field, Stops

__all__ = ["Median", "Patient", "Wilcoxon"]


class Median:
    """Stops a trial whose best so far is below the median of finished trials at this evaluation."""

    def __init__(self, startup: int = 5, warmup: int = 0) -> None:
        self._startup = startup
        self._warmup = warmup

    def stops(self, field: Field) -> Stops:
        """Return the index at which each run is stopped, -1 if never: (runs,)."""
        found = np.full(field.declines.size, -1, dtype=np.int64)
        for runs in experiments(field):
            pruner = MedianPruner(n_startup_trials=self._startup, n_warmup_steps=self._warmup)
            study = _study(pruner)
            for run in runs:
                found[run] = _run_trial(study, field.scores[run])
        return found


class Patient:
    """Stops when the last ``k`` + 1 evaluations all lie more than ``min_delta`` below the best.

    No other pruner is wrapped: that one would have to agree.
    """

    def __init__(self, k: int = 3, min_delta: float = 0.0) -> None:
        with _experimental():
            self._pruner = PatientPruner(None, patience=k, min_delta=min_delta)

    def stops(self, field: Field) -> Stops:
        """Return the index at which each run is stopped, -1 if never: (runs,)."""
        study = _study(self._pruner)
        return np.array([_run_trial(study, scores) for scores in field.scores])


class Wilcoxon:
    """Stops when the newest evaluation's items are worse than the best one's, at ``p``."""

    def __init__(self, p: float = 0.1, startup: int = 2) -> None:
        with _experimental():
            self._pruner = WilcoxonPruner(p_threshold=p, n_startup_steps=startup)

    def stops(self, field: Field) -> Stops:
        """Return the index at which each run is stopped, -1 if never: (runs,)."""
        runs = range(field.declines.size)
        return np.array([first_of(self._answers(items(field, run))) for run in runs])

    def _answers(self, table: Array) -> Iterator[bool]:
        study = _study(self._pruner)
        best = -np.inf
        for scores in table:
            values: dict[int, float] = dict(enumerate(scores.tolist()))
            mean = float(scores.mean())
            trial = create_trial(state=TrialState.RUNNING, intermediate_values=values)
            yield self._pruner.prune(study, trial)
            if mean > best:
                best = mean
                study.add_trial(create_trial(value=mean, intermediate_values=values))


@contextmanager
def _experimental() -> Iterator[None]:
    """Keep quiet about what Optuna calls experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield


def _study(pruner: BasePruner | None = None) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(direction="maximize", pruner=pruner or NopPruner())


def _run_trial(study: optuna.Study, scores: Array) -> int:
    """Run one trial of a study, as ``optimize`` would; return where it was pruned, -1 if not."""
    trial = study.ask()
    for step, score in enumerate(scores.tolist()):
        trial.report(score, step)
        if trial.should_prune():
            study.tell(trial, state=TrialState.PRUNED)
            return step
    study.tell(trial, float(scores.max()))
    return -1
