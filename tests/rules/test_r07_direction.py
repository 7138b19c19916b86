"""R07, R26, R29: the direction is said, never guessed; what looks odd is told, never changed."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalstop import Monitor, parse_rule
from evalstop.backends.slurm.optin import parse_comment
from evalstop.cli import main
from evalstop.core.errors import InputError
from evalstop.service.dashboard.views import audit_page
from evalstop.service.requests import Submission, spec_of

WRONG = st.one_of(st.none(), st.text(max_size=8), st.booleans(), st.integers(), st.floats()).filter(
    lambda value: value not in ("max", "min")
)


@given(WRONG)
def test_a_monitor_takes_max_or_min_and_nothing_else(direction):
    with pytest.raises(InputError, match="'max' or 'min'"):
        Monitor(parse_rule("default"), direction=direction)


def test_a_monitor_without_direction_cannot_be_made():
    with pytest.raises(TypeError, match="direction"):
        Monitor(parse_rule("default"))


@given(st.text(max_size=8).filter(lambda value: value not in ("max", "min")))
def test_a_submission_takes_max_or_min_and_nothing_else(direction):
    with pytest.raises(InputError, match="'max' or 'min'"):
        spec_of(Submission(direction=direction), "a")


def test_a_file_that_does_not_state_its_direction_is_not_replayed(tmp_path, capsys):
    """Whatever the metric is called: a name is no direction."""
    for metric in ("accuracy", "eval_loss", "perplexity", "reward"):
        path = tmp_path / f"{metric}.csv"
        rows = [f"a,{step},{score},{metric}" for step, score in enumerate((0.5, 0.9, 0.8, 0.7))]
        path.write_text("\n".join(["trace_id,step,score,metric", *rows, ""]))
        assert main(["replay", str(path), "--json"]) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert "direction" in told.err


@pytest.mark.parametrize("direction", ["", "up", "MAX", "maximise"])
def test_replay_takes_no_other_direction(tmp_path, capsys, direction):
    path = tmp_path / "a.csv"
    path.write_text("trace_id,step,score\na,1,0.5\na,2,0.6\n")
    assert main(["replay", str(path), "--direction", direction]) == 2
    assert "max" in capsys.readouterr().err


def test_the_same_curve_the_other_way_round_is_the_opposite_verdict(tmp_path, capsys):
    path = tmp_path / "a.csv"
    rows = [f"a,{step},{score}" for step, score in enumerate((0.5, 0.9, 0.8, 0.7))]
    path.write_text("\n".join(["trace_id,step,score", *rows, ""]))
    found = {}
    for direction in ("max", "min"):
        words = ["replay", str(path), "--rule", "consecutive:k=2", "--direction", direction]
        assert main([*words, "--json"]) == 0
        (found[direction],) = json.loads(capsys.readouterr().out)["results"]
    assert (found["max"]["fired"], found["max"]["best_score"]) == (True, 0.9)
    assert (found["min"]["fired"], found["min"]["best_score"]) == (False, 0.5)


@pytest.mark.parametrize("direction", ["", ";direction=", ";direction=up", ";direction=MAX"])
def test_a_job_under_slurm_that_says_no_direction_is_not_guarded(direction):
    """It runs on, visibly unwatched: the problem is told with it."""
    for metric in ("accuracy", "eval_loss"):
        asked = parse_comment(f"evalstop:metric={metric}{direction}")
        assert "direction=max (higher is better) or direction=min" in asked.problem


NUMBERS = itertools.count()


@pytest.mark.parametrize(
    ("metric", "direction", "words"),
    [
        ("eval_loss", "max", ["direction 'min'"]),
        ("perplexity", "max", ["direction 'min'"]),
        ("accuracy", "min", ["direction 'max'"]),
        ("eval_reward", "max", ["held-out"]),
        ("rewards/margins", "max", ["held-out"]),
        ("train/reward", "min", ["held-out", "direction 'max'"]),
        ("eval_loss", "min", []),
        ("accuracy", "max", []),
        ("our_own_number", "max", []),
        ("our_own_number", "min", []),
        ("", "max", []),
    ],
)
def test_a_name_is_a_hint_that_is_told_and_changes_nothing(platform, metric, direction, words):
    name = f"direction-{next(NUMBERS)}"
    answer = platform.submit(name, metric=metric, direction=direction)
    assert len(answer["warnings"]) == len(words)
    for warning, expected in zip(answer["warnings"], words, strict=True):
        assert expected in warning
    shown = platform.get(f"/jobs/{name}")
    assert (shown["direction"], shown["metric"]) == (direction, metric)
    assert shown["warnings"] == answer["warnings"]


def test_where_lower_is_better_scores_are_told_as_they_were_reported(platform, job, monkeypatch):
    """In the job, its record, the console's audit, and what goes to the scheduler's own record."""
    backend = platform.running.platform.parts.backend
    notes = []
    stop = backend.stop
    monkeypatch.setattr(backend, "stop", lambda order: (notes.append(order.note), stop(order)))
    platform.submit(job, direction="min", metric="perplexity")
    platform.until(job, "running")
    platform.report(job, 5.0, 4.0, 4.5, 5.0)
    shown = platform.until(job, "stopped_by_policy")
    record = platform.http.get(f"/jobs/{job}/explain").json()["decisions"][0]
    audit = audit_page(platform.running.platform)["rows"]
    (told,) = [row["note"] for row in audit if (row["job"], row["what"]) == (job, "stop")]
    for words in (shown["stop"]["reason"], record["reason"], notes[0], told):
        assert "best 4 at step 2" in words
    assert (shown["best"]["score"], record["best"]["score"]) == (4.0, 4.0)
    assert platform.get(f"/jobs/{job}/best")["best"]["score"] == 4.0


def test_the_environment_and_command_of_a_job_are_its_own(platform, job, tmp_path):
    """R26: evalstop adds its address and changes nothing."""
    out = tmp_path / "environment"
    command = ["sh", "-c", f"env > {out}; echo $0 $1 > {out}.words", "zero", "--save_steps=7"]
    own = {"SAVE_STEPS": "7", "EVAL_STEPS": "5", "PATH": "/usr/bin:/bin"}
    platform.submit(job, command=command, environment=own)
    platform.until(job, "completed")
    seen = dict(line.split("=", 1) for line in out.read_text().splitlines())
    assert {name: seen[name] for name in own} == own
    assert out.with_suffix(".words").read_text().split() == ["zero", "--save_steps=7"]


def test_incompatible_settings_are_refused_at_submission(platform, job):
    for fields, words in [
        ({"save_signal": "SIGNOTHING"}, "save_signal"),
        ({"checkpoints": "relative/path"}, "absolute"),
        ({"min_gpus": 2, "gpus": 1}, "min_gpus"),
        ({"gpus": 201}, "the cluster has 200"),
    ]:
        assert words in platform.submit(job, status=422, **fields)["error"]
