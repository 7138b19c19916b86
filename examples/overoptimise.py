"""A small, real reward optimisation that goes too far: numpy alone, seconds long.

A policy over 16-dimensional actions, a ~ N(theta, I/4), is trained by policy gradient (REINFORCE
with a baseline) on a proxy reward. The proxy is learned, as reward models are: a ridge regression
on noisy ratings of 400 actions near the starting policy. It is right there and wrong far away,
where training takes the policy: the true reward, measured on held-out samples with its standard
error, rises, peaks and falls while the proxy rises on (Gao, Schulman, Hilton 2023).

    python examples/overoptimise.py --out runs/a                # over-optimises
    python examples/overoptimise.py --out runs/b --on true      # trains on the true reward: healthy

Written under --out: checkpoint-N/ (policy.npz, trainer_state.json as transformers writes it; the
last --keep of them) and evals.jsonl ({"step", "score", "stderr", "n_items", "proxy", ...}).
SIGTERM saves and ends, SIGUSR1 saves and goes on.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import time
from pathlib import Path

import numpy as np

DIMENSIONS = 16
RATED = 400
RATING_NOISE = 0.3
BATCH = 64
HELD_OUT = 400
SPREAD = 0.5


def true_reward(actions: np.ndarray, wish: np.ndarray) -> np.ndarray:
    """Return how good actions of shape (n, DIMENSIONS) really are: best near ``wish``."""
    return 1.0 - np.sum((actions - wish) ** 2, axis=1) / DIMENSIONS


def learned_proxy(rng: np.random.Generator, wish: np.ndarray) -> np.ndarray:
    """Return weights of a linear reward model, fitted to noisy ratings near the start."""
    actions = rng.normal(0.0, SPREAD, (RATED, DIMENSIONS))
    ratings = true_reward(actions, wish) + rng.normal(0.0, RATING_NOISE, RATED)
    features = np.column_stack([actions, np.ones(RATED)])
    ridge = 1e-2 * np.eye(DIMENSIONS + 1)
    return np.linalg.solve(features.T @ features + ridge, features.T @ ratings)


class Training:
    """One run: the policy's mean, its rewards, and where it writes.

    Args:
        arguments: the command line.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.out = Path(arguments.out)
        self.rng = np.random.default_rng(arguments.seed)
        self.wish = self.rng.normal(0.0, 1.0, DIMENSIONS)
        self.weights = learned_proxy(self.rng, self.wish)
        self.theta = np.zeros(DIMENSIONS)
        self.step = 0
        self.log: list[dict[str, float]] = []
        self.asked_to_end = False
        self.asked_to_save = False
        self.out.mkdir(parents=True, exist_ok=True)

    def proxy(self, actions: np.ndarray) -> np.ndarray:
        """Return what the reward model thinks of actions."""
        return actions @ self.weights[:-1] + self.weights[-1]

    def reward(self, actions: np.ndarray) -> np.ndarray:
        """Return what the run is trained on."""
        if self.arguments.on == "true":
            return true_reward(actions, self.wish)
        return self.proxy(actions)

    def train_step(self) -> None:
        """Take one policy-gradient step."""
        actions = self.rng.normal(self.theta, SPREAD, (BATCH, DIMENSIONS))
        rewards = self.reward(actions)
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
        gradient = (advantages[:, None] * (actions - self.theta)).mean(axis=0) / SPREAD**2
        self.theta += self.arguments.rate * gradient
        self.step += 1

    def evaluate(self) -> None:
        """Score the policy on held-out samples and append the score to the JSONL file."""
        held_out = np.random.default_rng([self.arguments.seed, 1, self.step])
        actions = held_out.normal(self.theta, SPREAD, (HELD_OUT, DIMENSIONS))
        scores = true_reward(actions, self.wish)
        score, stderr = float(scores.mean()), float(scores.std(ddof=1) / np.sqrt(HELD_OUT))
        proxy = float(self.proxy(actions).mean())
        self.log.append({"step": self.step, "reward": proxy})
        self.log.append({"step": self.step, "eval_true": score, "eval_true_stderr": stderr})
        row = {"step": self.step, "metric": "eval_true", "score": score, "stderr": stderr}
        row |= {"n_items": HELD_OUT, "proxy": proxy, "checkpoint": f"checkpoint-{self.step}"}
        with (self.out / "evals.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"step {self.step} true {score:.4f} +- {stderr:.4f} proxy {proxy:.4f}", flush=True)

    def save(self) -> None:
        """Write a checkpoint aside, give it its name, and rotate the old ones away."""
        aside, final = self.out / f".tmp-{self.step}", self.out / f"checkpoint-{self.step}"
        if final.exists():
            return
        aside.mkdir(exist_ok=True)
        np.savez(aside / "policy.npz", theta=self.theta, step=self.step)
        state = {"global_step": self.step, "best_metric": None, "log_history": self.log}
        (aside / "trainer_state.json").write_text(json.dumps(state))
        aside.rename(final)
        kept = sorted(self.out.glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
        for old in kept[: -self.arguments.keep]:
            shutil.rmtree(old)

    def run(self) -> None:
        """Train until the steps are done or a signal asks to end."""
        while self.step < self.arguments.steps and not self.asked_to_end:
            self.train_step()
            if self.step % self.arguments.every == 0:
                self.save()
                self.evaluate()
                time.sleep(self.arguments.pause)
            if self.asked_to_save:
                self.asked_to_save = False
                self.save()
        self.save()


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="A small reward optimisation that goes too far.")
    parser.add_argument("--out", required=True, help="folder of the run")
    parser.add_argument(
        "--on", choices=["proxy", "true"], default="proxy", help="reward to train on"
    )
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--every", type=int, default=20, help="steps between evaluations")
    parser.add_argument("--rate", type=float, default=0.01, help="learning rate")
    parser.add_argument("--keep", type=int, default=2, help="checkpoints to keep, the newest")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait at evaluations")
    training = Training(parser.parse_args())

    def end(*_: object) -> None:
        training.asked_to_end = True

    def save(*_: object) -> None:
        training.asked_to_save = True

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGUSR1, save)
    training.run()


if __name__ == "__main__":
    main()
