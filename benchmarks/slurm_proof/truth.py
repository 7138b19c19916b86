"""What is made before a queue runs, and what is measured after it: rewards and true scores.

Before: the start policy, and for each arm and seed the reward model that its job optimises, both
by the laboratory's code. After: the gold reward of the weights that a job set aside, on the 448
held-out prompts that neither training nor the watched evaluation uses.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import Qwen2ForCausalLM

from evalstop.lab.arms import PANELS
from evalstop.lab.heldout import HELD_OUT
from evalstop.lab.language import gold_reward, prompts
from evalstop.lab.proxy import RewardModel, train_reward_model
from evalstop.lab.start import sample
from evalstop.lab.training import Laboratory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from evalstop.lab.arms import Arm

    Reward = Callable[[np.ndarray, np.ndarray], np.ndarray]

__all__ = ["Truth", "digest", "load_reward", "prepare", "watched_prompts"]

PANEL = HELD_OUT // PANELS
_HELD_OUT_SEED = 77  # the laboratory's


def held_out_prompts() -> np.ndarray:
    """Return the laboratory's 512 held-out prompts, shape (512, 4)."""
    return prompts(HELD_OUT, generator=np.random.default_rng(_HELD_OUT_SEED))


def watched_prompts() -> np.ndarray:
    """Return the panel that jobs evaluate themselves on and evalstop sees, shape (64, 4)."""
    return held_out_prompts()[:PANEL]


def prepare(folder: Path, arms: Iterable[Arm], seed: int) -> None:
    """Train what is not there yet: the start policy and one reward model an arm and seed."""
    laboratory = Laboratory(folder)
    for arm in arms:
        file = _file(folder, arm, seed)
        if arm.comparisons and not file.exists():
            model = train_reward_model(
                laboratory.comparisons(arm, seed), width=arm.width, steps=arm.fit_steps, seed=seed
            )
            torch.save(model.state_dict(), file)


def load_reward(folder: Path, arm: Arm, seed: int) -> Reward:
    """Return what a job optimises: its reward model, or the gold reward where it has none."""
    if not arm.comparisons:
        return gold_reward
    model = RewardModel(arm.width)
    model.load_state_dict(torch.load(_file(folder, arm, seed)))
    return model.eval().score


def _file(folder: Path, arm: Arm, seed: int) -> Path:
    return folder / f"reward--{arm.name}--{seed}.pt"


def digest(checkpoint: Path) -> str:
    """Return a name for the weights of a checkpoint: equal weights, equal names."""
    return hashlib.sha256((checkpoint / "model.safetensors").read_bytes()).hexdigest()[:16]


class Truth:
    """True scores of weights, each measured once: both queues of a seed train the same ones.

    Args:
        file: where they are kept.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[str, list[float]] = json.loads(file.read_text()) if file.exists() else {}
        self._prompts = held_out_prompts()[PANEL:]

    def save(self) -> None:
        """Keep what was measured."""
        self._file.write_text(json.dumps(self._known))

    def score(self, checkpoint: Path, *, seed: int, step: int) -> tuple[float, float]:
        """Return the mean gold reward, and the standard error that 64 prompts would give it."""
        name = digest(checkpoint)
        if name not in self._known:
            model = Qwen2ForCausalLM.from_pretrained(checkpoint).eval()
            text = sample(model, self._prompts, seed=100_000 * (seed + 1) + step)
            gold = gold_reward(self._prompts, text)
            error = float(gold.std(ddof=1) / np.sqrt(PANEL))
            self._known[name] = [float(gold.mean()), error]
        score, unit = self._known[name]
        return score, unit
