"""One run: a tiny language model, really optimised by one of TRL's trainers."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import tempfile
import time
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from datasets import Dataset, disable_progress_bars
from transformers import set_seed
from transformers.trainer_callback import PrinterCallback
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    RLOOConfig,
    RLOOTrainer,
    SFTConfig,
    SFTTrainer,
)

from evalstop.lab.arms import EVALUATIONS, STEPS_PER_EVALUATION
from evalstop.lab.heldout import HeldOutEvaluation
from evalstop.lab.language import (
    COMPLETION_TOKENS,
    PAD,
    PROMPT_TOKENS,
    VOCABULARY,
    corpus,
    gold_reward,
    prompts,
)
from evalstop.lab.proxy import Comparisons, agreement, train_reward_model
from evalstop.lab.start import sample, start_policy, words_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from evalstop.lab.arms import Arm
    from evalstop.lab.heldout import Measurement

    Reward = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]

__all__ = ["Laboratory", "Outcome"]

_POOL_SEED = 1
_POOL = 9000
_TEST = 1000
_PROMPTS_A_RUN = 2000
_GENERATIONS = 8
_ROLLOUTS = 64
_PAIRS = 32
_MAX_LENGTH = PROMPT_TOKENS + COMPLETION_TOKENS + 2


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one run left behind.

    Attributes:
        measurements: held-out measurements in order of step, the first at step 0.
        losses: training loss by step, as the trainer logged it.
        margins: DPO's reward margin by step; empty for other trainers.
        proxy_agreement: share of 1 000 fresh clean comparisons the proxy gets right.
        seconds: wall time of training, evaluations included.
    """

    measurements: list[Measurement]
    losses: dict[int, float]
    margins: dict[int, float]
    proxy_agreement: float | None
    seconds: float


def _words(ids: NDArray[np.int64]) -> list[str]:
    return [" ".join(VOCABULARY[token] for token in row) for row in ids]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the trainers' notices off stderr: a sweep prints one line a run."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    logging.getLogger("trl").setLevel(logging.ERROR)
    disable_progress_bars()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Laboratory:
    """What all runs share: the start policy and the pool of its samples.

    Args:
        cache: folder for what is computed once.
    """

    def __init__(self, cache: Path) -> None:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        torch.set_num_threads(1)
        self.start = start_policy(cache).eval()
        self.tokenizer = words_tokenizer()

    @cached_property
    def pool(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Prompts and two samples of the start policy for each: what labellers get to compare."""
        prompt_ids = prompts(_POOL, generator=np.random.default_rng(_POOL_SEED))
        first = sample(self.start, prompt_ids, seed=_POOL_SEED)
        return prompt_ids, first, sample(self.start, prompt_ids, seed=_POOL_SEED + 1)

    def comparisons(self, arm: Arm, seed: int) -> Comparisons:
        """Return the arm's labelled comparisons for one seed."""
        generator = np.random.default_rng([seed, arm.comparisons])
        rows = generator.permutation(_POOL - _TEST)[: arm.comparisons]
        prompt_ids, first, second = (part[rows] for part in self.pool)
        return Comparisons.labelled(
            prompt_ids, first, second, noise=arm.label_noise, generator=generator
        )

    def run(self, arm: Arm, *, seed: int) -> Outcome:
        """Train one policy and measure it all along."""
        with _quiet(), tempfile.TemporaryDirectory() as folder:
            set_seed(seed)
            proxy, quality = self._reward(arm, seed)
            set_seed(seed)
            held_out = HeldOutEvaluation(
                start=self.start, every=STEPS_PER_EVALUATION, seed=seed, proxy=proxy
            )
            trainer = self._trainer(arm, seed, proxy, folder)
            trainer.add_callback(held_out)
            trainer.remove_callback(PrinterCallback)
            began = time.perf_counter()
            trainer.train()
            seconds = time.perf_counter() - began
        history = [line for line in trainer.state.log_history if "loss" in line]
        return Outcome(
            measurements=held_out.measurements,
            losses={line["step"]: float(line["loss"]) for line in history},
            margins={
                line["step"]: float(line["rewards/margins"])
                for line in history
                if "rewards/margins" in line
            },
            proxy_agreement=quality,
            seconds=seconds,
        )

    def _reward(self, arm: Arm, seed: int) -> tuple[Reward | None, float | None]:
        if arm.trainer in {"dpo", "sft"}:
            return None, None
        if not arm.comparisons:
            return gold_reward, None
        model = train_reward_model(
            self.comparisons(arm, seed), width=arm.width, steps=arm.fit_steps, seed=seed
        )
        prompt_ids, first, second = (part[-_TEST:] for part in self.pool)
        test = Comparisons.labelled(
            prompt_ids, first, second, noise=0.0, generator=np.random.default_rng(seed)
        )
        return model.score, agreement(model, test)

    def _trainer(self, arm: Arm, seed: int, proxy: Reward | None, folder: str) -> Any:  # noqa: ANN401 -- TRL ships no types
        model = copy.deepcopy(self.start)
        common: dict[str, Any] = {
            "output_dir": folder,
            "seed": seed,
            "learning_rate": arm.learning_rate,
            "lr_scheduler_type": "constant",
            "max_steps": EVALUATIONS * STEPS_PER_EVALUATION,
            "logging_steps": STEPS_PER_EVALUATION,
            "save_strategy": "no",
            "report_to": "none",
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "disable_tqdm": True,
        }
        if arm.trainer == "sft":
            return SFTTrainer(
                model=model,
                args=SFTConfig(
                    per_device_train_batch_size=_PAIRS, max_length=_MAX_LENGTH, **common
                ),
                train_dataset=_examples(arm, seed),
                processing_class=self.tokenizer,
            )
        if arm.trainer == "dpo":
            return DPOTrainer(
                model=model,
                args=DPOConfig(
                    per_device_train_batch_size=_PAIRS,
                    max_length=_MAX_LENGTH,
                    beta=arm.beta,
                    **common,
                ),
                train_dataset=_preferences(self.comparisons(arm, seed)),
                processing_class=self.tokenizer,
            )
        trainer, config = (
            (GRPOTrainer, GRPOConfig) if arm.trainer == "grpo" else (RLOOTrainer, RLOOConfig)
        )
        assert proxy is not None
        return trainer(
            model=model,
            reward_funcs=self.reward_function(proxy),
            args=config(
                per_device_train_batch_size=_ROLLOUTS,
                num_generations=_GENERATIONS,
                max_completion_length=COMPLETION_TOKENS,
                beta=arm.beta,
                **common,
            ),
            train_dataset=_prompts_only(seed),
            processing_class=self.tokenizer,
        )

    def reward_function(self, proxy: Reward) -> Callable[..., list[float]]:
        """Return a reward on token ids as the function of prompts that TRL calls."""

        def reward(prompts: list[str], completion_ids: list[list[int]], **_: object) -> list[float]:
            prompt_ids = np.array(self.tokenizer(prompts)["input_ids"])
            text = np.full((len(prompts), COMPLETION_TOKENS), PAD)
            for row, ids in enumerate(completion_ids):
                text[row, : len(ids)] = ids
            scores: list[float] = proxy(prompt_ids, text).tolist()
            return scores

        return reward


def _prompts_only(seed: int) -> Any:  # noqa: ANN401 -- datasets ships no types
    generator = np.random.default_rng([seed, 1])
    return Dataset.from_dict({"prompt": _words(prompts(_PROMPTS_A_RUN, generator=generator))})


def _examples(arm: Arm, seed: int) -> Any:  # noqa: ANN401 -- datasets ships no types
    generator = np.random.default_rng([seed, 2])
    prompt_ids = prompts(arm.examples, generator=generator)
    good = corpus(prompt_ids, on_topic=1.0, in_grammar=1.0, generator=generator)
    return Dataset.from_dict(
        {"prompt": _words(prompt_ids), "completion": [" " + text for text in _words(good)]}
    )


def _preferences(comparisons: Comparisons) -> Any:  # noqa: ANN401 -- datasets ships no types
    wins = comparisons.first_wins[:, None]
    chosen = np.where(wins, comparisons.first, comparisons.second)
    rejected = np.where(wins, comparisons.second, comparisons.first)
    return Dataset.from_dict(
        {
            "prompt": _words(comparisons.prompt_ids),
            "chosen": [" " + text for text in _words(chosen)],
            "rejected": [" " + text for text in _words(rejected)],
        }
    )
