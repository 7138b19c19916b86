"""Where scores are, in one word: a path, or ``KIND:PLACE``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from evalstop.feedback.jsonl import JsonlTail
from evalstop.feedback.mlflow import MlflowPoll
from evalstop.feedback.results_folder import ResultsFolder
from evalstop.feedback.tensorboard import TensorBoardTail
from evalstop.feedback.trainer_state import TrainerStateTail
from evalstop.feedback.wandb import WandbPoll

if TYPE_CHECKING:
    from evalstop.feedback.scores import Watch
    from evalstop.ports import FeedbackSource

__all__ = ["KINDS", "source_at"]

KINDS = {
    "jsonl": "a JSONL file that grows: evalstop's form, verl's file log, or flat rows",
    "trainer": "a transformers or TRL output_dir (trainer_state.json)",
    "tensorboard": "a folder of TensorBoard events",
    "results": "a folder of lm-evaluation-harness results or inspect_ai logs",
    "mlflow": "a tracking URI, with ?run=ID or the run's tag evalstop.job_id",
    "wandb": "ENTITY/PROJECT/RUN",
}
"""Every kind of source, and what its place is."""


def source_at(address: str, watch: Watch) -> FeedbackSource:
    """Return the source that an address names; a path without kind is a JSONL file.

    Raises:
        InputError: the place cannot be read as that kind's.
        MissingExtraError: the kind needs an optional dependency.
    """
    kind, colon, place = address.partition(":")
    if not colon or kind not in KINDS:
        return JsonlTail(Path(address), watch)
    if kind == "mlflow":
        return MlflowPoll(address, watch)
    if kind == "wandb":
        return WandbPoll(address, watch)
    if kind == "trainer":
        return TrainerStateTail(Path(place), watch)
    if kind == "tensorboard":
        return TensorBoardTail(Path(place), watch)
    return ResultsFolder(Path(place), watch) if kind == "results" else JsonlTail(Path(place), watch)
