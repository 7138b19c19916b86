"""R12, R13, R16: each rule fires on its fixture and stays quiet on the other; settings matter."""

import math

import pytest

from evalstop.core.errors import SpecError
from evalstop.core.history import History
from evalstop.core.points import EvalPoint, State
from evalstop.detectors.combine import After, AllOf, AnyOf, Confirm
from evalstop.detectors.consecutive import ConsecutiveDecline
from evalstop.detectors.cusum import Cusum
from evalstop.detectors.drop import Drop
from evalstop.detectors.monitor import Monitor
from evalstop.detectors.never import Never
from evalstop.detectors.page_hinkley import PageHinkley
from evalstop.detectors.patience import Patience

RISE_AND_FALL = [0.30, 0.50, 0.60, 0.55, 0.48, 0.40, 0.30]
RISE = [0.30, 0.40, 0.47, 0.52, 0.56, 0.59, 0.61]
CLIFF = [0.30, 0.50, 0.60, 0.30, 0.31, 0.30, 0.31]
PLATEAU = [0.30, 0.50, 0.60, 0.60, 0.60, 0.60, 0.60]
WIGGLE = [0.60, 0.59, 0.60, 0.58, 0.60, 0.59, 0.60]


def first_alarm(rule, scores, stderr=0.02):
    """Return the index of the first alarm, None without one."""
    history = History(rule)
    for step, score in enumerate(scores):
        verdict = history.add(EvalPoint(step=step, score=score, stderr=stderr))
        assert verdict.alarm == (verdict.state is State.ALARM)
        if verdict.alarm:
            assert verdict.statistic >= verdict.threshold
            assert verdict.best_score == max(scores[: step + 1])
            assert scores[verdict.best_step] == verdict.best_score
            return step
    return None


MUST_FIRE = [
    (ConsecutiveDecline(k=2), RISE_AND_FALL, 4),
    (ConsecutiveDecline(k=3), RISE_AND_FALL, 5),
    (ConsecutiveDecline(k=1), CLIFF, 3),
    (Patience(k=3), PLATEAU, 5),
    (Patience(k=2, min_delta=0.15), RISE, 4),
    (Drop(g=5.0, k=1), RISE_AND_FALL, 4),
    (Drop(g=5.0, k=2), CLIFF, 4),
    (Drop(g=10.0, k=1, unit="percent"), RISE_AND_FALL, 4),
    (Drop(g=0.1, k=1, unit="absolute"), RISE_AND_FALL, 4),
    (Cusum(threshold=5.0, drift=2.0), CLIFF, 3),
    (Cusum(threshold=5.0, drift=2.0), RISE_AND_FALL, 5),
    (PageHinkley(threshold=0.3, delta=0.0, warmup=3), CLIFF, 5),
]


@pytest.mark.parametrize(("rule", "scores", "at"), MUST_FIRE)
def test_a_rule_fires_on_its_own_fixture(rule, scores, at):
    assert first_alarm(rule, scores) == at


MUST_NOT_FIRE = [
    (ConsecutiveDecline(k=2), RISE),
    (ConsecutiveDecline(k=2), PLATEAU),
    (ConsecutiveDecline(k=2), CLIFF),
    (ConsecutiveDecline(k=2), WIGGLE),
    (Patience(k=3), RISE),
    (Patience(k=5), PLATEAU),
    (Drop(), RISE),
    (Drop(), PLATEAU),
    (Drop(), WIGGLE),
    (Drop(g=5.0, k=5), CLIFF),
    (Drop(g=60.0, k=1, unit="percent"), CLIFF),
    (Cusum(), RISE),
    (Cusum(), PLATEAU),
    (Cusum(), WIGGLE),
    (Cusum(threshold=100.0), CLIFF),
    (Cusum(drift=20.0), CLIFF),
    (PageHinkley(), RISE),
    (PageHinkley(), PLATEAU),
    (PageHinkley(threshold=5.0), CLIFF),
    (PageHinkley(delta=0.5), CLIFF),
    (PageHinkley(warmup=7), CLIFF),
    (Never(), RISE_AND_FALL),
    (Never(), CLIFF),
]


@pytest.mark.parametrize(("rule", "scores"), MUST_NOT_FIRE)
def test_a_rule_stays_quiet_where_it_must(rule, scores):
    assert first_alarm(rule, scores) is None


UNITLESS = [ConsecutiveDecline(k=2), Patience(k=2), Drop(), Drop(g=10.0, unit="percent"), Cusum()]


@pytest.mark.parametrize("rule", UNITLESS)
@pytest.mark.parametrize("scores", [RISE_AND_FALL, CLIFF, PLATEAU, RISE, WIGGLE])
@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_scaling_all_scores_changes_no_verdict_of_a_rule_in_errors_or_percent(rule, scores, factor):
    scaled = [factor * score for score in scores]
    assert first_alarm(rule, scores, 0.02) == first_alarm(rule, scaled, 0.02 * factor)


def test_an_absolute_drop_is_in_the_metrics_units():
    rule = Drop(g=0.1, k=1, unit="absolute")
    assert first_alarm(rule, RISE_AND_FALL) == 4
    assert first_alarm(rule, [0.1 * score for score in RISE_AND_FALL]) is None


@pytest.mark.parametrize("rule", [Drop(), Cusum()])
def test_without_any_error_a_rule_in_errors_waits_and_says_why(rule):
    history = History(rule)
    for step, score in enumerate(CLIFF):
        verdict = history.add(EvalPoint(step=step, score=score))
    assert not verdict.alarm
    assert "report stderr" in verdict.note


def test_an_understated_error_is_corrected_by_what_the_curve_shows():
    rule = Drop(k=1)
    noisy = [0.5 + 0.05 * (-1) ** step for step in range(20)]
    assert first_alarm(rule, noisy[:9], stderr=0.001) is not None  # too few differences to tell
    history = History(rule)
    statistics = [
        history.add(EvalPoint(step=step, score=score, stderr=0.001)).statistic
        for step, score in enumerate(noisy)
    ]
    assert max(statistics[9::2]) < statistics[1]


def test_percent_of_a_best_of_zero_measures_nothing():
    assert first_alarm(Drop(g=1.0, k=1, unit="percent"), [0.0, -1.0, -2.0]) is None


def test_a_drop_that_waits_for_its_kth_evaluation_is_suspect_and_below_its_threshold():
    history = History(Drop(g=5.0, k=3))
    for step, score in enumerate([0.6, 0.3]):
        verdict = history.add(EvalPoint(step=step, score=score, stderr=0.02))
    assert verdict.state is State.SUSPECT
    assert verdict.statistic < verdict.threshold


def test_equal_scores_are_no_decline():
    assert first_alarm(ConsecutiveDecline(k=1), [0.5, 0.5, 0.5]) is None


def test_any_of_fires_with_the_first_and_all_of_with_the_last():
    early, late = ConsecutiveDecline(k=1), ConsecutiveDecline(k=3)
    assert first_alarm(AnyOf((early, late)), RISE_AND_FALL) == 3
    assert first_alarm(AllOf((early, late)), RISE_AND_FALL) == 5


def test_a_warm_up_holds_alarms_back_but_not_the_memory():
    history = History(After(evals=4, rule=ConsecutiveDecline(k=1)))
    states = [history.add(EvalPoint(step=s, score=x)).state for s, x in enumerate(RISE_AND_FALL)]
    assert states[3] is State.SUSPECT
    assert states[4] is State.ALARM


def test_confirm_waits_for_one_more_evaluation_below():
    assert first_alarm(Confirm(rule=Drop(k=1)), CLIFF) == 4
    dip = [0.6, 0.3, 0.6, 0.61, 0.3, 0.6]
    assert first_alarm(Drop(k=1), dip) == 1
    assert first_alarm(Confirm(rule=Drop(k=1)), dip) is None


def test_a_replicate_of_the_newest_step_confirms_or_clears():
    for replicate, expected in [(0.29, State.ALARM), (0.9, State.OK)]:
        history = History(Confirm(rule=ConsecutiveDecline(k=1)))
        history.add(EvalPoint(step=1, score=0.6))
        assert history.add(EvalPoint(step=2, score=0.3)).state is State.SUSPECT
        verdict = history.add(EvalPoint(step=2, score=replicate, eval_id="again"))
        assert verdict.state is expected


IMPOSSIBLE = [
    (lambda: ConsecutiveDecline(k=0), "k=0"),
    (lambda: Patience(k=0), "k=0"),
    (lambda: Patience(min_delta=-1.0), r"min_delta=-1\.0"),
    (lambda: Drop(g=0.0), r"g=0\.0"),
    (lambda: Drop(k=0), "k=0"),
    (lambda: Drop(unit="furlongs"), "furlongs"),
    (lambda: Cusum(threshold=0.0), r"threshold=0\.0"),
    (lambda: Cusum(drift=-1.0), r"drift=-1\.0"),
    (lambda: PageHinkley(threshold=0.0), r"threshold=0\.0"),
    (lambda: PageHinkley(warmup=-1), "warmup=-1"),
    (lambda: AnyOf(()), "at least one rule"),
    (lambda: AllOf(()), "at least one rule"),
]


@pytest.mark.parametrize(("make", "what"), IMPOSSIBLE)
def test_an_impossible_setting_is_refused_with_what_came(make, what):
    with pytest.raises(SpecError, match=what):
        make()


@pytest.mark.parametrize(
    "rule", [ConsecutiveDecline(k=2), Patience(k=2), Drop(), Cusum(), PageHinkley(), Never()]
)
def test_a_step_leaves_the_state_it_was_given_as_it_was(rule):
    state, _ = rule.step(rule.start(), EvalPoint(step=0, score=0.5, stderr=0.1))
    before = repr(state)
    one = rule.step(state, EvalPoint(step=1, score=0.1, stderr=0.1))
    two = rule.step(state, EvalPoint(step=1, score=0.1, stderr=0.1))
    assert repr(state) == before
    assert one == two


def test_a_run_of_a_million_declines_needs_no_more_memory_than_a_few():
    rule = Drop()
    state = rule.start()
    for step in range(1000):
        state, _ = rule.step(state, EvalPoint(step=step, score=-float(step), stderr=0.1))
    assert len(state.differences) <= 32
    assert math.isfinite(state.peak.best_score)


def test_a_percent_of_nothing_is_said_to_be_none():
    monitor = Monitor(Drop(g=1.0, k=1, unit="percent"), direction="max")
    for step, score in enumerate([0.0, -1.0]):
        verdict = monitor.update(score=score, step=step)
    assert not verdict.alarm
    assert "no percent of a best score of 0: take unit=se" in verdict.reason
