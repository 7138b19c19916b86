"""The inner defence: what training itself can do when its quality is suspected to fall.

Each function here returns something to hand to `EvalStopCallback` as ``on_suspect``; so does any
function of yours that takes a `Suspicion`. It is called on every rank at the same step, once
each time the verdict turns from ok to suspect. The stop stays in place behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Mitigation", "Suspicion", "lower_learning_rate", "raise_kl_penalty", "roll_back"]


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """What a mitigation may act upon.

    Attributes:
        step: training step of the evaluation that raised it.
        args, state, control: the trainer's own objects.
        model, optimizer, lr_scheduler: as the trainer hands them to its callbacks.
        best_checkpoint: pinned folder of the best checkpoint, if one was saved.
    """

    step: int
    args: Any
    state: Any
    control: Any
    model: Any
    optimizer: Any
    lr_scheduler: Any
    best_checkpoint: Path | None


Mitigation: TypeAlias = Callable[[Suspicion], None]


def lower_learning_rate(factor: float = 0.5) -> Mitigation:
    """Multiply the learning rate, now and in the schedule, by ``factor``."""

    def act(suspicion: Suspicion) -> None:
        for group in suspicion.optimizer.param_groups:
            group["lr"] *= factor
        scheduler = suspicion.lr_scheduler
        if scheduler is not None and hasattr(scheduler, "base_lrs"):
            scheduler.base_lrs = [rate * factor for rate in scheduler.base_lrs]

    return act


def raise_kl_penalty(trainer: Any, factor: float = 2.0) -> Mitigation:  # noqa: ANN401 -- any trainer with a beta
    """Multiply ``trainer.beta`` by ``factor`` (GRPO, RLOO, DPO, Online DPO).

    A trainer that started with ``beta=0`` has no reference model to keep close to: raising zero
    is refused at once rather than silently left without effect.
    """
    if not getattr(trainer, "beta", 0.0) > 0.0:
        msg = "raise_kl_penalty needs a trainer with beta > 0: start it with a small one"
        raise ValueError(msg)

    def act(_suspicion: Suspicion) -> None:
        if not isinstance(getattr(type(trainer), "beta", None), property):
            trainer.beta *= factor
            return
        # Online DPO: one beta an epoch, or one for all.
        betas = trainer._beta  # noqa: SLF001 -- its property has no setter
        trainer._beta = (  # noqa: SLF001 -- as above
            [beta * factor for beta in betas] if isinstance(betas, list) else betas * factor
        )

    return act


def roll_back() -> Mitigation:
    """Load the weights of the best checkpoint back into the model; the optimiser goes on."""

    def act(suspicion: Suspicion) -> None:
        from evalstop.client.transformers import load_weights  # noqa: PLC0415 -- needs the extra

        if suspicion.best_checkpoint is not None:
            load_weights(suspicion.model, suspicion.best_checkpoint)

    return act
