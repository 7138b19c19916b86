"""Proxy reward models, really trained on a limited number of gold-labelled comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from evalstop.lab.language import PAD, VOCABULARY, gold_reward

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Comparisons", "RewardModel", "agreement", "train_reward_model"]


@dataclass(frozen=True, kw_only=True)
class Comparisons:
    """Two completions a prompt, and which one the labeller preferred.

    Attributes:
        prompt_ids: shape (n, 4).
        first, second: completions, shape (n, 12).
        first_wins: shape (n,), bool.
    """

    prompt_ids: NDArray[np.int64]
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    first_wins: NDArray[np.bool_]

    @classmethod
    def labelled(
        cls,
        prompt_ids: NDArray[np.int64],
        first: NDArray[np.int64],
        second: NDArray[np.int64],
        *,
        noise: float,
        generator: np.random.Generator,
    ) -> Comparisons:
        """Label by gold reward (ties by a coin), then flip each label with chance ``noise``."""
        margin = gold_reward(prompt_ids, first) - gold_reward(prompt_ids, second)
        coin = generator.random(len(margin)) < 0.5  # noqa: PLR2004 -- a fair coin
        wins = np.where(margin == 0.0, coin, margin > 0.0)
        flipped = generator.random(len(margin)) < noise
        return cls(prompt_ids=prompt_ids, first=first, second=second, first_wins=wins ^ flipped)


class RewardModel(nn.Module):  # type: ignore[misc] # torch's types are not required
    """Score of a completion given its prompt: words and word pairs, pooled over the text.

    ``width`` is the size of the word vectors: 8 gives about 2 000 weights, 32 about 17 000.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(len(VOCABULARY), width)
        self.pairs = nn.Conv1d(width, width, kernel_size=2)
        self.head = nn.Sequential(
            nn.Linear(4 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, 1)
        )

    def forward(self, prompt_ids: torch.Tensor, completion_ids: torch.Tensor) -> torch.Tensor:
        """Return scores, shape (n,), of completions (n, 12) to prompts (n, 4)."""
        kept = (completion_ids != PAD).unsqueeze(-1).float()
        vectors = self.words(completion_ids) * kept
        prompt = self.words(prompt_ids[:, :-1]).mean(dim=1)
        text = vectors.mean(dim=1)
        pairs = torch.relu(self.pairs(vectors.transpose(1, 2))).mean(dim=2)
        score: torch.Tensor = self.head(torch.cat([text, pairs, prompt, prompt * text], dim=1))
        return score.squeeze(-1)

    def score(
        self, prompt_ids: NDArray[np.int64], completion_ids: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return scores of numpy arrays, without gradients."""
        with torch.no_grad():
            out: NDArray[np.float64] = (
                self(torch.tensor(prompt_ids), torch.tensor(completion_ids)).double().numpy()
            )
        return out


def train_reward_model(
    comparisons: Comparisons, *, width: int, steps: int, seed: int
) -> RewardModel:
    """Fit a reward model by the Bradley-Terry loss; its scores are standardised on the data."""
    torch.manual_seed(seed)
    model = RewardModel(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-2)
    prompt_ids = torch.tensor(comparisons.prompt_ids)
    first, second = torch.tensor(comparisons.first), torch.tensor(comparisons.second)
    sign = torch.tensor(np.where(comparisons.first_wins, 1.0, -1.0)).float()
    for _ in range(steps):
        rows = torch.randint(len(sign), (min(128, len(sign)),))
        margin = model(prompt_ids[rows], first[rows]) - model(prompt_ids[rows], second[rows])
        loss = -nn.functional.logsigmoid(sign[rows] * margin).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        scores = model(prompt_ids, first)
        last = model.head[2]
        last.weight /= scores.std()
        last.bias.copy_((last.bias - scores.mean()) / scores.std())
    return model


def agreement(model: RewardModel, comparisons: Comparisons) -> float:
    """Return the share of comparisons on which the model agrees with the labels."""
    margin = model.score(comparisons.prompt_ids, comparisons.first) - model.score(
        comparisons.prompt_ids, comparisons.second
    )
    return float(((margin > 0) == comparisons.first_wins).mean())
