"""What OpenRLHF's names say beyond the score.

Its PPO trainer logs ``eval/eval_SOURCE_pass1`` (mean reward of an answer),
``eval/eval_SOURCE_passN`` where each prompt has N answers, and ``eval/eval_num_samples``, the
number of answers in all (openrlhf.trainer.ppo_trainer.compute_eval_metrics, 0.11). Answers of one
prompt are alike, so what counts as an item is a prompt: with one source their number follows.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["SAMPLES", "prompts_evaluated"]

SAMPLES = "eval/eval_num_samples"
"""Tag of the number of answers that an evaluation scored."""

_PASS = re.compile(r"eval/eval_(?P<source>.+)_pass(?P<answers>\d+)")


def prompts_evaluated(tag: str, tags: Collection[str], samples: float | None) -> int | None:
    """Return how many prompts the score of ``tag`` is a mean of; None where it is not known.

    Args:
        tag: the score's name.
        tags: all names that the run logged.
        samples: value of `SAMPLES` at that evaluation.

    Example:
        >>> tags = ["eval/eval_gsm8k_pass1", "eval/eval_gsm8k_pass4", "eval/eval_num_samples"]
        >>> prompts_evaluated("eval/eval_gsm8k_pass1", tags, 2000.0)
        500
    """
    named = [match for name in tags if (match := _PASS.fullmatch(name))]
    if samples is None or not math.isfinite(samples) or _PASS.fullmatch(tag) is None:
        return None
    if len({match["source"] for match in named}) != 1:
        return None
    return round(samples) // max(int(match["answers"]) for match in named) or None
