"""Keras' EarlyStopping, told the logs of each epoch of a model that is never trained."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from keras.callbacks import EarlyStopping

from evalstop.experiments.peers.field import RowByRow

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Patience"]


class Patience(RowByRow):
    """Stops after ``k`` epochs that do not beat the best by more than ``min_delta``."""

    def __init__(self, k: int = 3, min_delta: float = 0.0) -> None:
        self._k = k
        self._min_delta = min_delta

    def answers(self, scores: list[float]) -> Iterator[bool]:
        """Yield what the callback says after each score."""
        callback = EarlyStopping(
            monitor="val_score", mode="max", patience=self._k, min_delta=self._min_delta
        )
        model = SimpleNamespace(stop_training=False)
        callback.set_model(model)
        callback.on_train_begin()
        for epoch, score in enumerate(scores):
            callback.on_epoch_end(epoch, logs={"val_score": score})
            yield model.stop_training
