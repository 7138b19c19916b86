"""Curves out of what a logger wrote: numbers by name, each with the trainer's step."""

from __future__ import annotations

import math
from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING

from evalstop.traces import openrlhf
from evalstop.traces.names import canonical
from evalstop.traces.rewinds import attempts_of, current_branch
from evalstop.traces.series import Curve, SkippedPoint
from evalstop.traces.siblings import SUFFIX, by_place

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Scalars", "curves_of_scalars"]

Scalars = dict[str, list[tuple[int, float]]]
"""By name, (step, value) in the order written."""

_LOSSES = ("train_loss", "loss")
_REWARDS = (
    "train_reward", "train_rewards_chosen", "critic_rewards_mean", "train_rollout_reward_mean",
    "reward",
)  # fmt: skip


def curves_of_scalars(scalars: Scalars, *, source: str, trace_id: str) -> list[Curve]:
    """Return one curve a name, with training loss and reward where the run logged them.

    ``NAME_stderr`` is the standard error of ``NAME``. A resumed run that goes back opens an
    attempt; of losses and rewards the last attempt's count.
    """
    spelled = {canonical(name): name for name in scalars}
    losses = _newest(next((scalars[spelled[name]] for name in _LOSSES if name in spelled), []))
    rewards = _newest(next((scalars[spelled[name]] for name in _REWARDS if name in spelled), []))
    samples = dict(scalars.get(openrlhf.SAMPLES, ()))
    curves = []
    for name, written in scalars.items():
        points = [(step, value) for step, value in written if step >= 0]
        steps = [step for step, _ in points]
        attempts = attempts_of(steps)
        counts = [openrlhf.prompts_evaluated(name, scalars, samples.get(at)) or 0 for at in steps]
        curve = Curve(
            trace_id=trace_id,
            source=source,
            metric=name,
            steps=steps,
            scores=[value for _, value in points],
            stderrs=_stderrs(scalars.get(f"{name}{SUFFIX}", ()), steps, attempts),
            n_items=counts if any(counts) else None,
            attempts=attempts if any(attempts) else None,
            proxies=_at_or_before(rewards, steps),
            losses=[(step, loss) for step, loss in losses if math.isfinite(loss)],
            skipped=tuple(
                SkippedPoint(step=step, reason=f"step {step} is negative")
                for step, _ in written
                if step < 0
            ),
        )
        if written and not (name.endswith(SUFFIX) and name.removesuffix(SUFFIX) in scalars):
            curves.append(curve)
    return curves


def _newest(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    return current_branch(points, [step for step, _ in points])


def _stderrs(
    written: Sequence[tuple[int, float]], steps: Sequence[int], attempts: Sequence[int]
) -> list[float] | None:
    """Return each report's standard error: that of its step in the same attempt."""
    errors = by_place(written)
    found = [errors.get(key, math.nan) for key in zip(attempts, steps, strict=True)]
    return found if errors else None


def _at_or_before(rewards: Sequence[tuple[int, float]], steps: Sequence[int]) -> list[float] | None:
    """Return the newest reward at or before each step; NaN before the first."""
    if not rewards:
        return None
    ordered = sorted(rewards)
    places = [bisect_right(ordered, step, key=itemgetter(0)) for step in steps]
    return [ordered[place - 1][1] if place else math.nan for place in places]
