"""The demo's trainer is what it says: a learned reward that misleads, or does not."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from evalstop import Monitor, parse_rule

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "live"))
import train


def run(seed, *, wide, steps=200):
    """Train as the script does, without saving or waiting."""
    generator = np.random.default_rng(seed)
    world = train.World(generator)
    model = train.RewardModel(world, wide=wide)
    mean = np.zeros(train.SIZE)
    monitor = Monitor(parse_rule("default"), direction="max")
    quality, proxy, alarm = [], [], None
    for step in range(1, steps + 1):
        responses = mean + generator.normal(0.0, train.EXPLORATION, (train.BATCH, train.SIZE))
        rewards = model.score(responses)
        advantages = rewards - rewards.mean()
        mean = mean + 0.012 * advantages @ (responses - mean) / (train.BATCH * train.EXPLORATION**2)
        if step % 8 == 0:
            fresh = mean + generator.normal(0.0, train.EXPLORATION, (train.JUDGED, train.SIZE))
            judged = world.judge(fresh)
            quality.append(float(world.quality(fresh).mean()))
            proxy.append(float(model.score(fresh).mean()))
            verdict = monitor.update(
                score=float(judged.mean()), step=step, stderr=float(judged.std() / 20)
            )
            if verdict.alarm and alarm is None:
                alarm = len(quality)
    return quality, proxy, alarm


@pytest.mark.parametrize("seed", range(6))
def test_a_narrow_reward_model_leads_past_the_peak(seed):
    quality, proxy, alarm = run(seed, wide=False)
    peak = int(np.argmax(quality))
    assert 2 < peak < 15
    assert quality[-1] < quality[peak] - 1.0
    assert proxy[-1] > proxy[peak], "the proxy rises on"
    assert alarm is not None
    assert peak < alarm < len(quality) - 5


@pytest.mark.parametrize("seed", range(6))
def test_a_wide_reward_model_settles_at_the_peak(seed):
    quality, _, alarm = run(seed, wide=True)
    assert quality[-1] > max(quality) - 0.06
    assert alarm is None
