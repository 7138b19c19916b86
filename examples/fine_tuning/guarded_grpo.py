"""A GRPO run of TRL that over-optimises a learned proxy reward, guarded by one import and one line.

A 50-thousand-parameter language model is trained against a reward model that was fitted on 1024
noisy comparisons. Its gold reward on held-out prompts, which TRL computes beside the proxy and
does not train on, rises, peaks and falls. evalstop stops the run and keeps the best checkpoint.

    python examples/fine_tuning/guarded_grpo.py --out runs/guarded     # a minute on one core

Needs `pip install 'evalstop[lab]'`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from evalstop.client import EvalStopCallback  # the one import
from evalstop.lab.arms import arm_named
from evalstop.lab.language import VOCABULARY, gold_reward, prompts
from evalstop.lab.proxy import train_reward_model
from evalstop.lab.training import Laboratory

ARM = arm_named("rloo-1024-noise10")
HELD_OUT = 64


def texts(count: int, seed: int) -> Dataset:
    """Return prompts as TRL wants them."""
    ids = prompts(count, generator=np.random.default_rng(seed))
    return Dataset.from_dict({"prompt": [" ".join(VOCABULARY[i] for i in row) for row in ids]})


def main() -> None:
    """Train until evalstop ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args()

    laboratory = Laboratory(options.out / "cache")
    reward_model = train_reward_model(
        laboratory.comparisons(ARM, options.seed), width=24, steps=200, seed=options.seed
    )
    proxy = laboratory.reward_function(reward_model.score)
    proxy.__name__ = "proxy"
    world = laboratory.reward_function(gold_reward)
    world.__name__ = "world"

    trainer = GRPOTrainer(
        model=str(options.out / "cache" / "start-policy"),
        processing_class=laboratory.tokenizer,
        reward_funcs=[proxy, world],
        train_dataset=texts(2000, seed=1),
        eval_dataset=texts(HELD_OUT, seed=2),
        args=GRPOConfig(
            output_dir=str(options.out / "run"),
            reward_weights=[1.0, 0.0],  # the world's reward is computed and logged, not trained on
            max_steps=options.steps,
            learning_rate=2e-3,
            lr_scheduler_type="constant",
            per_device_train_batch_size=64,
            num_generations=8,
            num_generations_eval=1,
            per_device_eval_batch_size=HELD_OUT,
            max_completion_length=12,
            beta=0.0,
            eval_strategy="steps",
            eval_steps=5,
            save_strategy="steps",
            save_steps=5,
            save_total_limit=1,
            logging_steps=5,
            seed=options.seed,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
    )
    guard = EvalStopCallback("eval_rewards/world/mean", direction="max")
    trainer.add_callback(guard)  # the one line
    trainer.train()

    print(f"left at step {trainer.state.global_step} of {options.steps}")
    print(guard.verdict.reason)
    print(f"best checkpoint: {guard.best_checkpoint}")


if __name__ == "__main__":
    main()
