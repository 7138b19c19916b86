"""One job of the queue: TRL optimises a small language model against a reward model.

It knows nothing of evalstop. The world's reward (gold reward on 64 held-out prompts) is a reward
of weight zero, which TRL computes and logs and does not train on; checkpoints are rotated as TRL
does. The weights at each evaluation are also set aside in a folder that evalstop is not told of,
from which the truth is measured when the queue is over.

A step takes at least ``--pace`` seconds: a slot then works at a steady speed, as a GPU does,
though all slots share the machine's cores.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from truth import load_reward, watched_prompts

from evalstop.lab.arms import EVALUATIONS, STEPS_PER_EVALUATION, arm_named
from evalstop.lab.language import COMPLETION_TOKENS, VOCABULARY, gold_reward, prompts
from evalstop.lab.training import Laboratory

PROMPTS = 2000
ROLLOUTS = 64
GENERATIONS = 8


def words(ids: np.ndarray) -> Dataset:
    """Return prompts as TRL wants them."""
    return Dataset.from_dict({"prompt": [" ".join(VOCABULARY[i] for i in row) for row in ids]})


class SetAside(TrainerCallback):
    """Keeps the weights at each evaluation, notes the time, and paces the run."""

    def __init__(self, folder: Path, pace: float) -> None:
        self.folder = folder
        self.pace = pace
        self.began = 0.0
        self.first = 0
        folder.mkdir(parents=True, exist_ok=True)

    def _keep(self, step: int, model: Any) -> None:  # noqa: ANN401 -- transformers ships no types
        model.save_pretrained(self.folder / f"step-{step}")
        with (self.folder / "steps.jsonl").open("a") as log:
            log.write(json.dumps({"step": step, "time": time.time()}) + "\n")

    def on_train_begin(
        self,
        _args: object,
        state: Any,  # noqa: ANN401 -- transformers ships no types
        _control: object,
        *,
        model: object,
        **_: object,
    ) -> None:
        """Keep the start."""
        self.began, self.first = time.monotonic(), state.global_step
        self._keep(state.global_step, model)

    def on_step_end(
        self,
        _args: object,
        state: Any,  # noqa: ANN401 -- transformers ships no types
        _control: object,
        *,
        model: object,
        **_: object,
    ) -> None:
        """Keep what is about to be evaluated; wait until the step's time is over."""
        due = self.began + (state.global_step - self.first) * self.pace
        time.sleep(max(0.0, due - time.monotonic()))
        if state.global_step % STEPS_PER_EVALUATION == 0:
            self._keep(state.global_step, model)


def trainer_of(options: argparse.Namespace) -> GRPOTrainer | RLOOTrainer:
    """Return the arm's trainer: the laboratory's, with evaluations and checkpoints by TRL."""
    arm = arm_named(options.arm)
    laboratory = Laboratory(options.prepared)
    proxy = laboratory.reward_function(load_reward(options.prepared, arm, options.seed))
    proxy.__name__ = "proxy"
    world = laboratory.reward_function(gold_reward)
    world.__name__ = "world"
    kinds = {"grpo": (GRPOTrainer, GRPOConfig), "rloo": (RLOOTrainer, RLOOConfig)}
    trainer, config = kinds[arm.trainer]
    held_out = watched_prompts()
    return trainer(
        model=str(options.prepared / "start-policy"),
        reward_funcs=[proxy, world],
        processing_class=laboratory.tokenizer,
        train_dataset=words(prompts(PROMPTS, generator=np.random.default_rng([options.seed, 1]))),
        eval_dataset=words(held_out),
        args=config(
            output_dir=str(options.out),
            reward_weights=[1.0, 0.0],
            learning_rate=arm.learning_rate,
            lr_scheduler_type="constant",
            beta=arm.beta,
            max_steps=options.steps,
            per_device_train_batch_size=ROLLOUTS,
            num_generations=GENERATIONS,
            max_completion_length=COMPLETION_TOKENS,
            per_device_eval_batch_size=len(held_out),
            num_generations_eval=1,
            eval_strategy="steps",
            eval_steps=STEPS_PER_EVALUATION,
            save_strategy="steps",
            save_steps=STEPS_PER_EVALUATION,
            save_total_limit=2,
            logging_steps=STEPS_PER_EVALUATION,
            seed=options.seed,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
    )


def main() -> None:
    """Train to the end, from the newest checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prepared", type=Path, required=True)
    parser.add_argument("--arm", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--aside", type=Path, required=True)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=EVALUATIONS * STEPS_PER_EVALUATION)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    trainer = trainer_of(options)
    trainer.add_callback(SetAside(options.aside, options.pace))
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(options.out)))


if __name__ == "__main__":
    main()
