"""The callback inside every trainer of TRL that has evaluations: real trainers, tiny models."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from datasets import Dataset
from transformers.trainer_callback import PrinterCallback
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    RewardConfig,
    RewardTrainer,
    RLOOConfig,
    RLOOTrainer,
    SFTConfig,
    SFTTrainer,
)

from evalstop.client import EvalStopCallback
from evalstop.client.mitigation import raise_kl_penalty
from evalstop.lab.language import VOCABULARY, corpus, gold_reward, prompts
from evalstop.lab.start import words_tokenizer

STEPS = 4


def texts(ids) -> list[str]:
    return [" ".join(VOCABULARY[token] for token in row) for row in ids]


def world(prompts, completions, **_) -> list[float]:
    """Gold reward: what is watched."""
    tokenizer = words_tokenizer()
    asked = np.array(tokenizer(list(prompts))["input_ids"])
    text = np.zeros((len(completions), 12), dtype=np.int64)
    for row, words in enumerate(completions):
        ids = tokenizer(words)["input_ids"][:12]
        text[row, : len(ids)] = ids
    return gold_reward(asked, text).tolist()


def proxy(completions, **_) -> list[float]:
    """Learned reward in small: it likes one word."""
    return [float(words.split().count("ship")) for words in completions]


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    from evalstop.lab.start import _fresh_model

    folder = tmp_path_factory.mktemp("start")
    _fresh_model().save_pretrained(folder)
    return str(folder)


def examples(kind: str, count: int) -> Dataset:
    generator = np.random.default_rng(count)
    asked = prompts(count, generator=generator)
    good = [
        " " + text
        for text in texts(corpus(asked, on_topic=1.0, in_grammar=1.0, generator=generator))
    ]
    bad = [
        " " + text
        for text in texts(corpus(asked, on_topic=0.0, in_grammar=0.0, generator=generator))
    ]
    columns = {
        "grpo": {"prompt": texts(asked)},
        "rloo": {"prompt": texts(asked)},
        "dpo": {"prompt": texts(asked), "chosen": good, "rejected": bad},
        "reward": {"prompt": texts(asked), "chosen": good, "rejected": bad},
        "sft": {"prompt": texts(asked), "completion": good},
    }
    return Dataset.from_dict(columns[kind])


ROLLOUTS = {
    "num_generations": 2,
    "num_generations_eval": 2,
    "max_completion_length": 12,
    "beta": 0.1,
}
TRAINERS = {
    "grpo": (GRPOTrainer, GRPOConfig, ROLLOUTS, "eval_rewards/world/mean"),
    "rloo": (RLOOTrainer, RLOOConfig, ROLLOUTS, "rewards/world/mean"),
    "dpo": (DPOTrainer, DPOConfig, {"max_length": 20}, "eval_loss"),
    "reward": (RewardTrainer, RewardConfig, {"max_length": 20}, "eval_accuracy"),
    "sft": (SFTTrainer, SFTConfig, {"max_length": 20}, "eval_loss"),
}


def build(kind, start, folder, callback, **more):
    trainer, config, options, _ = TRAINERS[kind]
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "max_steps": STEPS,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "save_total_limit": 1,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
    }
    keywords = {
        "model": start,
        "train_dataset": examples(kind, 16),
        "eval_dataset": examples(kind, 8),
        "processing_class": words_tokenizer(),
        "callbacks": [callback],
    }
    if kind in {"grpo", "rloo"}:
        keywords["reward_funcs"] = [proxy, world]
        settings["reward_weights"] = [1.0, 0.0]
    keywords |= {key: more.pop(key) for key in ("peft_config",) if key in more}
    if kind == "reward":
        from transformers import Qwen2ForSequenceClassification

        keywords["model"] = Qwen2ForSequenceClassification.from_pretrained(start, num_labels=1)
    made = trainer(args=config(**(settings | options | more)), **keywords)
    made.remove_callback(PrinterCallback)
    return made


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", TRAINERS)
def test_every_trainer_is_watched_with_one_line(tmp_path, start, kind, caplog):
    metric = TRAINERS[kind][3]
    direction = "min" if metric == "eval_loss" else "max"
    callback = EvalStopCallback(metric, direction=direction)
    made = build(kind, start, tmp_path, callback)
    with caplog.at_level(logging.WARNING, logger="evalstop.client"):
        made.train()
    assert [record.message for record in caplog.records if record.name == "evalstop.client"] == []
    seen = {line["step"]: line for line in made.state.log_history if "eval_runtime" in line}
    assert list(seen) == [2, 4]
    name = metric if metric.startswith("eval_") else f"eval_{metric}"
    pick = min if direction == "min" else max
    best = pick(seen, key=lambda step: seen[step][name])
    assert callback.verdict.best_step == best
    assert callback.verdict.best_score == seen[best][name]
    assert callback.best_checkpoint == tmp_path / "evalstop" / f"checkpoint-{best}"


@pytest.mark.filterwarnings("ignore")
def test_trl_rewards_carry_their_standard_error_and_the_proxy(tmp_path, start):
    callback = EvalStopCallback("eval_rewards/world/mean", direction="max")
    made = build("grpo", start, tmp_path, callback)
    made.train()
    lines = {line["step"]: line for line in made.state.log_history if "eval_reward" in line}
    for step, point in callback._points.items():
        spread = lines[step]["eval_rewards/world/std"]
        assert point["stderr"] == pytest.approx(spread / 8**0.5)
        assert point["proxy"] == lines[step]["eval_reward"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("metric", "trained"),
    [
        ("eval_reward", True),
        ("eval_rewards/proxy/mean", True),
        ("eval_rewards/world/mean", False),
    ],
)
def test_watching_the_trained_reward_is_warned_of(tmp_path, start, metric, trained, caplog):
    made = build("grpo", start, tmp_path, EvalStopCallback(metric, direction="max"))
    with caplog.at_level(logging.WARNING, logger="evalstop.client"):
        made.train()
    assert ("reward that training maximises" in caplog.text) == trained


@pytest.mark.filterwarnings("ignore")
def test_adapters_are_pinned_and_rolled_back(tmp_path, start):
    from peft import LoraConfig

    from evalstop.client.transformers import load_weights

    callback = EvalStopCallback("eval_loss", direction="min")
    made = build(
        "dpo",
        start,
        tmp_path,
        callback,
        peft_config=LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"),
        learning_rate=1e-2,
    )
    made.train()
    best = callback.best_checkpoint
    assert (best / "adapter_model.safetensors").exists()
    model = made.accelerator.unwrap_model(made.model)
    for name, weights in model.named_parameters():
        if "lora_B" in name:
            weights.data.fill_(7.0)
    load_weights(model, best)
    assert not any(
        bool((weights == 7.0).all())
        for name, weights in model.named_parameters()
        if "lora_B" in name
    )


@pytest.mark.filterwarnings("ignore")
def test_the_kl_penalty_can_be_raised_only_where_there_is_one(tmp_path, start):
    callback = EvalStopCallback("eval_rewards/world/mean", direction="max")
    made = build("grpo", start, tmp_path, callback)
    raise_kl_penalty(made, 3.0)(None)
    assert made.beta == pytest.approx(0.3)
    free = build("grpo", start, tmp_path, callback, beta=0.0)
    with pytest.raises(ValueError, match="beta > 0"):
        raise_kl_penalty(free)
