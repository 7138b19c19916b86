"""The runs that ship: whole, labelled as the rule says, and what the proof claims of them."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from evalstop.cli import main
from evalstop.lab.arms import ARMS, PANELS
from evalstop.lab.proof import judge_rules, prove
from evalstop.lab.series import RUNS_FILE, recorded_runs


@pytest.fixture(scope="module")
def runs():
    return recorded_runs()


@pytest.fixture(scope="module")
def proofs(runs):
    judged = judge_rules(runs, ["default", "consecutive:k=2"])
    return {spec: prove(spec, of_rule) for spec, of_rule in judged.items()}


def test_every_run_is_whole(runs):
    for run in runs:
        assert len(run.steps) >= 20
        assert run.scores.shape == run.stderrs.shape == (PANELS, len(run.steps))
        assert np.isfinite(run.scores).all()
        assert (run.stderrs >= 0).all()
        assert (run.wins + run.ties <= 64).all()
        assert run.kl[0] == pytest.approx(0.0, abs=1e-5)


def test_every_arm_is_there_with_the_construction_it_states(runs):
    constructions = {arm.name: arm.construction for arm in ARMS}
    assert {run.arm for run in runs} == set(constructions)
    assert all(run.construction == constructions[run.arm] for run in runs)


def test_the_label_in_the_file_is_what_the_rule_gives(runs):
    rows = pq.read_table(RUNS_FILE, columns=["trace_id", "measured"]).to_pylist()
    assert {(row["trace_id"], row["measured"]) for row in rows} == {
        (run.trace_id, run.label) for run in runs
    }


def test_a_rule_sees_one_panel_and_the_label_comes_from_the_others(runs):
    rows = pq.read_table(RUNS_FILE).to_pylist()
    by_place = {(row["trace_id"], row["step"]): row for row in rows}
    for run in runs:
        for place, step in enumerate(run.steps):
            row = by_place[run.trace_id, step]
            assert row["score"] == run.scores[0, place]
            assert row["true_score"] == pytest.approx(run.scores[1:, place].mean())


def test_the_file_is_what_replay_reads(runs, capsys):
    assert main(["replay", str(RUNS_FILE), "--rule", "default", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert len(results) == len(runs)
    assert {result["direction"] for result in results} == {"max"}


# The bounds are issue 6's; what was measured stands in docs/real-runs.md.
def test_the_default_rule_spares_what_was_built_healthy(proofs):
    share = proofs["default"].false_stops_constructed
    assert share.of >= 100
    assert share.value <= 0.02


def test_the_default_rule_finds_what_clearly_fell(proofs):
    assert proofs["default"].found.value >= 0.9
    assert proofs["default"].early.value <= 0.01
    assert proofs["default"].regret_mean < 1.0


def test_the_rule_of_the_paper_does_not_spare_healthy_runs(proofs):
    assert proofs["consecutive:k=2"].false_stops_constructed.low > 0.3


@pytest.mark.parametrize("command", ["list", "proof", "fit"])
def test_the_commands_speak_json(command, capsys):
    options = ["--rule", "default", "--panels", "1"] if command == "proof" else []
    assert main(["lab", command, *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"]
    assert main(["lab", command, *options]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--out", "x", "--arm", "grpo-golf"], "known: grpo-gold"),
        (["run", "--out", "x", "--seeds", "many"], "--seeds"),
        (["proof", "--panels", "9"], "1..8"),
        (["proof", "--rule", "defualt"], "default"),
        (["list", "--from", "nowhere"], "no runs in nowhere"),
    ],
)
def test_mistakes_are_answered(words, said, capsys):
    assert main(["lab", *words]) == 2
    assert said in capsys.readouterr().err


def test_packing_is_a_round_trip(tmp_path, capsys):
    record = {
        "trace_id": "sft-64/0",
        "arm": {"name": "sft-64", "construction": "over-optimised", "trainer": "sft"},
        "seed": 0,
        "metric": "held_out_log_likelihood",
        "proxy_agreement": None,
        "train_seconds": 2.0,
        "evaluations": [
            {
                "step": 5 * place,
                "scores": [-2.0] * PANELS,
                "stderrs": [0.1] * PANELS,
                "wins": [3] * PANELS,
                "ties": [1] * PANELS,
                "gold": 0.5,
                "kl": 0.0,
                "proxy": None,
                "loss": 1.0,
            }
            for place in range(4)
        ],
    }
    (tmp_path / "sft-64--0.json").write_text(json.dumps(record))
    assert main(["lab", "pack", "--from", str(tmp_path), "--out", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"]["runs"] == 1
    assert main(["replay", str(tmp_path / RUNS_FILE.name), "--json"]) == 0
