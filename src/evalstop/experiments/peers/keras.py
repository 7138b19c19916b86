"""Keras' EarlyStopping, told the logs of each epoch of a model that is never trained."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
from keras.callbacks import EarlyStopping

from evalstop.experiments.peers.field import first_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evalstop.experiments.peers.field import Field, Stops

__all__ = ["Patience"]


class Patience:
    """Stops after ``k`` epochs that do not beat the best by more than ``min_delta``."""

    def __init__(self, k: int = 3, min_delta: float = 0.0) -> None:
        self._k = k
        self._min_delta = min_delta

    def stops(self, field: Field) -> Stops:
        """Return the index at which each run is stopped, -1 if never: (runs,)."""
        return np.array([first_of(self._answers(row)) for row in field.scores.tolist()])

    def _answers(self, scores: list[float]) -> Iterator[bool]:
        callback = EarlyStopping(
            monitor="val_score", mode="max", patience=self._k, min_delta=self._min_delta
        )
        model = SimpleNamespace(stop_training=False)
        callback.set_model(model)
        callback.on_train_begin()
        for epoch, score in enumerate(scores):
            callback.on_epoch_end(epoch, logs={"val_score": score})
            yield model.stop_training
