"""The laboratory makes real runs, again and again the same, and the example does what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evalstop.lab.arms import PANELS, arm_named
from evalstop.lab.proxy import Comparisons, agreement, train_reward_model
from evalstop.lab.series import runs_of_sweep
from evalstop.lab.sweep import sweep
from evalstop.lab.training import Laboratory

ROOT = Path(__file__).parents[3]
ONE_OF_EACH = ("grpo-512-noise10", "rloo-gold", "dpo-512-noise10", "sft-64")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="module")
def laboratory(cache):
    return Laboratory(cache / "cache")


@pytest.fixture
def _short(monkeypatch):
    monkeypatch.setattr("evalstop.lab.training.EVALUATIONS", 2)
    monkeypatch.setattr("evalstop.lab.training.STEPS_PER_EVALUATION", 3)


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_each_trainer_gives_a_measured_run_and_a_broken_sweep_goes_on(
    cache, laboratory, name, tmp_path
):
    assert laboratory.start is not None  # the start policy is in the cache by now
    (tmp_path / "cache").symlink_to(cache / "cache")
    said = []
    arms = [arm_named(name)]
    assert sweep(tmp_path, seeds=[0], arms=arms, said=said.append) == 1
    assert sweep(tmp_path, seeds=[0], arms=arms, said=said.append) == 0
    assert len(said) == 1
    [run] = runs_of_sweep(tmp_path)
    assert run.steps.tolist() == [0, 3, 6]
    assert run.kl[0] == pytest.approx(0.0, abs=1e-6)
    assert (run.kl[1:] > 0).all()
    assert (run.ties[:, 0] == 64).all()  # at the start every completion ties with itself
    assert (run.stderrs > 0).all()
    items = np.load(tmp_path / f"{name}--0.npz")["gold"]
    assert items.shape == (3, 64 * PANELS)
    assert run.gold == pytest.approx(items.mean(axis=1), abs=1e-6)
    raw = json.loads((tmp_path / f"{name}--0.json").read_text())
    json.dumps(raw, allow_nan=False)


@pytest.mark.usefixtures("_short")
def test_a_run_is_the_same_for_the_same_seed_and_another_for_another(laboratory):
    arm = arm_named("grpo-512-noise10")
    first, same, other = (laboratory.run(arm, seed=seed) for seed in (3, 3, 4))
    curves = [[point.gold.mean() for point in one.measurements] for one in (first, same, other)]
    assert curves[0] == curves[1]
    assert curves[0] != curves[2]


def test_more_and_cleaner_comparisons_make_a_better_proxy(laboratory):
    prompt_ids, first, second = (part[-1000:] for part in laboratory.pool)
    test = Comparisons.labelled(
        prompt_ids, first, second, noise=0.0, generator=np.random.default_rng(0)
    )
    agreed = {}
    for name in ("grpo-256-noise30", "grpo-512-noise10", "grpo-8000"):
        arm = arm_named(name)
        model = train_reward_model(
            laboratory.comparisons(arm, 0), width=arm.width, steps=arm.fit_steps, seed=0
        )
        agreed[name] = agreement(model, test)
    assert 0.5 < agreed["grpo-256-noise30"] < agreed["grpo-512-noise10"] < agreed["grpo-8000"]


def test_noise_flips_the_share_of_labels_that_it_says(laboratory):
    prompt_ids, first, second = laboratory.pool
    clean, noisy = (
        Comparisons.labelled(
            prompt_ids, first, second, noise=noise, generator=np.random.default_rng(5)
        )
        for noise in (0.0, 0.25)
    )
    flipped = (clean.first_wins != noisy.first_wins).mean()
    assert flipped == pytest.approx(0.25, abs=0.02)


def test_the_example_stops_itself_and_names_its_best_checkpoint(cache, laboratory, tmp_path):
    assert laboratory.start is not None
    (tmp_path / "cache").symlink_to(cache / "cache")
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "examples/fine_tuning/guarded_grpo.py"),
            "--out",
            str(tmp_path),
        ],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    left, reason, best = done.stdout.strip().splitlines()[-3:]
    assert int(left.split()[3]) < 120
    assert reason.startswith("alarm")
    assert (Path(best.removeprefix("best checkpoint: ")) / "model.safetensors").exists()
