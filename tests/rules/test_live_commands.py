"""The commands of the live platform as users rely on them: JSON keys, exit codes, refusals."""

from __future__ import annotations

import json
import os

import pytest

from evalstop.cli import main
from evalstop.client import flush, report
from evalstop.testing.custody import write_checkpoint

FALLING = (0.5, 0.9, 0.8, 0.7)


@pytest.fixture
def command(platform, monkeypatch, capsys):
    """Run a command against the platform; return exit code, JSON and stderr."""
    monkeypatch.setenv("EVALSTOP_URL", platform.url)
    monkeypatch.setenv("EVALSTOP_TOKEN", platform.token)

    def run(*words):
        code = main([*words, "--json"])
        told = capsys.readouterr()
        return code, json.loads(told.out) if told.out else None, told.err

    return run


def submitted(command, tmp_path, job, **fields):
    path = tmp_path / "job.json"
    one = {"id": job, "direction": "max", "job_type": "rlhf", "command": ["sleep", "400"]}
    path.write_text(json.dumps(one | {"grace_s": 1} | fields))
    return command("submit", str(path))


def test_a_jobs_life_from_the_command_line(command, platform, job, tmp_path):
    runs = tmp_path / "runs"
    code, made, _ = submitted(command, tmp_path, job, checkpoints=str(runs), estimated_s=3600)
    assert (code, made) == (0, {"jobs": [{"id": job, "warnings": []}]})
    platform.until(job, "running")
    for step, score in enumerate(FALLING[:3], start=1):
        write_checkpoint(runs, step)
        code, made, _ = command("report", job, "--step", str(step), "--score", str(score))
        assert code == 0
        assert made.keys() >= {"job", "accepted", "duplicates", "sequence", "stop", "state"}
        assert (made["accepted"], made["stop"]) == (1, False)
    code, made, _ = command("report", job, "--step", "3", "--score", "0.8")
    assert (code, made["accepted"], made["duplicates"]) == (0, 0, 1)
    code, made, _ = command("report", job, "--step", "4", "--score", "0.7", "--stderr", "0.01")
    assert (made["stop"], made["state"]) == (True, "alarm")
    platform.until(job, "stopped_by_policy")
    code, made, _ = command("explain", job)
    assert (code, len(made["decisions"])) == (0, 1)
    code, made, _ = command("best", job)
    assert code == 0
    assert made.keys() >= {"job", "best", "best_saved", "path", "backed"}
    assert (made["best"], made["backed"]) == ({"step": 2, "score": 0.9}, True)
    assert os.path.isdir(made["path"])  # noqa: PTH112 -- a string is what users get
    best, last = made["path"], "checkpoint-3"
    assert command("undo", job, "--from", "first")[0] == 2
    code, made, _ = command("undo", job, "--note", "a mistake")
    assert (code, made["resume_from"]) == (0, best)
    platform.until(job, "running")
    platform.report(job, 0.6, 0.5, 0.4, first=5, attempt=1)
    platform.until(job, "stopped_by_policy")
    code, made, _ = command("undo", job, "--from", "last")
    assert (code, made["resume_from"].rpartition("/")[2]) == (0, last)
    platform.until(job, "running")
    code, made, _ = command("stop", job)
    assert (code, made["command"]) == (0, "stop")
    assert platform.until(job, "ended")["outcome"] == "cancelled"
    code, made, _ = command("jobs")
    (shown,) = [one for one in made["jobs"] if one["id"] == job]
    assert shown.keys() >= {
        "id", "tenant", "job_type", "metric", "direction", "gpus", "phase", "outcome", "attempt",
        "best", "verdict", "stop", "advice", "warnings", "gpu_hours_saved", "evals_seen",
    }  # fmt: skip


def test_orders_about_the_cluster(command):
    for words in (["freeze"], ["unfreeze"]):
        code, made, _ = command(*words)
        assert (code, made["command"]) == (0, words[0])
    code, made, _ = command("savings")
    assert code == 0
    assert made.keys() == {"tenants", "total", "price_per_gpu_hour"}
    code, made, _ = command("watch")
    assert (code, made.keys()) == (0, {"cluster", "jobs"})
    assert made["cluster"]["gpus"].keys() >= {"total", "free", "held", "quarantined"}


def test_doctor_says_ok_or_what_to_fix(command, platform, job):
    code, made, _ = command("doctor")
    assert made.keys() == {"ok", "checks"}
    assert code == (0 if made["ok"] else 1)
    platform.submit(job, metric="accuracy")
    platform.report(job, *FALLING, metric="acuracy")
    code, made, _ = command("doctor")
    assert (code, made["ok"]) == (1, False)
    (server,) = [one for one in made["checks"] if one["name"] == "server"]
    assert f"job {job!r} is blind" in server["words"]
    platform.report(job, 0.5)


def test_snooze_and_approve(command, platform, job):
    platform.submit(job)
    platform.until(job, "running")
    code, _, _ = command("snooze", job, "--hours", "1")
    assert code == 0
    assert platform.report(job, *FALLING)["stop"] is False
    code, made, _ = command("approve", job)
    assert (code, len(made["actions"])) == (0, 1)
    platform.until(job, "ended")


def test_an_approval_of_nothing_and_a_best_that_is_nowhere_are_no_success(command, platform, job):
    platform.submit(job)
    platform.until(job, "running")
    code, made, told = command("approve", job)
    assert (code, made) == (2, None)
    assert f"{job} has no stop to approve" in told
    platform.report(job, 0.5)
    code, made, told = command("best", job)
    assert (code, made["path"]) == (1, None)
    assert "no whole checkpoint" in told


@pytest.mark.parametrize("option", ["--stderr", "--proxy"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_what_is_no_finite_number_is_not_reported(command, platform, job, option, value):
    platform.submit(job)
    code, made, told = command("report", job, "--step", "1", "--score", "0.5", option, value)
    assert (code, made) == (2, None)
    assert f"{option} must be a finite number" in told


def test_tokens_from_the_command_line(command, platform, job, monkeypatch):
    platform.submit(job, tenant="blue")
    code, made, _ = command("token", "make", "bo", "--tenant", "blue")
    assert (code, made["scope"], made["tenant"]) == (0, "tenant", "blue")
    code, listed, _ = command("token", "list")
    assert (code, made["id"] in {one["id"] for one in listed["tokens"]}) == (0, True)
    with monkeypatch.context() as patched:
        patched.setenv("EVALSTOP_TOKEN", made["token"])
        assert command("jobs")[0] == 0
        assert command("stop", job)[0] == 2
        assert command("token", "list")[0] == 2
    assert command("token", "revoke", made["id"])[0] == 0
    assert command("token", "revoke", made["id"])[0] == 2
    assert command("token", "make", "bo")[0] == 2


def test_of_several_jobs_the_good_ones_are_handed_in(command, job, tmp_path):
    good = {"direction": "max", "command": ["sleep", "400"], "grace_s": 1}
    path = tmp_path / "jobs.json"
    path.write_text(
        json.dumps(
            {
                "jobs": [
                    {"id": f"{job}-1", **good},
                    {"id": f"{job}-2", **good, "direction": "up"},
                    {**good, "comand": []},
                    {"id": f"{job}-4", **good},
                ]
            }
        )
    )
    code, made, told = command("submit", str(path))
    assert code == 1
    assert [one["id"] for one in made["jobs"]] == [f"{job}-1", f"{job}-4"]
    assert [one["id"] for one in made["errors"]] == [f"{job}-2", "number 3"]
    assert "'max' or 'min'" in told
    code, made, told = command("submit", str(path))  # all are refused: two are known by now
    assert (code, made) == (2, None)


NOBODY = ["best", "explain", "stop", "approve", "snooze", "undo"]


@pytest.mark.parametrize("name", NOBODY)
def test_a_job_that_nobody_knows_is_bad_input(command, name):
    code, made, told = command(name, "nobody")
    assert (code, made) == (2, None)
    assert "no job 'nobody'" in told


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--step", "1", "--score", "good"], "--score"),
        (["--step", "-1", "--score", "0.5"], "step"),
        (["--step", "1", "--score", "0.5", "--stderr", "-1"], "stderr"),
        (["--step", "1", "--score", "0.5", "--n-items", "0"], "n_items"),
        (["--step", "1", "--score", "1e300"], "score"),
    ],
)
def test_a_report_that_makes_no_sense_is_bad_input(command, platform, job, options, words):
    platform.submit(job)
    code, made, told = command("report", job, *options)
    assert (code, made) == (2, None)
    assert words in told


@pytest.mark.parametrize("score", ["nan", "inf", "-inf"])
def test_a_score_that_is_not_finite_is_counted_and_never_best(command, platform, job, score):
    """R12."""
    platform.submit(job)
    for step in (1, 2, 3):
        code, made, _ = command("report", job, "--step", str(step), f"--score={score}")
        assert code == 0
    assert (made["state"], made["stop"]) == ("diverged", False)
    assert platform.get(f"/jobs/{job}")["best"] is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"id": "x"}', '{"id": "x", "direction": "up", "command": ["a"]}', "1"]
)
def test_a_file_that_is_no_job_is_bad_input(command, tmp_path, text):
    path = tmp_path / "job.json"
    path.write_text(text)
    code, made, told = command("submit", str(path))
    if text == "[]":
        assert (code, made) == (0, {"jobs": []})
    else:
        assert (code, made) == (2, None)
        assert told


def test_a_decision_is_explained_offline_in_the_same_bytes(command, platform, job, capsys):
    """R20: from the log alone; and a job that is not in it is bad input."""
    platform.submit(job)
    platform.until(job, "running")
    platform.report(job, *FALLING)
    folder = str(platform.folder)
    assert main(["explain", job, "--offline", "--dir", folder, "--json"]) == 0
    assert capsys.readouterr().out.encode() == platform.explain(job) + b"\n"
    code, made, told = command("explain", "nobody", "--offline", "--dir", folder)
    assert (code, made) == (2, None)
    assert "no job 'nobody'" in told


def test_without_a_server_or_a_token_it_says_what_to_do(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("EVALSTOP_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("EVALSTOP_TOKEN", "x")
    assert main(["jobs", "--json"]) == 1
    assert "127.0.0.1:9" in capsys.readouterr().err
    monkeypatch.delenv("EVALSTOP_TOKEN")
    assert main(["jobs", "--dir", str(tmp_path), "--json"]) == 2
    assert "EVALSTOP_TOKEN" in capsys.readouterr().err
    assert main(["explain", "a", "--offline", "--dir", str(tmp_path), "--json"]) in {1, 2}
    assert "no log" in capsys.readouterr().err


def test_the_documents_of_the_server_are_where_they_are_said_to_be(platform):
    base = platform.url
    assert platform.http.get(f"{base}/healthz").json() == {"status": "ok"}
    assert platform.http.get(f"{base}/readyz").json() == {"ready": True}
    paths = platform.http.get(f"{base}/openapi.json").json()["paths"]
    assert "/api/v1/jobs/{job}/evals" in paths


def test_the_client_reports_by_environment_and_one_bad_report_costs_no_other(
    platform, job, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)  # what the server refuses is kept in a file here
    platform.submit(job, metric="accuracy")
    monkeypatch.setenv("EVALSTOP_URL", platform.url)
    monkeypatch.setenv("EVALSTOP_JOB_ID", job)
    monkeypatch.setenv("EVALSTOP_TOKEN", platform.running.tokens.of_job(job))
    monkeypatch.setattr("evalstop.client.reporter._reporter", None)
    report(1, 0.5)
    report(2, "nonsense")
    report(None, object())
    report(3, 0.6, stderr=-1)  # what a server refuses
    report(4, float("nan"))
    report(5, 0.7)
    assert flush(300.0)
    shown = platform.get(f"/jobs/{job}")
    assert [point["step"] for point in shown["series"]] == [1, 5]
    assert shown["evals_seen"] == 3
    (kept,) = (tmp_path / "evalstop-evals.jsonl").read_text().splitlines()
    assert json.loads(kept)["step"] == 3
