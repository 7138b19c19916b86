"""The arms of the laboratory: what is optimised, against which reward, under which brake.

Each arm states beforehand, by construction, what it should do. What its runs then did is measured
separately (`evalstop.lab.labels`) and may differ: that is a finding, not an error.

- *healthy*: optimises the gold reward itself, or a proxy fitted on many clean comparisons under a
  KL penalty, or imitates many good examples;
- *over-optimised*: optimises a proxy fitted on few or noisy comparisons without a brake, runs DPO
  for many epochs over few comparisons, or imitates few examples for many epochs;
- *open*: in between; nothing is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "ARMS",
    "EVALUATIONS",
    "PANELS",
    "STEPS_PER_EVALUATION",
    "Arm",
    "Construction",
    "arm_named",
]

Construction = Literal["healthy", "over-optimised", "open"]

EVALUATIONS = 24
"""Evaluations of a run after the one at step 0."""

STEPS_PER_EVALUATION = 5

PANELS = 8
"""Disjoint sets of held-out prompts: one for the stop rule, the others for the truth."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way of training, to be repeated over seeds.

    Attributes:
        name: unique name.
        trainer: the TRL trainer: grpo, rloo, dpo or sft.
        construction: what the arm is built to do.
        learning_rate: constant learning rate.
        beta: weight of the KL penalty (GRPO, RLOO) or DPO's beta.
        comparisons: gold-labelled comparisons the proxy (or DPO) is fitted on; 0 for an arm that
            optimises the gold reward itself, and for imitation.
        label_noise: chance that a comparison's label is flipped.
        width: word-vector size of the proxy.
        fit_steps: optimisation steps of the proxy.
        examples: good examples that SFT imitates.
    """

    name: str
    trainer: Literal["grpo", "rloo", "dpo", "sft"]
    construction: Construction
    learning_rate: float = 2e-3
    beta: float = 0.0
    comparisons: int = 0
    label_noise: float = 0.0
    width: int = 24
    fit_steps: int = 200
    examples: int = 0


ARMS = (
    Arm(name="grpo-gold", trainer="grpo", construction="healthy"),
    Arm(
        name="grpo-512-noise10",
        trainer="grpo",
        construction="over-optimised",
        comparisons=512,
        label_noise=0.1,
    ),
    Arm(
        name="grpo-8000-kl50",
        trainer="grpo",
        construction="healthy",
        comparisons=8000,
        fit_steps=500,
        beta=0.5,
    ),
    Arm(
        name="grpo-1024-noise20",
        trainer="grpo",
        construction="over-optimised",
        comparisons=1024,
        label_noise=0.2,
        learning_rate=1.5e-3,
    ),
    Arm(
        name="dpo-8000",
        trainer="dpo",
        construction="healthy",
        comparisons=8000,
        learning_rate=1e-3,
        beta=0.3,
    ),
    Arm(
        name="dpo-512-noise10",
        trainer="dpo",
        construction="over-optimised",
        comparisons=512,
        label_noise=0.1,
        learning_rate=1e-3,
        beta=0.1,
    ),
    Arm(name="rloo-gold", trainer="rloo", construction="healthy"),
    Arm(
        name="rloo-1024-noise10",
        trainer="rloo",
        construction="over-optimised",
        comparisons=1024,
        label_noise=0.1,
    ),
    Arm(
        name="sft-3000",
        trainer="sft",
        construction="healthy",
        examples=3000,
        learning_rate=1e-3,
    ),
    Arm(
        name="sft-64",
        trainer="sft",
        construction="over-optimised",
        examples=64,
        learning_rate=1e-3,
    ),
    Arm(
        name="grpo-8000-kl10",
        trainer="grpo",
        construction="healthy",
        comparisons=8000,
        fit_steps=500,
        beta=0.1,
    ),
    Arm(
        name="grpo-4096-noise25",
        trainer="grpo",
        construction="over-optimised",
        comparisons=4096,
        label_noise=0.25,
        fit_steps=300,
    ),
    Arm(name="grpo-gold-slow", trainer="grpo", construction="healthy", learning_rate=1e-3),
    Arm(
        name="grpo-2048-wide",
        trainer="grpo",
        construction="over-optimised",
        comparisons=2048,
        width=48,
        fit_steps=150,
        learning_rate=1.5e-3,
    ),
    Arm(
        name="rloo-8000-kl50",
        trainer="rloo",
        construction="healthy",
        comparisons=8000,
        fit_steps=500,
        beta=0.5,
    ),
    Arm(
        name="grpo-256-noise30",
        trainer="grpo",
        construction="over-optimised",
        comparisons=256,
        label_noise=0.3,
        width=8,
        learning_rate=1e-3,
    ),
    Arm(
        name="dpo-256-noise20",
        trainer="dpo",
        construction="over-optimised",
        comparisons=256,
        label_noise=0.2,
        learning_rate=1e-3,
        beta=0.05,
    ),
    Arm(name="grpo-8000", trainer="grpo", construction="open", comparisons=8000, fit_steps=500),
    Arm(
        name="grpo-512-kl50",
        trainer="grpo",
        construction="open",
        comparisons=512,
        label_noise=0.1,
        beta=0.5,
    ),
    Arm(name="grpo-4096", trainer="grpo", construction="open", comparisons=4096),
)
"""In the order a sweep goes through them, so that every prefix holds both kinds."""


def arm_named(name: str) -> Arm:
    """Return the arm of that name.

    Raises:
        KeyError: if there is none; the message lists the known ones.
    """
    for arm in ARMS:
        if arm.name == name:
            return arm
    msg = f"unknown arm {name!r}; known: {', '.join(arm.name for arm in ARMS)}"
    raise KeyError(msg)
