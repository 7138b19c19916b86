"""What the tests train: a two-layer model on made-up tokens, with a scripted world beside it."""

from __future__ import annotations

import torch
from transformers import (
    Qwen2Config,
    Qwen2ForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback

HEALTHY = [0.50, 0.52, 0.54, 0.55, 0.56, 0.565, 0.57, 0.572, 0.575, 0.577]
HACKED = [0.50, 0.56, 0.60, 0.57, 0.52, 0.46, 0.40, 0.34, 0.30, 0.27]
STDERR = 0.01
EVERY = 2


def tiny_model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=32,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
        )
    )


class World(TrainerCallback):
    """World feedback by script: the score of the n-th evaluation, added to its metrics."""

    def __init__(self, scores: list[float]) -> None:
        self.scores = scores

    def on_evaluate(self, _args, state, _control, metrics, **_):
        score = self.scores[state.global_step // EVERY - 1]
        metrics["eval_world"] = score
        metrics["eval_world_stderr"] = STDERR


def data(count: int) -> list[dict]:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(2, 32, (count, 8), generator=generator)
    return [{"input_ids": row, "labels": row} for row in rows]


def arguments(folder, **more) -> TrainingArguments:
    settings = {
        "output_dir": str(folder),
        "max_steps": EVERY * len(HACKED),
        "per_device_train_batch_size": 4,
        "eval_strategy": "steps",
        "eval_steps": EVERY,
        "save_strategy": "steps",
        "save_steps": EVERY,
        "logging_steps": EVERY,
        "learning_rate": 1e-3,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 1,
    }
    return TrainingArguments(**(settings | more))


def trainer(folder, callbacks, model=None, **more) -> Trainer:
    made = Trainer(
        model=model or tiny_model(),
        args=arguments(folder, **more),
        train_dataset=data(32),
        eval_dataset=data(8),
        callbacks=callbacks,
    )
    made.remove_callback(PrinterCallback)
    return made
