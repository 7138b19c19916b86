"""Which of a trainer's metrics is watched, with what error, against which proxy.

Trainers and loggers spell one metric in several ways (``eval_x``, ``eval/x``), and log the
reward that is being optimised next to true quality. This module knows the spellings and tells
the two apart. Standard library only.
"""

from __future__ import annotations

import difflib
import math
from typing import TYPE_CHECKING, SupportsFloat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "JOB_TYPES",
    "eval_size",
    "find",
    "finite",
    "nearest",
    "proxy_value",
    "standard_error",
    "trained_reward",
]

JOB_TYPES = {
    "GRPO": "grpo",
    "RLOO": "rloo",
    "PPO": "ppo",
    "OnlineDPO": "rlhf",
    "NashMD": "rlhf",
    "XPO": "rlhf",
    "DPO": "dpo",
    "KTO": "dpo",
    "ORPO": "dpo",
    "CPO": "dpo",
    "SFT": "sft",
}
"""Start of the name of a TRL configuration class: job type."""

_ALWAYS_TRAINED = (
    "reward",
    "objective/rlhf_reward",
    "objective/scores",
    "rewards/accuracies",
    "rewards/chosen",
    "rewards/margins",
    "rewards/rejected",
)

_TRAINING_REWARDS = ("reward", "objective/scores")


def _bare(name: str) -> str:
    return name.removeprefix("eval_").removeprefix("eval/")


def find(metric: str, metrics: Mapping[str, object]) -> str | None:
    """Return the key under which ``metrics`` holds ``metric``, in whichever spelling."""
    if metric in metrics:
        return metric
    bare = _bare(metric)
    return next((name for name in (f"eval_{bare}", f"eval/{bare}", bare) if name in metrics), None)


def nearest(metric: str, metrics: Mapping[str, object]) -> str:
    """Return a sentence that lists known names, the nearest first."""
    names = sorted(metrics)
    close = difflib.get_close_matches(metric, names, n=3, cutoff=0.4)
    rest = [name for name in names if name not in close]
    return ", ".join(close + rest)


def finite(value: object) -> float | None:
    """Return a float of a finite number of any library (numpy, torch), None of anything else."""
    if isinstance(value, bool) or not isinstance(value, SupportsFloat):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # an array of many, say
        return None
    return number if math.isfinite(number) else None


def _float(metrics: Mapping[str, object], name: str) -> float | None:
    return finite(metrics.get(name))


def eval_size(metrics: Mapping[str, object]) -> int | None:
    """Return how many examples the trainer evaluated, from its logged time and speed."""
    seconds = _float(metrics, "eval_runtime")
    speed = _float(metrics, "eval_samples_per_second")
    return None if seconds is None or speed is None else round(seconds * speed) or None


def standard_error(name: str, metrics: Mapping[str, object], *, given: str | None) -> float | None:
    """Return the standard error of ``metrics[name]``, if it can be known.

    In this order: the metric called ``given``; a sibling ``NAME_stderr``; for TRL's
    ``.../mean``, the sibling ``.../std`` over the square root of the number of prompts:
    completions of one prompt are alike, so that they are not counted as more.
    """
    if given is not None:
        key = find(given, metrics)
        return None if key is None else _float(metrics, key)
    sibling = _float(metrics, f"{name}_stderr")
    if sibling is not None:
        return sibling
    spread = (
        _float(metrics, f"{name.removesuffix('/mean')}/std") if name.endswith("/mean") else None
    )
    items = eval_size(metrics)
    return None if spread is None or items is None else spread / math.sqrt(items)


def proxy_value(
    watched: str,
    metrics: Mapping[str, object],
    history: Sequence[Mapping[str, object]],
    *,
    given: str | None,
) -> float | None:
    """Return the training reward at this evaluation, if one is logged and it is not the metric.

    That is the metric called ``given``, else ``eval_reward``, DPO's ``eval_rewards/margins``, or
    the newest ``reward`` of the training log (Online DPO's name: ``objective/scores``).
    """
    names = (given,) if given else ("eval_reward", "eval_rewards/margins")
    for name in names:
        key = find(name, metrics)
        if key is not None and key != watched:
            return _float(metrics, key)
    logged = (given,) if given else _TRAINING_REWARDS
    return next(
        (_float(line, name) for line in reversed(history) for name in logged if name in line), None
    )


def trained_reward(
    name: str, metrics: Mapping[str, object], weights: Sequence[float] | None
) -> bool:
    """Say whether the metric is (part of) the reward that training maximises (R29).

    Args:
        name: key of the watched metric.
        metrics: one evaluation's metrics, in the order the trainer logged them.
        weights: the trainer's ``reward_weights``; None means that every reward is trained on.
    """
    bare = _bare(name)
    if bare in _ALWAYS_TRAINED:
        return True
    if not (bare.startswith("rewards/") and bare.endswith("/mean")):
        return False
    rewards = [
        _bare(key) for key in metrics if _bare(key).startswith("rewards/") and key.endswith("/mean")
    ]
    if weights is None or bare not in rewards or len(weights) != len(rewards):
        return True
    return float(weights[rewards.index(bare)]) != 0.0
