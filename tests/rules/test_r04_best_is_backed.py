"""R04: best is backed by a checkpoint of its step, whatever the order of evaluation and save."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rule_cluster import FALLING, RuleCluster

from evalstop.config.settings import PolicySettings, Settings
from evalstop.core.actions import RequestSave
from evalstop.policies.modes import Mode
from evalstop.testing.custody import write_checkpoint

LIMIT_S = 600.0


def cluster_of(backed_s=LIMIT_S):
    policy = PolicySettings(
        mode=Mode.ENFORCE,
        rule="consecutive:k=2",
        warn_s=0.0,
        confirm_s=0.0,
        backed_s=backed_s,
    )
    return RuleCluster(Settings(policy=policy))


SCORES = st.lists(st.integers(0, 9), min_size=1, max_size=10).map(
    lambda scores: [score / 10.0 for score in scores]
)


@given(SCORES, st.data())
def test_a_stop_names_the_best_saved_checkpoint_however_late_the_save_was_told(scores, data):
    """transformers evaluates a step first and saves it afterwards."""
    cluster = cluster_of()
    cluster.submit()
    how = data.draw(st.lists(st.sampled_from("bacn"), min_size=len(scores), max_size=len(scores)))
    for step, (score, when) in enumerate(zip(scores, how, strict=True), start=1):
        if when == "b":  # before the evaluation: the shell puts the name into the report
            cluster.saved(step)
        cluster.report(score, start=step, checkpoint=when in "bc")
        if when == "a":
            cluster.saved(step)
    history = cluster.policy.watches["a"].history
    saved = [step for step, when in enumerate(how, start=1) if when != "n"]
    expected = min(saved, key=lambda step: (-scores[step - 1], step), default=None)
    best = history.best_saved
    if expected is None:
        assert best is None or best.checkpoint is None
    else:
        assert (best.step, best.checkpoint) == (expected, f"c{expected}")
    for stop in cluster.stops():
        assert stop.best_checkpoint in {None, f"c{stop.best_step}"}


@given(st.booleans())
def test_best_score_and_best_saved_score_are_two_numbers(saved_later):
    cluster = cluster_of()
    cluster.submit()
    cluster.report(0.5, 0.6, checkpoint=not saved_later)
    if saved_later:
        cluster.saved(1)
        cluster.saved(2)
    cluster.report(0.9, start=3, checkpoint=False)
    history = cluster.policy.watches["a"].history
    assert (history.best.step, history.best.checkpoint) == (3, None)
    assert (history.best_saved.step, history.best_saved.checkpoint) == (2, "c2")


@given(st.integers(1, 5))
def test_an_unbacked_stop_asks_for_one_save_and_is_put_off_up_to_its_limit(more):
    cluster = cluster_of()
    cluster.submit()
    cluster.report(*FALLING, checkpoint=False)
    since = cluster.now
    cluster.report(*[0.6 - 0.05 * n for n in range(more)], start=5, checkpoint=False)
    assert cluster.stops() == []
    assert cluster.requests() == [RequestSave(job="a")]
    cluster.wait(since + LIMIT_S - 1.0 - cluster.now)
    assert cluster.stops() == []
    cluster.wait(1.0)
    (stop,) = cluster.stops()
    assert stop.best_checkpoint is None


@given(st.sampled_from([2, 4]))
def test_the_save_that_was_asked_for_lets_the_stop_go_with_its_name(step):
    """Whether the trainer had the best left, or saves where it stands."""
    cluster = cluster_of()
    cluster.submit()
    cluster.report(*FALLING, checkpoint=False)
    cluster.saved(step)
    (stop,) = cluster.stops()
    assert (stop.best_step, stop.best_checkpoint) == (step, f"c{step}")


def test_a_save_of_a_step_that_was_never_evaluated_backs_nothing():
    cluster = cluster_of()
    cluster.submit()
    cluster.report(*FALLING, checkpoint=False)
    cluster.saved(7)
    assert cluster.stops() == []


@pytest.mark.parametrize("when", ["with its score", "before it", "after it"])
@pytest.mark.parametrize("torn", [False, True])
def test_best_is_found_where_the_trainer_says_it_lies(platform, job, tmp_path, when, torn):
    """No folder is named: evalstop does not look itself, it verifies what it is told."""
    platform.submit(job)
    for step, score in enumerate((0.5, 0.9, 0.8), start=1):
        path = str(write_checkpoint(tmp_path, step))
        if when == "before it":
            platform.post(f"/jobs/{job}/checkpoints", {"step": step, "checkpoint": path})
        named = {"checkpoint": path} if when == "with its score" else {}
        assert platform.report(job, score, first=step, **named)["accepted"] == 1
        if when == "after it":
            platform.post(f"/jobs/{job}/checkpoints", {"step": step, "checkpoint": path})
    if torn:
        (tmp_path / "checkpoint-2" / "model.safetensors").write_bytes(b"torn")
    found = platform.get(f"/jobs/{job}/best")
    assert found["best"] == {"step": 2, "score": 0.9}
    if not torn:
        assert found["best_saved"] == {"step": 2, "score": 0.9}
        assert (found["path"], found["backed"]) == (str(tmp_path / "checkpoint-2"), True)
    elif when == "with its score":  # only the best one's name is remembered of reports
        assert (found["path"], found["backed"]) == (None, False)
    else:
        assert found["best_saved"] == {"step": 3, "score": 0.8}
        assert (found["path"], found["backed"]) == (str(tmp_path / "checkpoint-3"), False)


def test_a_checkpoint_of_a_later_attempt_does_not_back_what_the_earlier_one_scored():
    """A resumed run writes step 2 again, over what was scored before."""
    cluster = cluster_of()
    cluster.submit()
    cluster.report(0.5, 0.9, checkpoint=False)
    cluster.report(0.55, start=1, checkpoint=False, attempt=1)
    cluster.report(0.6, start=2, checkpoint=False, attempt=1)
    cluster.saved(2)
    history = cluster.policy.watches["a"].history
    assert (history.best.score, history.best.checkpoint) == (0.9, None)
    assert (history.best_saved.score, history.best_saved.checkpoint) == (0.6, "c2")
