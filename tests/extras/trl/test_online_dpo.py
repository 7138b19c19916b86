"""The callback inside TRL's Online DPO trainer, which lives in `trl.experimental` since 1.0."""

from __future__ import annotations

import logging
import os

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import pytest
import torch
from test_trl_trainers import examples, proxy, start, world
from transformers import AutoModelForCausalLM
from transformers.trainer_callback import PrinterCallback
from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

from evalstop.client import EvalStopCallback
from evalstop.client.mitigation import raise_kl_penalty
from evalstop.lab.start import words_tokenizer

__all__ = ["start"]

pytestmark = pytest.mark.filterwarnings("ignore")

HELD_OUT = 8
METRIC = "eval_world"


class Evaluated(OnlineDPOTrainer):
    """As docs/how-to/trl.md has it: scores answers to held-out prompts."""

    scripted: dict[int, float] | None = None

    def evaluate(self, *_, **__):
        prompts = [row["prompt"] for row in self.eval_dataset]
        inputs = self.processing_class(prompts, return_tensors="pt")
        with torch.no_grad():
            ids = self.model.generate(**inputs, max_new_tokens=8, do_sample=False)
        answers = self.processing_class.batch_decode(ids[:, inputs["input_ids"].shape[1] :])
        scores = torch.tensor(world(prompts, answers))
        metrics = {
            METRIC: float(scores.mean()),
            f"{METRIC}_stderr": float(scores.std()) / HELD_OUT**0.5 + 1e-3,
        }
        if self.scripted is not None:
            metrics[METRIC] = self.scripted[self.state.global_step]
            metrics[f"{METRIC}_stderr"] = 0.02
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics


def build(model, folder, callback, cls=Evaluated, **more):
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "max_steps": 4,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "save_total_limit": 1,
        "logging_steps": 1,
        "max_new_tokens": 8,
        "max_length": 24,
        "beta": [0.1],
        "reward_weights": [1.0, 0.0],
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
    }
    made = cls(
        model=AutoModelForCausalLM.from_pretrained(model),
        reward_funcs=[proxy, world],
        args=OnlineDPOConfig(**(settings | more)),
        train_dataset=examples("grpo", 32),
        eval_dataset=examples("grpo", HELD_OUT),
        processing_class=words_tokenizer(),
        callbacks=[callback],
    )
    made.remove_callback(PrinterCallback)
    return made


def test_it_is_watched_with_its_training_reward_as_proxy(tmp_path, start, caplog):
    callback = EvalStopCallback(METRIC, direction="max")
    made = build(start, tmp_path, callback)
    with caplog.at_level(logging.WARNING, logger="evalstop.client"):
        made.train()
    assert [record.message for record in caplog.records if record.name == "evalstop.client"] == []
    lines = made.state.log_history
    seen = {line["step"]: line for line in lines if METRIC in line}
    rewards = {line["step"]: line["objective/scores"] for line in lines if "loss" in line}
    assert list(seen) == [2, 4]
    for step, point in callback._points.items():
        assert point["score"] == seen[step][METRIC]
        assert point["stderr"] == seen[step][f"{METRIC}_stderr"]
        assert point["proxy"] == rewards[step]
    assert callback._job_type == "rlhf"
    best = max(seen, key=lambda step: (seen[step][METRIC], -step))
    assert callback.best_checkpoint == tmp_path / "evalstop" / f"checkpoint-{best}"


def test_a_falling_run_is_stopped_and_can_be_given_a_stronger_penalty_first(tmp_path, start):
    scores = {2: 0.5, 4: 0.7, 6: 0.8, 8: 0.76, 10: 0.72, 12: 0.69, 14: 0.5, 16: 0.4}
    made = None

    def penalise(suspicion):
        raise_kl_penalty(made, 3.0)(suspicion)

    callback = EvalStopCallback(METRIC, direction="max", on_suspect=penalise)
    made = build(start, tmp_path, callback, max_steps=20)
    made.scripted = scores
    made.train()
    assert made.state.global_step == callback.stopped_at == 14
    assert callback.best_checkpoint == tmp_path / "evalstop" / "checkpoint-6"
    assert (callback.best_checkpoint / "model.safetensors").exists()
    assert made.beta == pytest.approx(0.3)


def test_a_penalty_an_epoch_is_raised_for_each(tmp_path, start):
    made = build(start, tmp_path, EvalStopCallback(METRIC, direction="max"), beta=[0.1, 0.2])
    made.state.epoch = 0
    raise_kl_penalty(made, 2.0)(None)
    assert made._beta == pytest.approx([0.2, 0.4])


def test_its_own_evaluation_does_not_work_in_this_release(tmp_path, start):
    """Why `evaluate` has to be given: should a release evaluate by itself, the guide changes."""
    made = build(start, tmp_path, EvalStopCallback(METRIC, direction="max"), cls=OnlineDPOTrainer)
    with pytest.raises(ValueError, match="input_ids or inputs_embeds"):
        made.evaluate()
