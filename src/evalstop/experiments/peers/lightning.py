"""Lightning's EarlyStopping, beside a stand-in for its Trainer that holds the logged metrics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.trainer.states import TrainerFn

from evalstop.experiments.peers.field import RowByRow

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Patience"]


class Patience(RowByRow):
    """Stops after ``k`` evaluations that do not beat the best by more than ``min_delta``."""

    def __init__(self, k: int = 3, min_delta: float = 0.0) -> None:
        self._k = k
        self._min_delta = min_delta

    def answers(self, scores: list[float]) -> Iterator[bool]:
        """Yield what the callback says after each score."""
        callback = EarlyStopping(
            "score",
            mode="max",
            patience=self._k,
            min_delta=self._min_delta,
            check_on_train_epoch_end=False,
        )
        trainer = SimpleNamespace(
            callback_metrics={},
            current_epoch=0,
            fast_dev_run=False,
            sanity_checking=False,
            should_stop=False,
            state=SimpleNamespace(fn=TrainerFn.FITTING),
            strategy=SimpleNamespace(reduce_boolean_decision=_one_process),
        )
        for epoch, score in enumerate(torch.tensor(scores, dtype=torch.float64)):
            trainer.current_epoch = epoch
            trainer.callback_metrics["score"] = score
            callback.on_validation_end(trainer, None)
            yield trainer.should_stop


def _one_process(decision: bool, *, all: bool) -> bool:  # noqa: A002, ARG001, FBT001 -- Lightning's name
    """Return what one process agrees on with itself."""
    return decision
