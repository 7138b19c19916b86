"""Train a policy against a learned reward, and report how good it truly is. Pure numpy.

The design is Gao, Schulman and Hilton's (2023) at the size of a toy. A response is a vector
``a``; its true quality is ``a.w - |a|^2 / 2c``, which a far response loses. A reward model is
fitted by ridge regression to noisy judgements of responses, and a Gaussian policy is trained by
REINFORCE against that model alone.

* ``narrow`` data (responses near the start, linear features) show the model the slope and not
  the turn: the policy follows it past the peak. Its reward rises on; its quality falls.
* ``wide`` data (and quadratic features) show it the turn: the policy settles at the peak.

Every few steps the policy's held-out quality is judged on fresh responses, with its standard
error, and reported to evalstop with the proxy beside it; a checkpoint is written first. Only
the newest three checkpoints are kept here: the best would be gone at the end.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np

from evalstop.client import flush, report

SIZE = 16
BATCH = 64
EXPLORATION = 0.3
JUDGED = 400
KEPT_CHECKPOINTS = 3


class World:
    """What is truly good, and what it costs to find out: judgements are noisy."""

    def __init__(self, generator: np.random.Generator) -> None:
        direction = generator.normal(size=SIZE)
        self.slope = direction / np.linalg.norm(direction)
        self.noise = 0.5
        self.generator = generator

    def quality(self, responses: np.ndarray) -> np.ndarray:
        """Return the true quality of responses, shape (n,); the best response has 0.5."""
        spread = 0.5 * EXPLORATION**2 * SIZE  # what exploring costs at the start
        return responses @ self.slope - 0.5 * np.sum(responses**2, axis=1) + spread

    def judge(self, responses: np.ndarray) -> np.ndarray:
        """Return noisy judgements of responses, shape (n,)."""
        return self.quality(responses) + self.generator.normal(0.0, self.noise, len(responses))

    def true_quality(self, checkpoint: Path, count: int = 20_000) -> float:
        """Return the true mean quality of a saved policy's responses."""
        mean = np.load(checkpoint)["mean"]
        drawn = np.random.default_rng(1).normal(0.0, EXPLORATION, (count, SIZE))
        return float(self.quality(mean + drawn).mean())


class RewardModel:
    """Ridge regression on judged responses: the proxy."""

    def __init__(self, world: World, *, wide: bool) -> None:
        self.wide = wide
        generator = world.generator
        count, spread = (4000, 0.8) if wide else (600, 0.15)
        responses = generator.normal(0.0, spread, (count, SIZE))
        features = self.features(responses)
        features = features - features.mean(axis=0)  # in place of an intercept
        judged = world.judge(responses)
        self.weights = np.linalg.solve(
            features.T @ features + np.eye(features.shape[1]), features.T @ judged
        )

    def features(self, responses: np.ndarray) -> np.ndarray:
        """Return what the model sees of responses, shape (n, k)."""
        return np.hstack([responses, responses**2]) if self.wide else responses

    def score(self, responses: np.ndarray) -> np.ndarray:
        """Return the proxy reward of responses, shape (n,)."""
        return self.features(responses) @ self.weights


def save(folder: Path, step: int, mean: np.ndarray) -> str:
    """Write a checkpoint in one step and keep the newest few; return its name."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"policy-{step:05d}.npz"
    aside = folder / f"tmp-{name}"
    with aside.open("wb") as file:
        np.savez(file, mean=mean)
    aside.rename(folder / name)
    for old in sorted(folder.glob("policy-*.npz"))[:-KEPT_CHECKPOINTS]:
        old.unlink()
    return name


def train(options: argparse.Namespace) -> None:
    """Run all steps; pace them so that a run takes ``--seconds``."""
    generator = np.random.default_rng(options.seed)
    world = World(generator)
    model = RewardModel(world, wide=options.data == "wide")
    first, mean = resume(options.checkpoints)
    pace = options.seconds / options.steps
    started = time.monotonic() - first * pace
    for step in range(first + 1, options.steps + 1):
        responses = mean + generator.normal(0.0, EXPLORATION, (BATCH, SIZE))
        rewards = model.score(responses)
        advantages = rewards - rewards.mean()
        gradient = advantages @ (responses - mean) / (BATCH * EXPLORATION**2)
        mean = mean + options.rate * gradient
        if step == options.crash_at:
            message = "CUDA error: an illegal memory access was encountered (staged)"
            raise RuntimeError(message)
        if step % options.every == 0:
            evaluate(step, mean, world, model, options)
        time.sleep(max(0.0, started + step * pace - time.monotonic()))
    flush(5.0)


def resume(folder: Path) -> tuple[int, np.ndarray]:
    """Return the step and the policy to go on from: the best after an undo, else the newest."""
    named = os.environ.get("EVALSTOP_RESUME_FROM")
    newest = [Path(named)] if named else sorted(folder.glob("policy-*.npz"))
    if not newest:
        return 0, np.zeros(SIZE)
    return int(newest[-1].stem.rpartition("-")[2]), np.load(newest[-1])["mean"]


def evaluate(
    step: int, mean: np.ndarray, world: World, model: RewardModel, options: argparse.Namespace
) -> None:
    """Save, judge fresh responses, report."""
    name = save(options.checkpoints, step, mean)
    responses = mean + world.generator.normal(0.0, EXPLORATION, (JUDGED, SIZE))
    judged = world.judge(responses)
    score = float("nan") if options.broken_judge else float(judged.mean())
    report(
        step=step,
        score=score,
        stderr=float(judged.std(ddof=1) / np.sqrt(JUDGED)),
        n_items=JUDGED,
        proxy=float(model.score(responses).mean()),
        checkpoint=name,
        direction="max",
    )
    print(f"step {step}: quality {score:.3f}", flush=True)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--data", choices=["narrow", "wide"], default="narrow")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=8, help="steps between evaluations")
    parser.add_argument("--rate", type=float, default=0.012)
    parser.add_argument("--seconds", type=float, default=15.0, help="how long the run takes")
    parser.add_argument("--crash-at", type=int, default=0)
    parser.add_argument("--broken-judge", action="store_true", help="every score is NaN")
    return parser.parse_args()


if __name__ == "__main__":
    train(parse())
