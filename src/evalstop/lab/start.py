"""The policy that every run starts from: trained once on mediocre text, then cached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from evalstop.lab.language import (
    COMPLETION_TOKENS,
    END,
    PAD,
    PROMPT_TOKENS,
    VOCABULARY,
    corpus,
    prompts,
)

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["LanguageModel", "sample", "start_policy", "words_tokenizer"]

LanguageModel: TypeAlias = Any
"""A causal language model of transformers, which ships no types."""

WordTokenizer: TypeAlias = Any
"""A fast tokenizer of transformers."""

_CORPUS_SEED = 20260604
_CORPUS_SIZE = 6000
_TRAINING_STEPS = 500
_BATCH = 128


def words_tokenizer() -> WordTokenizer:
    """Return a tokenizer with one token a word."""
    vocabulary = {word: place for place, word in enumerate(VOCABULARY)}
    pad, end = VOCABULARY[PAD], VOCABULARY[END]
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token=pad))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, eos_token=end, padding_side="left"
    )


def _fresh_model() -> LanguageModel:
    configuration = Qwen2Config(
        vocab_size=len(VOCABULARY),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
        pad_token_id=PAD,
        eos_token_id=END,
        bos_token_id=None,
        use_cache=True,
    )
    return Qwen2ForCausalLM(configuration)


def start_policy(cache: Path) -> LanguageModel:
    """Return the start policy, training it if ``cache`` does not hold it yet."""
    folder = cache / "start-policy"
    if (folder / "model.safetensors").exists():
        return Qwen2ForCausalLM.from_pretrained(folder)
    torch.manual_seed(_CORPUS_SEED)
    generator = np.random.default_rng(_CORPUS_SEED)
    prompt_ids = prompts(_CORPUS_SIZE, generator=generator)
    text = corpus(prompt_ids, on_topic=0.15, in_grammar=0.35, generator=generator)
    ids = torch.tensor(np.concatenate([prompt_ids, text], axis=1))
    labels = ids.clone()
    labels[:, :PROMPT_TOKENS] = -100
    model = _fresh_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(_TRAINING_STEPS):
        rows = torch.tensor(generator.integers(len(ids), size=_BATCH))
        loss = model(input_ids=ids[rows], labels=labels[rows]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    # TRL makes its reference model from the path a model came from, so it must have one.
    return Qwen2ForCausalLM.from_pretrained(folder)


def sample(model: LanguageModel, prompt_ids: NDArray[np.int64], *, seed: int) -> NDArray[np.int64]:
    """Sample one completion a prompt at temperature 1, shape (n, 12), padded with `PAD`.

    The draw is from a generator state of its own: nothing else that is random is disturbed.
    """
    ids = torch.tensor(prompt_ids)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            top_p=1.0,
            temperature=1.0,
            max_new_tokens=COMPLETION_TOKENS,
            pad_token_id=PAD,
            eos_token_id=END,
        )
    new = out[:, PROMPT_TOKENS:].numpy()
    padded = np.full((len(new), COMPLETION_TOKENS), PAD)
    padded[:, : new.shape[1]] = new
    return padded
