"""The names that users rely on: commands, options, JSON keys, exit codes, Python names.

What runs against a server is in tests/rules/test_live_commands.py; the ids of `reproduce` in
tests/unit/experiments/test_reproduction.py.
"""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import evalstop
from evalstop import EvalStop, Monitor, parse_rule, schedulers
from evalstop.cli import main
from evalstop.cli.commands import COMMANDS
from evalstop.core.errors import InputError
from evalstop.core.job import canonical_job_type

GOOD = "trace_id,step,score\n" + "".join(
    f"a,{step},{score}\n" for step, score in enumerate((0.5, 0.9, 0.8, 0.7, 0.6), start=1)
)


def run(capsys, *words):
    """Run a command; return its exit code, JSON (None if there is none) and stderr."""
    code = main(list(words))
    told = capsys.readouterr()
    made = None
    if told.out:

        def refuse(token):
            raise AssertionError(token)

        made = json.loads(told.out, parse_constant=refuse)
    return code, made, told.err


# -- every command


NAMED = (
    "replay", "simulate", "reproduce", "bench", "power", "up", "submit", "jobs", "watch", "report",
    "explain", "best", "undo", "snooze", "approve", "stop", "freeze", "unfreeze", "savings",
    "doctor", "rules",
)  # fmt: skip


@pytest.mark.parametrize("command", NAMED)
def test_each_command_is_there_with_help_and_json(capsys, command):
    assert command in COMMANDS
    words = [command, "detectors"] if command == "bench" else [command]
    assert main([*words, "--help"]) == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_that_is_none_is_bad_usage(capsys, command):
    code = main([command, "--no-such-option"])
    told = capsys.readouterr()
    assert (code, told.out) == (2, "")
    assert "No such option" in told.err or "Usage" in told.err


OPTIONS = {
    "replay": ["--rule", "--metric", "--direction", "--html"],
    "simulate": ["--scenario", "--scheduler", "--rule", "--gpus", "--jobs", "--seeds", "--trace"],
    "reproduce": ["--quick", "--out"],
    "power": ["--items", "--stderr", "--evals", "--drop", "--alpha"],
    "up": ["--config", "--host", "--port", "--dir"],
    "report": ["--step", "--score", "--stderr"],
}


@pytest.mark.parametrize(("command", "option"), [(c, o) for c in OPTIONS for o in OPTIONS[c]])
def test_each_named_option_is_there(capsys, monkeypatch, command, option):
    monkeypatch.setenv("COLUMNS", "200")
    assert main([command, "--help"]) == 0
    assert option in capsys.readouterr().out


# -- replay

RESULT = {
    "trace_id", "source", "metric", "direction", "rule", "n_evals", "fired", "stop_step",
    "stop_index", "best_step", "best_score", "best_score_at_stop", "final_score", "saved_fraction",
    "regret", "statistic", "threshold", "reason", "skipped_points",
}  # fmt: skip


def test_replay_gives_the_named_keys_and_repeats_the_spec(tmp_path, capsys):
    path = tmp_path / "a.csv"
    path.write_text(GOOD)
    specs = ["consecutive:k=2", "default", "scan:alpha=0.01", "rlhf=consecutive:k=2;*=none", "none"]
    words = [word for spec in specs for word in ("--rule", spec)]
    code, made, _ = run(capsys, "replay", str(path), "--direction", "max", "--json", *words)
    assert code == 0
    assert [one["rule"] for one in made["results"]] == specs
    assert made["summary"].keys() == set(specs)
    for one in made["results"]:
        assert one.keys() >= RESULT
    for row in made["summary"].values():
        assert row.keys() >= {"fired", "saved_fraction_mean", "regret_mean", "regret_max"}
    first = made["results"][0]
    assert (first["fired"], first["stop_step"], first["stop_index"]) == (True, 4, 3)
    assert first["saved_fraction"] == pytest.approx(1 / 5)
    assert first["regret"] == 0.0


BAD_FILES = {
    "empty": "",
    "header only": "trace_id,step,score\n",
    "wrong delimiter": "trace_id;step;score\na;1;0.5\n",
    "score that is no number": "trace_id,step,score\na,1,good\n",
    "no score column": "trace_id,step\na,1\n",
    "no step column": "trace_id,score\na,0.5\n",
    "step that is no number": "trace_id,step,score\na,one,0.5\n",
    "binary": "\x00\x01\x02",
}


@pytest.mark.parametrize("what", BAD_FILES)
def test_a_bad_file_alone_is_2_and_among_good_ones_1(tmp_path, capsys, what):
    bad, good = tmp_path / "bad.csv", tmp_path / "good.csv"
    bad.write_text(BAD_FILES[what])
    good.write_text(GOOD)
    code, made, told = run(capsys, "replay", str(bad), "--direction", "max", "--json")
    assert (code, made) == (2, None)
    assert "bad.csv" in told
    code, made, _ = run(capsys, "replay", str(good), str(bad), "--direction", "max", "--json")
    assert code == 1
    assert {one["trace_id"] for one in made["results"]} == {"a"}
    (error,) = made["errors"]
    assert error.keys() == {"source", "message"}
    assert error["source"].startswith(str(bad)), "with the line, where there is one"


ODD_ROWS = {
    "one evaluation": ["a,1,0.5"],
    "negative step": ["a,-1,0.5", "a,2,0.6"],
    "repeated steps": ["a,1,0.5", "a,1,0.5", "a,2,0.6"],
    "conflicting steps": ["a,1,0.5", "a,1,0.7", "a,2,0.6"],
    "unordered steps": ["a,3,0.5", "a,1,0.7", "a,2,0.6"],
    "nan": ["a,1,0.5", "a,2,nan", "a,3,0.6"],
    "inf": ["a,1,0.5", "a,2,inf", "a,3,-inf"],
    "all nan": ["a,1,nan", "a,2,nan", "a,3,nan", "a,4,nan"],
    "missing scores": ["a,1,0.5", "a,2,", "a,3,0.6"],
}


@pytest.mark.parametrize("what", ODD_ROWS)
def test_odd_rows_are_coped_with_and_json_stays_json(tmp_path, capsys, what):
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["trace_id,step,score", *ODD_ROWS[what], ""]))
    words = ("--direction", "max", "--json", "--rule", "default", "--rule", "consecutive:k=2")
    code, made, _ = run(capsys, "replay", str(path), *words)
    assert code == 0
    for one in made["results"]:
        assert not one["fired"] or what == "unordered steps"
        if one["saved_fraction"] is not None:
            assert 0.0 <= one["saved_fraction"] <= 1.0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--rule", "consecutve"], "consecutive"),
        (["--rule", "consecutive:j=2"], "it has: k"),
        (["--rule", "consecutive:k=two"], "k"),
        (["--rule", "rlhf=nope;*=none"], "nope"),
        (["--metric", "acuracy"], "there are: score"),
        (["--direction", "up"], "max"),
    ],
)
def test_what_is_unknown_lists_the_known(tmp_path, capsys, words, expected):
    path = tmp_path / "a.csv"
    path.write_text(GOOD)
    given_direction = [] if "--direction" in words else ["--direction", "max"]
    code, made, told = run(capsys, "replay", str(path), "--json", *given_direction, *words)
    assert (code, made) == (2, None)
    assert expected in told


def test_a_truncated_state_and_a_folder_without_runs_are_told(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    state = tmp_path / "run" / "trainer_state.json"
    state.write_text('{"log_history": [{"step": 1, "eval_lo')
    for path in (state, tmp_path / "run"):
        code, made, told = run(capsys, "replay", str(path), "--direction", "min", "--json")
        assert (code, made) == (2, None)
        assert "trainer_state.json" in told
    (tmp_path / "nothing").mkdir()
    code, _, told = run(capsys, "replay", str(tmp_path / "nothing"), "--json")
    assert code == 2
    assert "nothing" in told


# -- simulate

SYSTEM = {
    "jct_mean_s", "jct_completed_mean_s", "jct_p50_s", "jct_p95_s", "makespan_s",
    "queue_delay_mean_s", "utilisation", "gpu_hours_used", "gpu_hours_wasted", "gpu_hours_hacking",
    "gpu_hours_lost_healthy", "gpu_hours_reclaimed", "jain_tenants",
}  # fmt: skip
DETECTION = {
    "tp", "fp", "fn", "tn", "precision", "recall", "fpr", "fpr_rlhf", "f1", "delay_evals_mean",
    "early_stops",
}  # fmt: skip


def test_simulate_gives_the_named_keys_for_each_scheduler_and_rule(capsys):
    words = ["simulate", "--jobs", "12", "--seeds", "3,7", "--json"]
    pairs = [("fifo", "none"), ("fifo", "paper"), ("srtf-est", "none"), ("srtf-est", "paper")]
    words += ["--scheduler", "fifo", "--scheduler", "srtf-est", "--rule", "none", "--rule", "paper"]
    code, made, _ = run(capsys, *words)
    assert code == 0
    assert [(one["scheduler"], one["rule"]) for one in made["results"]] == pairs
    for one in made["results"]:
        assert one.keys() >= {
            "scenario", "scheduler", "rule", "gpus", "jobs", "seeds", "system", "quality",
            "detection", "intervals", "events", "wall_s",
        }  # fmt: skip
        assert one["seeds"] == [3, 7]
        assert one["system"].keys() >= SYSTEM
        assert one["quality"].keys() >= {"delivered_score_mean", "regret_mean"}
        assert one["detection"].keys() >= DETECTION
        assert one["intervals"]["system"].keys() <= one["system"].keys()
        for low, high in (pair for pair in one["intervals"]["system"].values() if pair):
            assert low is None or low <= high


def test_the_same_seed_gives_the_same_bytes(capsys):
    made = []
    for _ in range(2):
        code, one, _ = run(capsys, "simulate", "--jobs", "10", "--seeds", "2", "--json")
        assert code == 0
        for result in one["results"]:
            del result["wall_s"]
        one.pop("version", None)
        made.append(json.dumps(one))
    assert made[0] == made[1]


SCHEDULERS = (
    "fifo", "fifo-backfill", "sjf-est", "srtf-est", "srsf-est", "loss-aware", "tiresias", "pollux",
    "native",
)  # fmt: skip


@pytest.mark.parametrize("scheduler", [*SCHEDULERS, "nope"])
def test_each_scheduler_has_its_name(capsys, scheduler):
    words = ("--jobs", "8", "--seeds", "1", "--scheduler", scheduler, "--json")
    code, made, told = run(capsys, "simulate", *words)
    if scheduler == "nope":
        assert (code, made) == (2, None)
        assert all(name in told for name in SCHEDULERS)
        return
    assert code == 0, told
    (one,) = made["results"]
    if scheduler == "native":  # the cluster schedules itself: here nobody does
        assert one["system"]["jct_mean_s"] is None
        assert any("jct_mean_s" in name for name in one["undefined"])
    else:
        assert one["system"]["jct_mean_s"] > 0


@pytest.mark.parametrize(
    "words",
    [
        ["--seeds", "x"],
        ["--seeds", "0"],
        ["--gpus", "0"],
        ["--jobs", "-1"],
        ["--scenario", "nope"],
        ["--rule", "nope"],
        ["--trace", "no-such-file.csv"],
    ],
)
def test_simulate_refuses_what_makes_no_sense(capsys, words):
    code, made, told = run(capsys, "simulate", "--json", *words)
    assert (code, made) == (2, None)
    assert told


# -- the others


def test_power_answers_its_three_questions(capsys):
    words = ("--items", "200", "--evals", "8", "--drop", "0.2", "--json")
    code, made, _ = run(capsys, "power", *words)
    assert code == 0
    assert made.keys() >= {"chance", "delay_evals_mean", "items_for_90"}


def test_rules_lists_parameters_units_and_false_alarms(capsys):
    code, made, _ = run(capsys, "rules", "--json")
    assert code == 0
    names = {one["name"] for one in made["rules"]}
    wanted = "consecutive scan cusum stop-at loss-plateau patience none default paper"
    assert names >= set(wanted.split()) - {"paper"}
    assert all(one["false_alarms"] for one in made["rules"] if one["name"] != "none")


# -- rules and Python names


@given(st.sampled_from(["grpo", "PPO", "rloo", "opd", "rlhf", "sft", "lora", "dpo", "new"]))
def test_job_types_count_as_the_contract_says(name):
    expected = {"sft": "lora", "lora": "lora", "dpo": "dpo", "new": "new"}.get(name, "rlhf")
    assert canonical_job_type(name) == expected
    rules = parse_rule("rlhf=consecutive:k=2;dpo=consecutive:k=3;*=none")
    k = {"rlhf": 2, "dpo": 3}.get(expected)
    assert getattr(rules.for_type(name), "k", None) == k


def test_paper_is_the_map_it_says():
    rules = parse_rule("paper")
    assert [getattr(rules.for_type(t), "k", None) for t in ("rlhf", "dpo", "other")] == [2, 3, None]


def test_the_python_of_the_contract_runs():
    wanted = ("Monitor", "parse_rule", "EvalStop", "simulate", "replay", "scenarios", "schedulers")
    assert all(hasattr(evalstop, name) for name in wanted)
    monitor = Monitor(parse_rule("default"), direction="max")
    verdict = monitor.update(score=0.61, step=500, stderr=0.012)
    for name in ("alarm", "state", "statistic", "threshold", "best_step", "reason"):
        assert hasattr(verdict, name)
    assert (verdict.alarm, verdict.best_step) == (False, 500)
    policy = EvalStop(base=schedulers.SrtfEst(), rules=parse_rule("paper"))
    assert policy.rules.for_type("dpo").k == 3


@given(
    step=st.one_of(st.integers(-5, 5), st.integers(2**53 - 1, 2**53)),
    score=st.one_of(st.none(), st.floats()),
    stderr=st.one_of(st.none(), st.floats()),
)
def test_monitor_takes_any_score_and_refuses_impossible_errors_and_steps(step, score, stderr):
    monitor = Monitor(parse_rule("default"), direction="max")
    bad = step < 0 or (stderr is not None and not (math.isfinite(stderr) and stderr >= 0))
    if bad:
        with pytest.raises(InputError):
            monitor.update(score=score, step=step, stderr=stderr)
    else:
        verdict = monitor.update(score=score, step=step, stderr=stderr)
        assert not verdict.alarm
