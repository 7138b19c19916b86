"""Pins under fire, and which metric is which."""

from __future__ import annotations

import random
import shutil
from decimal import Decimal

import numpy as np
import pytest

from evalstop.client.curve import read_curve, write_curve
from evalstop.client.pins import INCOMPLETE, Pins, is_complete
from evalstop.client.watched import (
    eval_size,
    find,
    finite,
    nearest,
    proxy_value,
    standard_error,
    trained_reward,
)


def save(folder, step):
    checkpoint = folder / f"checkpoint-{step}"
    (checkpoint / "shards").mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
    (checkpoint / "model.safetensors").write_bytes(b"w%d" % step)
    (checkpoint / "shards" / "1.pt").write_bytes(b"s%d" % step)
    return checkpoint


@pytest.mark.parametrize("seed", range(30))
def test_retention_never_eats_the_best(tmp_path, seed):
    # Saves, scores (late ones too), rotation and restarts in random order (R05).
    chance = random.Random(seed)
    pins = Pins(tmp_path / "evalstop")
    scores, saved, pending = {}, set(), []
    for step in range(1, 25):
        if chance.random() < 0.8:
            checkpoint = save(tmp_path, step)
            pins.saved(step, checkpoint)
            saved.add(step)
            pending.append(step)
        if pending and chance.random() < 0.9:
            scored = pending.pop(0)
            scores[scored] = chance.choice([0.1, 0.5, 0.9]) + chance.random() / 10
            pins.scored(scored, scores[scored])
        for old in sorted(tmp_path.glob("checkpoint-*"))[:-1]:
            shutil.rmtree(old)  # the harshest rotation there is
        if chance.random() < 0.2:
            pins = Pins(tmp_path / "evalstop")
            for known, score in scores.items():
                pins.scored(known, score)
        # Scores come at most three saves late here, as many as unscored pins are kept.
        while len(pending) > 2:
            scored = pending.pop(0)
            scores[scored] = chance.random()
            pins.scored(scored, scores[scored])
        if scores:
            best = max(scores, key=lambda known: (scores[known], -known))
            assert pins.best_step == best
            assert (pins.best / "model.safetensors").read_bytes() == b"w%d" % best
            assert (pins.best / "shards" / "1.pt").read_bytes() == b"s%d" % best


@pytest.mark.parametrize("missing", ["trainer_state.json", "model.safetensors"])
def test_a_torn_checkpoint_is_not_pinned(tmp_path, missing):
    checkpoint = save(tmp_path, 1)
    (checkpoint / "shards" / "1.pt").unlink()
    (checkpoint / missing).unlink()
    assert not Pins(tmp_path / "evalstop").saved(1, checkpoint)


def test_a_checkpoint_marked_incomplete_is_not_pinned(tmp_path):
    checkpoint = save(tmp_path, 1)
    (checkpoint / INCOMPLETE).touch()
    assert not is_complete(checkpoint)
    assert not Pins(tmp_path / "evalstop").saved(1, checkpoint)


def test_a_pin_broken_off_half_way_is_no_pin(tmp_path):
    half = tmp_path / "evalstop" / "checkpoint-4.part"
    half.mkdir(parents=True)
    (half / "trainer_state.json").write_text("{}")
    (half / "model.safetensors").write_bytes(b"")
    assert Pins(tmp_path / "evalstop").best_step is None


def test_where_links_are_impossible_files_are_copied(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(18, "cross-device link")

    monkeypatch.setattr("os.link", refuse)
    pins = Pins(tmp_path / "evalstop")
    assert pins.saved(1, save(tmp_path, 1))
    pins.scored(1, -3.0)
    shutil.rmtree(tmp_path / "checkpoint-1")
    assert (pins.best / "model.safetensors").read_bytes() == b"w1"


def test_step_zero_and_scores_below_zero_are_as_good_as_any(tmp_path):
    pins = Pins(tmp_path / "evalstop")
    pins.saved(0, save(tmp_path, 0))
    pins.scored(0, -1.0)
    assert pins.best_step == 0


def test_the_curve_of_a_newer_version_is_refused(tmp_path):
    point = {
        "step": 1,
        "score": None,
        "stderr": None,
        "n_items": None,
        "proxy": 1.0,
        "epoch_key": None,
    }
    write_curve(tmp_path, [point])
    assert read_curve(tmp_path) == [point]
    (tmp_path / "evalstop.json").write_text('{"version": 2, "points": []}')
    with pytest.raises(ValueError, match="version 2"):
        read_curve(tmp_path)


METRICS = {"eval_loss": 1.0, "eval_rewards/proxy/mean": 2.0, "eval_rewards/world/mean": 0.5}


@pytest.mark.parametrize(
    "spelling", ["rewards/world/mean", "eval_rewards/world/mean", "eval/rewards/world/mean"]
)
def test_a_metric_is_found_in_each_spelling(spelling):
    assert find(spelling, METRICS) == "eval_rewards/world/mean"


def test_a_metric_that_is_not_there_is_answered_with_the_nearest():
    assert find("eval_rewards/wrld/mean", METRICS) is None
    assert nearest("eval_rewards/wrld/mean", METRICS).startswith("eval_rewards/world/mean")


@pytest.mark.parametrize(
    ("name", "weights", "trained"),
    [
        ("eval_reward", None, True),
        ("eval_rewards/margins", None, True),
        ("eval_rewards/accuracies", None, True),
        ("eval_rewards/world/mean", [1.0, 0.0], False),
        ("eval_rewards/proxy/mean", [1.0, 0.0], True),
        ("eval_rewards/world/mean", None, True),
        ("eval_rewards/world/mean", [1.0], True),
        ("eval_loss", None, False),
        ("eval_win_rate", None, False),
    ],
)
def test_a_reward_that_is_trained_on_is_known_for_one(name, weights, trained):
    assert trained_reward(name, METRICS, weights) == trained


def test_standard_errors_are_found():
    speed = {"eval_runtime": 0.5, "eval_samples_per_second": 128.0}
    metrics = {"eval_x": 1.0, "eval_x_stderr": 0.1, "eval_r/mean": 1.0, "eval_r/std": 0.8} | speed
    assert eval_size(metrics) == 64
    assert standard_error("eval_x", metrics, given=None) == 0.1
    assert standard_error("eval_r/mean", metrics, given=None) == pytest.approx(0.1)
    assert standard_error("eval_x", metrics, given="r/std") == 0.8
    assert standard_error("eval_x", {"eval_x": 1.0}, given=None) is None
    assert standard_error("eval_r/mean", {"eval_r/std": 0.8}, given=None) is None


def test_the_proxy_is_the_reward_and_never_the_watched_metric():
    history = [{"reward": 1.0}, {"reward": 2.0}, {"loss": 0.0}]
    assert proxy_value("eval_x", {"eval_reward": 3.0}, history, given=None) == 3.0
    assert proxy_value("eval_reward", {"eval_reward": 3.0}, history, given=None) == 2.0
    assert proxy_value("eval_x", {"eval_my": 4.0}, history, given="my") == 4.0
    assert proxy_value("eval_x", {}, [], given=None) is None
    assert proxy_value("eval_x", {"eval_reward": float("nan")}, [], given=None) is None


@pytest.mark.parametrize("make", [float, np.float32, np.float64, np.float16, np.array, Decimal])
def test_metrics_may_be_numbers_of_any_library(make):
    metrics = {"eval_x": make(0.5), "eval_x_stderr": make(0.125), "eval_reward": make(2.0)}
    assert finite(metrics["eval_x"]) == 0.5
    assert standard_error("eval_x", metrics, given=None) == 0.125
    assert proxy_value("eval_x", metrics, (), given=None) == 2.0


@pytest.mark.parametrize(
    "value", [None, "0.5", True, float("nan"), np.float32("inf"), np.ones(2), [0.5], 1j, 10**400]
)
def test_what_is_no_finite_number_is_none(value):
    assert finite(value) is None
