"""transformers' EarlyStoppingCallback, given the state that its Trainer would hold.

The Trainer calls the callback with the best metric of the evaluations *before* this one, and
raises it afterwards. That bookkeeping is all that is done here; a test compares it with a Trainer
that trains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers import EarlyStoppingCallback, TrainerControl, TrainerState, TrainingArguments

from evalstop.experiments.peers.field import RowByRow

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Patience"]


class Patience(RowByRow):
    """Stops after ``k`` evaluations that are not better than the best by more than ``threshold``.

    The best is raised by any improvement, also by one under the threshold.
    """

    def __init__(self, k: int = 3, threshold: float = 0.0) -> None:
        self._k = k
        self._threshold = threshold
        self._arguments = TrainingArguments(
            output_dir=".",
            metric_for_best_model="eval_score",
            greater_is_better=True,
            load_best_model_at_end=True,
            eval_strategy="steps",
            save_strategy="steps",
            report_to=[],
            use_cpu=True,
        )

    def answers(self, scores: list[float]) -> Iterator[bool]:
        """Yield what the callback says after each score."""
        callback = EarlyStoppingCallback(self._k, self._threshold)
        state, control = TrainerState(), TrainerControl()
        callback.on_train_begin(self._arguments, state, control)
        for score in scores:
            callback.on_evaluate(self._arguments, state, control, metrics={"eval_score": score})
            if state.best_metric is None or score > state.best_metric:
                state.best_metric = score
            yield control.should_training_stop
