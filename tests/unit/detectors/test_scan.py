"""The recommended rule: what it must stop, what it must leave alone, what it says."""

import math

import numpy as np
import pytest

from evalstop.core.errors import SpecError
from evalstop.core.points import EvalPoint, State
from evalstop.detectors.fleet import judge
from evalstop.detectors.scan import Scan, reported_variance


def verdicts(scores, *, stderr=None, rule=None, n_items=None):
    rule = rule or Scan(alpha=0.01)
    state = rule.start()
    found = []
    for step, score in enumerate(scores):
        point = EvalPoint(step=step, score=float(score), stderr=stderr, n_items=n_items)
        state, verdict = rule.step(state, point)
        found.append(verdict)
    return found


CLIFF = [0.40, 0.50, 0.55, 0.30, 0.31, 0.29, 0.30]
SLOW = [0.40, 0.50, 0.55, 0.56, 0.55, 0.53, 0.51, 0.49, 0.47, 0.45, 0.43, 0.41, 0.39, 0.37]
EARLY = [0.60, 0.45, 0.44, 0.46, 0.45, 0.44, 0.45]


@pytest.mark.parametrize("scores", [CLIFF, SLOW, EARLY])
def test_stops_declines_of_every_shape(scores):
    found = verdicts(scores, stderr=0.02)
    assert found[-1].state is State.ALARM
    assert found[-1].best_step == scores.index(max(scores))


@pytest.mark.parametrize(
    "scores",
    [
        [0.5] * 40,
        [0.3 + 0.01 * i for i in range(40)],
        [1 - 0.7**i for i in range(40)],
        [0.3] * 30 + [0.3 + 0.05 * i for i in range(10)],
        [0.50, 0.52, 0.49, 0.51, 0.48, 0.52, 0.50, 0.49, 0.51, 0.50],
    ],
)
def test_leaves_healthy_curves_alone(scores):
    assert all(verdict.state is State.OK for verdict in verdicts(scores, stderr=0.02))


def test_one_fall_needs_no_second_one():
    # A cliff falls once and stays low: "consecutive" never sees it.
    assert verdicts([0.3, 0.6, 0.6, 0.3], stderr=0.02)[-1].alarm


def test_a_drop_within_the_error_is_no_decline():
    assert not verdicts(CLIFF, stderr=0.15)[-1].alarm


def test_scaling_scores_and_errors_changes_nothing():
    base = verdicts(SLOW, stderr=0.02)
    scaled = verdicts([100 * s for s in SLOW], stderr=2.0)
    for one, other in zip(base, scaled, strict=True):
        assert other.statistic == pytest.approx(one.statistic)
        assert other.state is one.state


def test_moving_all_scores_changes_nothing():
    base = verdicts(SLOW, stderr=0.02)
    moved = verdicts([1e4 + s for s in SLOW], stderr=0.02)
    for one, other in zip(base, moved, strict=True):
        assert other.statistic == pytest.approx(one.statistic, abs=1e-6)


def test_without_an_error_few_evaluations_suspect_a_cliff_and_say_what_to_report():
    found = verdicts([0.5123, 0.6071, 0.6017, 0.2031, 0.2117])
    assert [verdict.state for verdict in found[:3]] == [State.OK] * 3
    assert found[3].state is State.SUSPECT
    assert not any(verdict.alarm for verdict in found)
    for words in ("stderr or n_items", "best and the newest checkpoint again"):
        assert words in found[3].note


def test_without_an_error_few_evaluations_of_a_level_curve_are_rarely_suspect():
    # 3 % after each of the third to the fifth evaluation; and no alarm can be among them.
    scores = np.random.default_rng(8).standard_normal((3000, 5))
    states = [[verdict.state for verdict in verdicts(row)] for row in scores]
    suspects = sum(State.SUSPECT in own for own in states)
    assert 0.05 <= suspects / 3000 <= 0.10
    assert not any(State.ALARM in own for own in states)


def test_without_an_error_a_curve_that_has_no_scale_is_not_suspect():
    assert all(v.state is State.OK for v in verdicts([0.5, 0.5, 0.5, 0.4]))


def test_without_an_error_a_long_decline_is_found_from_the_curve():
    generator = np.random.default_rng(1)
    truth = np.concatenate([np.full(12, 0.6), np.linspace(0.6, 0.3, 12)])
    found = verdicts(truth + 0.01 * generator.standard_normal(truth.size))
    assert found[-1].alarm
    assert "estimated" in found[-1].note


def test_identical_scores_without_an_error_are_no_evidence():
    assert verdicts([0.5] * 20)[-1].statistic == 0.0


def test_an_error_of_zero_is_an_unknown_error():
    assert [v.statistic for v in verdicts(SLOW, stderr=0.0)] == [
        v.statistic for v in verdicts(SLOW)
    ]


def test_items_mean_the_binomial_error():
    point = EvalPoint(step=0, score=0.5, n_items=398)
    assert math.sqrt(reported_variance(point)) == pytest.approx(0.02506, abs=1e-4)
    assert reported_variance(EvalPoint(step=0, score=12.0, n_items=398)) == 0.0
    assert verdicts(CLIFF, n_items=600)[-1].alarm


# Shares of 500 items, as a trainer prints them: nobody said 500.
SHARES = [0.588, 0.602, 0.624, 0.618, 0.596, 0.574, 0.502, 0.486, 0.470, 0.458, 0.462, 0.450]


def test_items_are_read_off_shares_where_nothing_is_reported():
    last = verdicts(SHARES)[-1]
    told = verdicts(SHARES, n_items=500)[-1]
    assert last.alarm
    assert "500 items" in last.note
    assert last.statistic == pytest.approx(told.statistic, rel=0.05)


def test_printed_decimals_betray_no_items():
    # 39/128 printed as 0.305 is no share of 1000.
    scores = [round(round(128 * share) / 128, 3) for share in SHARES]
    assert "items" not in verdicts(scores)[-1].note.replace("stderr or n_items", "")


def test_items_are_read_off_in_a_batch_as_in_the_stream():
    table = np.array([SHARES, [score + 1e-4 * math.pi for score in SHARES]])
    fleet = judge(Scan(), table)
    for row, found in zip(table, fleet.statistic, strict=True):
        assert [v.statistic for v in verdicts(row)] == pytest.approx(found.tolist())


def test_a_stated_horizon_is_spent_within_it():
    known, unknown = Scan(horizon=10), Scan()
    within = [known.thresholds(10, known=k)[-1] for k in (True, False)]
    assert all(
        a < b
        for a, b in zip(
            within, [unknown.thresholds(10, known=k)[-1] for k in (True, False)], strict=True
        )
    )
    assert known.thresholds(12, known=True)[-1] > unknown.thresholds(12, known=True)[-1]
    with pytest.raises(SpecError, match="horizon"):
        Scan(horizon=-1)


def test_a_curve_that_turns_more_than_its_error_allows_is_not_believed():
    # Reported at a fifth of the truth: the scatter shows it.
    generator = np.random.default_rng(3)
    scores = 0.5 + 0.05 * generator.standard_normal(40)
    last = verdicts(scores, stderr=0.01)[-1]
    assert "times the reported error" in last.note
    assert last.statistic < verdicts(scores[:7], stderr=0.01)[-1].statistic + 20


def test_the_error_of_a_smooth_rise_and_fall_is_believed():
    assert verdicts(SLOW, stderr=0.001)[-1].note == ""


def test_smaller_alpha_needs_more_evidence():
    limits = [
        verdicts(SLOW, stderr=0.02, rule=Scan(alpha=alpha))[-1].threshold
        for alpha in (0.1, 0.01, 0.001)
    ]
    assert limits == sorted(limits)
    assert limits[0] < limits[-1]


def test_suspicion_comes_before_the_alarm():
    slower = [0.6] * 6 + [0.6 - 0.004 * i for i in range(30)]
    states = [verdict.state for verdict in verdicts(slower, stderr=0.02)]
    assert states.index(State.SUSPECT) < states.index(State.ALARM)


@pytest.mark.parametrize("alpha", [0.0, -1.0, 0.31, 1.0])
def test_refuses_a_rate_that_is_none(alpha):
    with pytest.raises(SpecError, match="alpha"):
        Scan(alpha=alpha)


@pytest.mark.parametrize("errors", ["none", "equal", "unequal"])
def test_batch_and_stream_agree(errors):
    generator = np.random.default_rng(5)
    scores = generator.standard_normal((8, 90))
    variances = {
        "none": None,
        "equal": np.full_like(scores, 0.4),
        "unequal": generator.uniform(0.5, 2.0, scores.shape),
    }[errors]
    rule = Scan()
    batch = judge(rule, scores, None if variances is None else np.sqrt(variances)).statistic
    for run in range(scores.shape[0]):
        state = rule.start()
        for step in range(scores.shape[1]):
            stderr = None if variances is None else math.sqrt(variances[run, step])
            state, verdict = rule.step(
                state, EvalPoint(step=step, score=scores[run, step], stderr=stderr)
            )
            assert verdict.statistic == pytest.approx(batch[run, step], rel=1e-9, abs=1e-9)
