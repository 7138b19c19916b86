"""World feedback inside a run: gold reward on held-out prompts, KL to the start, win rate.

The held-out prompts are the same at every evaluation and split into eight panels of 64. One panel
is what a stop rule gets to see; the other seven, which it never sees, say what was true.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import TrainerCallback

from evalstop.lab.arms import PANELS
from evalstop.lab.language import END, PROMPT_TOKENS, corpus, gold_reward, prompts
from evalstop.lab.start import sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from evalstop.lab.start import LanguageModel

__all__ = ["HELD_OUT", "HeldOutEvaluation", "Measurement", "sequence_log_likelihood"]

HELD_OUT = 64 * PANELS
_HELD_OUT_SEED = 77


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What was measured of the policy at one step.

    Attributes:
        step: optimiser steps taken.
        gold: gold reward of one sampled completion a prompt, shape (512,).
        likelihood: mean log-likelihood a word of good text, in nats, shape (512,); higher is
            better. What imitation is judged by.
        kl: mean KL divergence from the start policy a completion, in nats.
        proxy: mean proxy score of the sampled completions; None where no proxy is optimised.
        seconds: what the evaluation itself took.
    """

    step: int
    gold: NDArray[np.float64]
    likelihood: NDArray[np.float64]
    kl: float
    proxy: float | None
    seconds: float


def _word_logits(
    model: LanguageModel, prompt_ids: NDArray[np.int64], text: NDArray[np.int64]
) -> Any:  # noqa: ANN401 -- a torch tensor
    ids = torch.tensor(np.concatenate([prompt_ids, text], axis=1))
    with torch.no_grad():
        logits = model(input_ids=ids).logits[:, PROMPT_TOKENS - 1 : -1]
    return torch.log_softmax(logits.double(), dim=-1)


def sequence_log_likelihood(
    model: LanguageModel, prompt_ids: NDArray[np.int64], text: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the mean log-likelihood a word, in nats, shape (n,)."""
    logs = _word_logits(model, prompt_ids, text)
    picked = torch.gather(logs, 2, torch.tensor(text).unsqueeze(-1)).squeeze(-1)
    mean: NDArray[np.float64] = picked.mean(dim=1).numpy()
    return mean


def _divergence(
    model: LanguageModel,
    start: LanguageModel,
    prompt_ids: NDArray[np.int64],
    text: NDArray[np.int64],
) -> float:
    """Return the KL divergence a completion: exact over the next word, sampled over prefixes."""
    ours, theirs = _word_logits(model, prompt_ids, text), _word_logits(start, prompt_ids, text)
    kl = (ours.exp() * (ours - theirs)).sum(dim=-1).numpy()
    ended_before = np.cumsum(text <= END, axis=1) - (text <= END) > 0
    return float((kl * ~ended_before).sum(axis=1).mean())


@dataclass(kw_only=True)
class HeldOutEvaluation(TrainerCallback):  # type: ignore[misc] # transformers ships no types
    """Callback that measures the policy before training and every ``every`` steps.

    Attributes:
        start: the policy that training began from.
        every: optimiser steps between evaluations.
        seed: seed of the sampling, so that evaluating does not disturb training.
        proxy: scores completions the way the optimised reward does, if there is one.
        measurements: one a step, in order.
    """

    start: LanguageModel
    every: int
    seed: int
    proxy: Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]] | None = None
    measurements: list[Measurement] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Draw the held-out prompts and good text for them: the same in every run."""
        generator = np.random.default_rng(_HELD_OUT_SEED)
        self._prompts = prompts(HELD_OUT, generator=generator)
        self._good = corpus(self._prompts, on_topic=1.0, in_grammar=1.0, generator=generator)

    def on_train_begin(
        self, _args: object, _state: object, _control: object, *, model: LanguageModel, **_: object
    ) -> None:
        """Measure the start."""
        self._measure(model, 0)

    def on_step_end(
        self,
        _args: object,
        state: Any,  # noqa: ANN401 -- transformers ships no types
        _control: object,
        *,
        model: LanguageModel,
        **_: object,
    ) -> None:
        """Measure at multiples of ``every``."""
        if state.global_step % self.every == 0:
            self._measure(model, state.global_step)

    def _measure(self, model: LanguageModel, step: int) -> None:
        began = time.perf_counter()
        training = model.training
        model.eval()
        text = sample(model, self._prompts, seed=100_000 * (self.seed + 1) + step)
        self.measurements.append(
            Measurement(
                step=step,
                gold=gold_reward(self._prompts, text),
                likelihood=sequence_log_likelihood(model, self._prompts, self._good),
                kl=_divergence(model, self.start, self._prompts, text),
                proxy=None if self.proxy is None else float(self.proxy(self._prompts, text).mean()),
                seconds=time.perf_counter() - began,
            )
        )
        model.train(training)
