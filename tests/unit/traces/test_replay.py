"""What replay says of runs whose answer is known."""

import math

import pytest

from evalstop.config.rules import RULES, parse_rule
from evalstop.core.points import State, Verdict
from evalstop.detectors.monitor import Monitor
from evalstop.policies.rules import Rules
from evalstop.traces.replay import replay, replay_series
from evalstop.traces.series import Curve, SkippedPoint, normalise

PAPER = parse_rule("paper")
K2 = parse_rule("consecutive:k=2")


def series(scores, *, steps=None, direction="max", job_type="rlhf", **columns):
    curve = Curve(
        trace_id="run",
        source="here",
        metric="acc",
        steps=steps or [10 * (i + 1) for i in range(len(scores))],
        scores=scores,
        **columns,
    )
    return normalise(curve, direction, job_type)


def one(rules, run):
    (result,) = replay_series([run], [rules]).results
    return result


def test_a_stop_is_told_with_what_it_saves_and_what_it_costs():
    result = one(K2, series([0.1, 0.5, 0.4, 0.3, 0.6, 0.2]))
    assert result.fired
    assert (result.stop_step, result.stop_index, result.n_evals) == (40, 3, 6)
    assert (result.best_step, result.best_score, result.best_score_at_stop) == (50, 0.6, 0.5)
    assert result.final_score == 0.2
    assert result.saved_fraction == pytest.approx((60 - 40) / 60)
    assert result.regret == pytest.approx(0.1)
    assert (result.statistic, result.threshold, result.state) == (2, 2, "alarm")
    assert result.rule == "consecutive:k=2"


def test_a_run_that_goes_on_saves_and_regrets_nothing():
    result = one(K2, series([0.1, 0.5, 0.4, 0.6]))
    assert not result.fired
    assert (result.stop_step, result.stop_index) == (None, None)
    assert (result.saved_fraction, result.regret) == (0.0, 0.0)
    assert result.best_score_at_stop == result.best_score == 0.6


@pytest.mark.parametrize("rule", [name for name in RULES if name != "loss-plateau"])
def test_a_metric_to_be_minimised_is_the_same_run_upside_down(rule):
    scores = [0.1, 0.3, 0.5, 0.52, 0.4, 0.3, 0.2, 0.1]
    up = one(parse_rule(rule), series(scores, stderrs=[0.02] * 8))
    down = one(parse_rule(rule), series([-s for s in scores], stderrs=[0.02] * 8, direction="min"))
    assert (up.fired, up.stop_step, up.saved_fraction) == (
        down.fired,
        down.stop_step,
        down.saved_fraction,
    )
    assert up.regret == pytest.approx(down.regret)
    assert up.best_score == -down.best_score
    assert up.best_score_at_stop == -down.best_score_at_stop


@pytest.mark.parametrize(
    "rule", [name for name in RULES if name not in {"stop-at", "loss-plateau"}]
)
def test_replay_says_what_a_monitor_would_have_said(rule):
    scores = [0.1, 0.3, 0.52, 0.5, 0.4, math.nan, 0.3, 0.2, 0.21, 0.1, 0.05, 0.04]
    result = one(parse_rule(rule), series(scores, n_items=[400] * len(scores)))
    monitor = Monitor(parse_rule(rule), direction="max")
    stopped = None
    for point in series(scores, n_items=[400] * len(scores)).points:
        verdict = monitor.update(
            score=point.score, step=point.step, stderr=point.stderr, n_items=point.n_items
        )
        if verdict.alarm and stopped is None:
            stopped = (point.step, verdict.statistic, verdict.threshold)
    if stopped is None:
        assert not result.fired
    else:
        assert (result.stop_step, result.statistic, result.threshold) == stopped


def test_order_and_repeats_in_the_file_do_not_matter():
    steps, scores = [10, 20, 30, 40], [0.1, 0.5, 0.4, 0.3]
    expected = one(K2, series(scores, steps=steps))
    shuffled = one(K2, series(scores[::-1], steps=steps[::-1]))
    assert shuffled == expected
    repeated = one(K2, series([*scores, 0.5], steps=[*steps, 20]))
    assert repeated.skipped_points == (SkippedPoint(step=20, reason="repeat of the same report"),)
    assert repeated.stop_step == expected.stop_step
    assert repeated.n_evals == 4


def test_two_scores_of_one_step_are_pooled_and_said_so():
    result = one(parse_rule("none"), series([0.1, 0.4, 0.6], steps=[1, 2, 2]))
    assert (result.n_evals, result.best_score) == (2, pytest.approx(0.5))
    assert "pooled" in result.skipped_points[0].reason


def test_nan_and_infinity_are_skipped_never_best_and_break_no_streak():
    result = one(K2, series([0.5, 0.4, math.nan, math.inf, 0.3]))
    assert result.fired
    assert (result.n_evals, result.stop_index, result.stop_step) == (3, 2, 50)
    assert result.best_score == 0.5
    assert [point.step for point in result.skipped_points] == [30, 40]


def test_a_run_of_nan_is_told_without_a_best():
    result = one(K2, series([math.nan] * 4))
    assert (result.n_evals, result.fired) == (0, False)
    assert result.best_score is None
    assert result.final_score is None
    assert result.state == "diverged"


def test_one_evaluation_is_enough_to_answer_and_said_to_be_too_few():
    result = one(K2, series([0.5]))
    assert (result.n_evals, result.fired, result.final_score) == (1, False, 0.5)
    assert "too few" in result.note


def test_partial_histories_are_never_stopped():
    result = one(K2, series([0.5, 0.4, 0.3, 0.2], partial="page 2 is missing"))
    assert not result.fired
    assert "page 2 is missing" in result.reason


def test_an_epoch_of_other_scores_is_neither_a_drop_nor_a_regret():
    result = one(
        K2,
        series([0.5, 0.4, 0.3, 0.9, 0.95], epoch_keys=["v1", "v1", "v1", "v2", "v2"]),
    )
    assert result.stop_step == 30
    assert result.regret == 0.0
    assert not one(K2, series([0.9, 0.8, 0.3, 0.4], epoch_keys=["1", "1", "2", "2"])).fired


def test_a_rewind_leaves_the_abandoned_branch():
    scores, steps = [0.5, 0.6, 0.4, 0.62, 0.64], [10, 20, 30, 30, 40]
    result = one(K2, series(scores, steps=steps, attempts=[0, 0, 0, 1, 1]))
    assert not result.fired
    assert result.n_evals == 5


def test_stop_at_uses_the_share_of_the_finished_run_and_says_so():
    result = one(parse_rule("stop-at:fraction=0.65"), series([0.1] * 10))
    assert (result.stop_step, result.saved_fraction) == (70, pytest.approx(0.3))
    assert "hindsight" in result.note


def test_loss_plateau_judges_the_losses_of_the_file():
    losses = [(step, max(1.0, 3 - step / 10)) for step in range(5, 105, 5)]
    result = one(parse_rule("loss-plateau:patience=3"), series([0.1] * 10, losses=losses))
    assert result.fired
    assert result.stop_step == 30  # the loss is flat from step 20: reports at 25, 30, 35
    assert "hindsight" in result.note
    silent = one(parse_rule("loss-plateau"), series([0.1] * 10))
    assert not silent.fired
    assert "no training loss" in silent.note


def test_a_rule_that_raises_leaves_the_run_alone_and_says_so():
    class Broken:
        def start(self):
            return None

        def step(self, state, point):
            del state, point
            raise ZeroDivisionError

    result = one(Rules.of(Broken()), series([0.5, 0.1]))
    assert (result.fired, result.state) == (False, "blind")
    assert "ZeroDivisionError" in result.note


def test_the_summary_is_by_spec_over_all_runs():
    runs = [series([0.1, 0.5, 0.4, 0.3, 0.6]), series([0.1, 0.2, 0.3, 0.4, 0.5])]
    report = replay_series(runs, [K2, parse_rule("none"), K2])
    assert list(report.summary) == ["consecutive:k=2", "none"]
    summary = report.summary["consecutive:k=2"]
    assert (summary.runs, summary.fired) == (2, 1)
    assert summary.saved_fraction_mean == pytest.approx(0.1)
    assert summary.regret_mean == pytest.approx(0.05)
    assert summary.regret_max == pytest.approx(0.1)
    assert replay_series([], [K2]).summary["consecutive:k=2"].runs == 0


def test_the_type_of_job_chooses_the_rule_of_a_map():
    scores = [0.5, 0.4, 0.3, 0.35]
    fired = {
        kind: one(PAPER, series(scores, job_type=kind)).fired for kind in ("grpo", "dpo", "sft")
    }
    assert fired == {"grpo": True, "dpo": False, "sft": False}
    report = replay_series([series(scores, job_type="sft")], [PAPER])
    assert report.results[0].reason == "nothing is stopped: no rule for job type sft"
    assert "no rule for job type 'sft'" in report.warnings[0]


def test_verdicts_are_told_in_the_metrics_own_sign():
    result = one(K2, series([30.0, 20.0, 25.0, 28.0], direction="min"))
    assert "best 20 at step 20" in result.reason


def test_options_choose_the_metric_and_override_the_type(tmp_path):
    path = tmp_path / "x.csv"
    rows = [f"a,{i},{m},{s}" for m in ("acc", "f1") for i, s in enumerate([0.5, 0.4, 0.3])]
    path.write_text("trace_id,step,metric,score\n" + "\n".join(rows))
    report = replay(path, [PAPER], metric="eval_f1", direction="max", job_type="ppo")
    (result,) = report.results
    assert (result.metric, result.job_type, result.fired) == ("f1", "ppo", True)


def test_a_trained_reward_is_warned_of_and_a_contrary_name_too(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("trace_id,step,metric,score,job_type\na,1,eval/reward,1,grpo\n")
    warning, few = replay(path, K2, direction="max").warnings
    assert "eval/reward" in warning
    assert "held-out" in warning
    path.write_text("trace_id,step,metric,score\na,1,eval_loss,1\n")
    warning, few = replay(path, K2, direction="max").warnings
    assert "suggests direction min" in warning
    assert "too few to see a decline" in few


@pytest.mark.parametrize(
    ("spec", "note"),
    [
        ("stop-at", "hindsight: progress is step / last step of the finished run"),
        ("loss-plateau", "no training loss, which this rule judges"),
        ("paired", "no scores of single items, which this rule compares"),
    ],
)
def test_what_a_rule_lacks_or_knows_in_hindsight_is_told(spec, note):
    runs = [series([0.1] * 9), series([0.1, 0.2])]
    (few, of_rule) = replay_series(runs, [parse_rule(spec)]).warnings
    assert "too few" in few
    assert of_rule.startswith(f"rule {spec!r}, 2 runs of 2: ")
    assert of_rule.endswith(note)
    assert replay_series(runs[:1], [parse_rule("default")]).warnings == ()


def test_any_detector_can_be_replayed():
    class Fifth:
        def start(self):
            return 0

        def step(self, state, point):
            del point
            alarm = state == 4
            return state + 1, Verdict(state=State.ALARM if alarm else State.OK)

    assert one(Rules.of(Fifth()), series([0.1] * 9)).stop_index == 4
