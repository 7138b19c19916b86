"""Labels, law and proof on runs made up so that the answer is known."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from evalstop.lab.arms import ARMS, PANELS
from evalstop.lab.figures import draw_curves, draw_law, draw_rules
from evalstop.lab.labels import measure
from evalstop.lab.law import fit_arms, fit_law, gold_of_distance
from evalstop.lab.proof import judge_rule, judge_rules, prove
from evalstop.lab.series import PANELS_FILE, RUNS_FILE, LabRun, pack, recorded_runs, runs_of_sweep
from evalstop.lab.tables import arms_table, labels_table, law_table, per_arm_table, rules_table

STDERR = 0.01
EVALS = 25

SHAPES = {
    "rise": (np.linspace(0.5, 0.9, EVALS), "healthy"),
    "plateau": (np.r_[np.linspace(0.5, 0.7, 5), np.full(20, 0.7)], "healthy"),
    "hump": (np.r_[np.linspace(0.5, 0.7, 8), np.linspace(0.7, 0.4, 17)], "declined"),
    "cliff": (np.r_[np.full(10, 0.7), np.full(15, 0.3)], "declined"),
    "sag": (np.r_[np.linspace(0.5, 0.7, 12), np.linspace(0.7, 0.67, 13)], "mild"),
    "dip": (np.r_[np.full(8, 0.7), np.full(5, 0.5), np.full(12, 0.71)], "dipped"),
}


def made_up(curve, *, noise=0.0, seed=0, construction="open", arm="made-up", kl=None) -> LabRun:
    generator = np.random.default_rng(seed)
    scores = curve + noise * generator.normal(size=(PANELS, len(curve)))
    shape = scores.shape
    return LabRun(
        trace_id=f"{arm}/{seed}",
        arm=arm,
        seed=seed,
        construction=construction,
        job_type="grpo",
        metric="gold_reward",
        proxy_agreement=0.7,
        seconds=1.0,
        steps=5 * np.arange(len(curve)),
        scores=scores,
        stderrs=np.full(shape, STDERR),
        wins=np.full(shape, 30),
        ties=np.full(shape, 4),
        gold=scores.mean(axis=0),
        kl=np.linspace(0.0, 25.0, len(curve)) if kl is None else kl,
        proxy=np.linspace(0.0, 4.0, len(curve)),
        loss=np.full(len(curve), np.nan),
    )


@pytest.mark.parametrize(("curve", "label"), SHAPES.values(), ids=SHAPES)
def test_a_curve_gets_the_label_of_its_shape(curve, label):
    assert measure(curve, stderr=STDERR).label == label
    # So it does with the noise of seven panels on it.
    noisy = curve + STDERR / np.sqrt(7) * np.random.default_rng(1).normal(size=len(curve))
    assert measure(noisy, stderr=STDERR).label == label


def test_the_label_of_a_panel_does_not_look_at_that_panel():
    run = made_up(SHAPES["rise"][0])
    scores = run.scores.copy()
    scores[0] = SHAPES["hump"][0]
    changed = dataclasses.replace(run, scores=scores)
    assert changed.measured(0) == run.measured(0)
    assert changed.measured(1) != run.measured(1)


def test_the_law_is_found_in_data_that_follow_it():
    kl = np.linspace(0.0, 30.0, 60)
    curve = 0.5 + gold_of_distance(np.sqrt(kl), 0.08, 0.05)
    runs = [made_up(curve, noise=0.002, seed=seed, kl=kl) for seed in range(3)]
    fit = fit_law(runs)
    assert fit.alpha_interval[0] < 0.08 < fit.alpha_interval[1]
    assert fit.beta_interval[0] < 0.05 < fit.beta_interval[1]
    assert fit.r_squared > 0.95
    # dR/dd = alpha - beta - beta log d = 0, so log KL = 2 (alpha / beta - 1).
    assert fit.peak_kl == pytest.approx(np.exp(2 * (0.08 / 0.05 - 1)), rel=0.1)


def test_a_law_without_a_decline_has_no_peak():
    kl = np.linspace(0.0, 4.0, 30)
    fit = fit_law([made_up(0.5 + 0.1 * kl, kl=kl)])
    assert fit.beta < 0
    assert fit.peak_kl is None


def test_a_stop_is_scored_against_what_no_rule_has_seen():
    run = made_up(SHAPES["cliff"][0])
    judged = judge_rule(run, "drop:g=5,k=1,unit=se", 0)
    assert judged.measured == "declined"
    assert judged.stop_index == 10  # the first evaluation after the cliff
    last = EVALS - 1
    assert judged.reclaimed == pytest.approx((last - 10) / (last - judged.peak_index))
    assert judged.regret == pytest.approx(0.0, abs=1e-9)


def test_a_stop_before_the_peak_is_early_and_costs_regret():
    wobble = SHAPES["hump"][0].copy()
    wobble[2:4] = 0.45, 0.40
    judged = judge_rule(made_up(wobble), "consecutive:k=2", 0)
    proof = prove("consecutive:k=2", [judged])
    assert judged.stop_index == 3
    assert proof.early.count == 1
    assert judged.regret > 5


def test_what_is_not_found_saves_nothing_and_is_in_the_mean():
    runs = [made_up(SHAPES["cliff"][0], seed=0), made_up(SHAPES["hump"][0], seed=1)]
    proof = prove("none", judge_rules(runs, ["none"], panels=2)["none"])
    assert (proof.found.count, proof.found.of) == (0, 4)
    assert proof.reclaimed_mean == 0.0
    assert proof.delay_mean is None
    assert proof.panels == 2


def test_false_stops_are_counted_by_both_labels_apart():
    runs = [
        made_up(SHAPES["plateau"][0], noise=STDERR, construction="healthy", seed=0),
        made_up(SHAPES["hump"][0], construction="healthy", seed=1),  # built so, but it fell
        made_up(SHAPES["dip"][0], seed=2),
    ]
    proof = prove("drop", judge_rules(runs, ["drop:g=5"], panels=1)["drop:g=5"])
    assert (proof.false_stops_measured.count, proof.false_stops_measured.of) == (0, 1)
    assert (proof.false_stops_constructed.count, proof.false_stops_constructed.of) == (1, 2)
    assert (proof.dips_stopped.count, proof.dips_stopped.of) == (1, 1)


def test_what_is_packed_comes_back(tmp_path, monkeypatch):
    runs = [made_up(curve, seed=seed) for seed, (curve, _) in enumerate(SHAPES.values())]
    files = {"runs_file": tmp_path / RUNS_FILE.name, "panels_file": tmp_path / PANELS_FILE.name}
    pack(runs, **files)
    monkeypatch.setattr("evalstop.lab.series.RUNS_FILE", files["runs_file"])
    monkeypatch.setattr("evalstop.lab.series.PANELS_FILE", files["panels_file"])
    back = recorded_runs()
    for run, same in zip(runs, back, strict=True):
        for field in dataclasses.fields(LabRun):
            np.testing.assert_array_equal(getattr(run, field.name), getattr(same, field.name))


def test_a_sweep_is_read_back(tmp_path):
    evaluations = [
        {
            "step": 5 * place,
            "scores": [0.5 + place / 100] * PANELS,
            "stderrs": [STDERR] * PANELS,
            "wins": [3] * PANELS,
            "ties": [1] * PANELS,
            "gold": 0.5,
            "kl": float(place),
            "proxy": None,
            "loss": None if place == 0 else 1.0,
        }
        for place in range(4)
    ]
    record = {
        "trace_id": "grpo-gold/3",
        "arm": {"name": "grpo-gold", "construction": "healthy", "trainer": "grpo"},
        "seed": 3,
        "metric": "gold_reward",
        "proxy_agreement": None,
        "train_seconds": 2.0,
        "evaluations": evaluations,
    }
    (tmp_path / "grpo-gold--3.json").write_text(json.dumps(record))
    [run] = runs_of_sweep(tmp_path)
    assert run.scores.shape == (PANELS, 4)
    assert run.series(0).points[3].score == pytest.approx(0.53)
    assert [step for step, _ in run.series(0).losses] == [5, 10, 15]


def test_figures_and_tables_are_made_of_any_runs(tmp_path):
    runs = [
        made_up(curve, seed=seed, arm=name, construction=("healthy", "over-optimised")[seed % 2])
        for seed, (name, (curve, _)) in enumerate(SHAPES.items())
    ]
    judged = judge_rules(runs, ["default", "none"], panels=1)
    proofs = [prove(spec, of_rule) for spec, of_rule in judged.items()]
    draw_curves(runs, tmp_path / "curves.svg")
    draw_law(runs, tmp_path / "law.svg")
    draw_rules(proofs, tmp_path / "rules.svg")
    for name in ("curves", "law", "rules"):
        assert "<svg" in (tmp_path / f"{name}.svg").read_text()
    tables = [
        rules_table(proofs),
        labels_table(runs),
        arms_table(runs),
        law_table(fit_arms(runs)),
        per_arm_table(judged["default"]),
    ]
    for table in tables:
        header, rule, *rows = table.splitlines()
        assert rows
        assert {line.count("|") for line in (header, rule, *rows)} == {header.count("|")}


def test_arms_have_names_of_their_own_and_both_kinds_come_early():
    assert len({arm.name for arm in ARMS}) == len(ARMS)
    assert {arm.construction for arm in ARMS[:2]} == {"healthy", "over-optimised"}
    for arm in ARMS:
        if arm.construction == "healthy":
            assert arm.label_noise == 0.0
