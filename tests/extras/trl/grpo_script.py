"""A real GRPO run of TRL that over-optimises, and knows nothing of evalstop.

A 24-thousand-parameter language model is rewarded for the letter e (the proxy). The world, which
TRL computes beside it and does not train on, wants some e: it rises, peaks and falls.
"""

from __future__ import annotations

import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed
from trl import GRPOConfig, GRPOTrainer

WISHED = 0.3


def tokenizer() -> PreTrainedTokenizerFast:
    words = ["<pad>", "<eos>", "<unk>", *"abcdefghijklmnopqrstuvwxyz0123456789 .,:?!\n"]
    made = Tokenizer(
        models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[], unk_token="<unk>")
    )
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
    )


def share_of_e(text: str) -> float:
    return text.count("e") / max(1, len(text))


def proxy(completions: list[str], **_: object) -> list[float]:
    return [share_of_e(text) for text in completions]


def world(completions: list[str], **_: object) -> list[float]:
    return [-abs(share_of_e(text) - WISHED) for text in completions]


def main() -> None:
    torch.set_num_threads(1)
    set_seed(1)
    tokens = tokenizer()
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokens),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=128,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
        )
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[proxy, world],
        processing_class=tokens,
        train_dataset=Dataset.from_dict({"prompt": [f"q{i}: say?" for i in range(64)]}),
        eval_dataset=Dataset.from_dict({"prompt": [f"z{i}: say?" for i in range(16)]}),
        args=GRPOConfig(
            output_dir=sys.argv[1],
            per_device_train_batch_size=8,
            per_device_eval_batch_size=16,
            num_generations=4,
            num_generations_eval=4,
            max_completion_length=16,
            learning_rate=2e-3,
            max_steps=2000,
            logging_steps=2,
            eval_strategy="steps",
            eval_steps=2,
            save_strategy="steps",
            save_steps=2,
            save_total_limit=2,
            reward_weights=[1.0, 0.0],
            beta=0.0,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
            report_to="none",
            seed=1,
            enable_jit_checkpoint=True,
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main()
