"""Following trainer_state.json from checkpoint to checkpoint."""

from __future__ import annotations

import json
import math
import os
import shutil

import pytest

from evalstop.core.errors import ReadError
from evalstop.feedback.scores import Watch
from evalstop.feedback.trainer_state import TrainerStateTail

METRIC = "eval_rewards/reward_true/mean"
WATCH = Watch(job="j", metric="eval/rewards/reward_true/mean", direction="max")


class Run:
    """A trainer's output directory."""

    def __init__(self, directory):
        self.directory = directory
        self.tick = 1_000_000_000

    def save(self, scores, *, cut=None, extra=()):
        """Write the checkpoint of the last step of ``scores``; a file's time moves on."""
        step = max(scores, default=0)
        log = [{"step": s, METRIC: score, "eval_runtime": 1.0} for s, score in scores.items()]
        text = json.dumps({"global_step": step, "log_history": [*extra, *log]})
        folder = self.directory / f"checkpoint-{step}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "trainer_state.json").write_text(text[:cut])
        self.tick += 1_000_000_000
        os.utime(folder / "trainer_state.json", ns=(self.tick, self.tick))
        return folder


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "out")


@pytest.fixture
def tail(run):
    return TrainerStateTail(run.directory, WATCH)


def found(tail):
    return [(r.point.step, r.point.score, r.point.attempt) for r in tail.readings()]


def test_a_run_is_followed_from_before_it_began(run, tail):
    assert found(tail) == []
    run.directory.mkdir()
    assert found(tail) == []
    run.save({5: 0.1})
    assert found(tail) == [(5, 0.1, 0)]
    assert found(tail) == []
    run.save({5: 0.1, 10: 0.2})
    run.save({5: 0.1, 10: 0.2, 15: 0.3})
    assert found(tail) == [(10, 0.2, 0), (15, 0.3, 0)]


def test_rotated_checkpoints_are_not_missed(run, tail):
    first = run.save({5: 0.1})
    assert found(tail) == [(5, 0.1, 0)]
    run.save({5: 0.1, 10: 0.2})
    shutil.rmtree(first)
    (reading,) = tail.readings()
    assert (reading.point.step, reading.point.checkpoint) == (10, "checkpoint-10")


def test_a_step_without_a_checkpoint_names_none(run, tail):
    run.save({5: 0.1, 10: 0.2})
    assert [r.point.checkpoint for r in tail.readings()] == [None, "checkpoint-10"]


def test_steps_are_ordered_as_numbers(run, tail):
    run.save({9: 0.1})
    run.save({9: 0.1, 10: 0.2})
    assert found(tail) == [(9, 0.1, 0), (10, 0.2, 0)]


@pytest.mark.parametrize("cut", [0, 1, 20, -1])
def test_half_a_file_is_read_again(run, tail, cut):
    run.save({5: 0.1})
    assert found(tail) == [(5, 0.1, 0)]
    run.save({5: 0.1, 10: 0.2}, cut=cut)
    assert found(tail) == []
    assert not tail.problems
    run.save({5: 0.1, 10: 0.2})
    assert found(tail) == [(10, 0.2, 0)]


def test_a_file_that_stays_half_is_told(run, tail):
    run.save({5: 0.1}, cut=-1)
    for _ in range(5):
        assert found(tail) == []
    assert "not valid JSON" in tail.problems[0]
    run.save({5: 0.1})
    assert found(tail) == [(5, 0.1, 0)]
    assert not tail.problems


def test_a_resume_with_other_numbers_is_another_attempt(run, tail):
    run.save({5: 0.1, 10: 0.2, 15: 0.3})
    assert len(found(tail)) == 3
    run.save({5: 0.1, 10: 0.25})
    assert found(tail) == [(5, 0.1, 1), (10, 0.25, 1)]
    run.save({5: 0.1, 10: 0.25, 15: 0.26})
    assert found(tail) == [(15, 0.26, 1)]


def test_a_resume_with_the_same_numbers_is_the_same_curve(run, tail):
    run.save({5: 0.1, 10: math.nan, 15: 0.3})
    assert len(found(tail)) == 3
    run.save({5: 0.1, 10: math.nan})
    assert found(tail) == []
    run.save({5: 0.1, 10: math.nan, 15: 0.3, 20: 0.4})
    assert found(tail) == [(20, 0.4, 0)]


@pytest.mark.parametrize("direction", ["max", "min"])
def test_a_resume_is_known_as_one_after_a_restart_of_ours(run, direction):
    watch = Watch(job="j", metric=METRIC, direction=direction)
    before = TrainerStateTail(run.directory, watch)
    run.save({5: 0.1, 10: 0.2, 15: 0.3})
    logged = [reading.point for reading in before.readings()]
    after = TrainerStateTail(run.directory, watch)
    after.resume(logged)
    assert after.readings() == []
    run.save({5: 0.1, 10: 0.25})
    assert [(r.point.step, r.point.attempt) for r in after.readings()] == [(5, 1), (10, 1)]


def test_the_root_copy_counts_too(run, tail):
    folder = run.save({5: 0.1})
    text = (folder / "trainer_state.json").read_text()
    (run.directory / "trainer_state.json").write_text(text)
    assert found(tail) == [(5, 0.1, 0)]


def test_other_folders_and_files_are_left_alone(run, tail):
    run.save({5: 0.1})
    (run.directory / "checkpoint-best").mkdir()
    (run.directory / "checkpoint-7").mkdir()
    (run.directory / "checkpoint-8").write_text("a file")
    (run.directory / "runs").mkdir()
    assert found(tail) == [(5, 0.1, 0)]


def test_the_reward_at_the_time_and_the_error_are_kept(run, tail):
    run.save({5: 0.1}, extra=[{"step": 5, "reward": 2.5}, {"step": 5, f"{METRIC}_stderr": 0.02}])
    (reading,) = tail.readings()
    assert (reading.point.proxy, reading.point.stderr) == (2.5, 0.02)


def test_the_known_names_are_there_when_the_watched_one_is_not(run):
    tail = TrainerStateTail(run.directory, Watch(job="j", metric="eval_acc", direction="max"))
    run.save({5: 0.1})
    assert tail.readings() == []
    assert tail.names == {METRIC}


def test_lower_is_better_is_turned(run):
    watch = Watch(job="j", metric=METRIC, direction="min")
    run.save({5: 0.1})
    assert found(TrainerStateTail(run.directory, watch)) == [(5, -0.1, 0)]


def test_an_unreadable_directory_is_an_error(run, tail, monkeypatch):
    run.save({5: 0.1})

    def refuse(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(run.directory), "iterdir", refuse)
    with pytest.raises(ReadError, match="cannot be read: Permission denied"):
        tail.readings()


def test_the_spread_that_trl_logs_gives_the_error_of_the_mean(run, tail):
    spread = {
        METRIC.replace("/mean", "/std"): 0.16,
        "eval_runtime": 0.5,
        "eval_samples_per_second": 128.0,  # 64 prompts
    }
    folder = run.save({5: 0.1})
    state = json.loads((folder / "trainer_state.json").read_text())
    state["log_history"][0] |= spread
    (folder / "trainer_state.json").write_text(json.dumps(state))
    (reading,) = tail.readings()
    assert reading.point.stderr == pytest.approx(0.02)


@pytest.mark.parametrize(
    "missing", [METRIC.replace("/mean", "/std"), "eval_runtime", "eval_samples_per_second"]
)
def test_without_the_spread_or_the_count_the_error_is_not_known(run, tail, missing):
    entry = {
        "step": 5,
        METRIC: 0.1,
        METRIC.replace("/mean", "/std"): 0.16,
        "eval_runtime": 0.5,
        "eval_samples_per_second": 128.0,
    }
    del entry[missing]
    folder = run.save({5: 0.1})
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": [entry]}))
    (reading,) = tail.readings()
    assert reading.point.stderr is None


def test_side_signals_are_the_newest_that_training_logged(run, tail):
    extra = [{"step": 5, "kl": 0.5, "grad_norm": 2.0}, {"step": 8, "objective/kl": 0.7}]
    run.save({10: 0.5}, extra=extra)
    (reading,) = tail.readings()
    assert reading.point.signals == (("grad_norm", 2.0), ("kl", 0.7))
