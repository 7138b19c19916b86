"""R16: every rule has a curve it must stop and curves it must leave alone."""

import math

import msgspec
import numpy as np
import pytest
from scipy.optimize import isotonic_regression

from evalstop.config.rules import RULES, parse_rule
from evalstop.core.errors import SpecError
from evalstop.core.points import EvalPoint, State
from evalstop.detectors.bocpd import Bocpd
from evalstop.detectors.e_detector import EDetector
from evalstop.detectors.fleet import judge
from evalstop.detectors.glr_cusum import GlrCusum
from evalstop.detectors.local_trend import LocalTrend
from evalstop.detectors.order_restricted import OrderRestricted, pooled, rising_loss
from evalstop.detectors.paired import Paired

CLIFF = [0.55] * 6 + [0.30] * 4
SLOW = [0.40, 0.50, 0.55, 0.56, 0.55, 0.53, 0.51, 0.49, 0.46, 0.43, 0.39, 0.35, 0.31, 0.27]
FLAT = [0.50, 0.52, 0.49, 0.51, 0.48, 0.52, 0.50, 0.49, 0.51, 0.50]
RISE = [0.3 + 0.01 * i for i in range(40)]
NAMES = ("order-restricted", "e-detector", "glr-cusum", "bocpd", "local-trend")


def rule_of(spec):
    return parse_rule(spec).for_type("rlhf")


def watched(rule, scores, stderr=0.02):
    state = rule.start()
    verdicts = []
    for step, score in enumerate(scores):
        point = EvalPoint(step=step, score=score, stderr=stderr)
        state, verdict = rule.step(state, point)
        verdicts.append(verdict)
    return verdicts


@pytest.mark.parametrize("spec", NAMES)
@pytest.mark.parametrize("scores", [CLIFF, SLOW], ids=["cliff", "slow"])
def test_stops_a_decline(spec, scores):
    last = watched(rule_of(spec), scores)[-1]
    assert last.state is State.ALARM
    assert last.best_step == scores.index(max(scores))


@pytest.mark.parametrize("spec", NAMES)
@pytest.mark.parametrize("scores", [FLAT, RISE, [0.5] * 30], ids=["flat", "rise", "constant"])
def test_leaves_a_healthy_curve_alone(spec, scores):
    assert not any(verdict.alarm for verdict in watched(rule_of(spec), scores))


@pytest.mark.parametrize("spec", NAMES)
def test_scaling_scores_and_errors_changes_nothing(spec):
    one = watched(rule_of(spec), SLOW)
    other = watched(rule_of(spec), [100 * score for score in SLOW], 2.0)
    for a, b in zip(one, other, strict=True):
        assert b.statistic == pytest.approx(a.statistic, abs=1e-6)


@pytest.mark.parametrize("spec", NAMES)
def test_says_that_an_error_is_missing(spec):
    last = watched(rule_of(spec), [0.5, 0.6, 0.2], stderr=None)[-1]
    assert not last.alarm
    assert "error" in last.note


@pytest.mark.parametrize("spec", [*NAMES, "paired", "scan"])
def test_state_is_plain_data(spec):
    rule = rule_of(spec)
    state = rule.start()
    for step, score in enumerate(SLOW):
        state, _ = rule.step(state, EvalPoint(step=step, score=score, stderr=0.02))
    assert msgspec.convert(msgspec.to_builtins(state), type(state)) == state


@pytest.mark.parametrize(
    ("make", "fields"),
    [
        (OrderRestricted, {"threshold": 0.0}),
        (OrderRestricted, {"window": 3}),
        (EDetector, {"alpha": 1.0}),
        (GlrCusum, {"threshold": -1.0}),
        (LocalTrend, {"slope_drift": -0.1}),
        (Bocpd, {"hazard": 0.0}),
        (Paired, {"alpha": 0.5}),
    ],
)
def test_refuses_settings_that_make_no_sense(make, fields):
    with pytest.raises(SpecError, match=next(iter(fields))):
        make(**fields)


@pytest.mark.parametrize(
    ("spec", "looser"),
    [
        ("order-restricted:threshold=500", "order-restricted:threshold=5"),
        ("order-restricted:window=4", "order-restricted"),
        ("e-detector:alpha=0.0000001", "e-detector:alpha=0.3"),
        ("glr-cusum:threshold=50", "glr-cusum:threshold=2"),
        ("bocpd:threshold=200", "bocpd:threshold=2"),
        ("bocpd:hazard=0.0001", "bocpd:hazard=0.3"),
        ("local-trend:threshold=50", "local-trend:threshold=2"),
        ("local-trend:level_drift=0", "local-trend:level_drift=3"),
        ("local-trend:slope_drift=0", "local-trend:slope_drift=3"),
    ],
)
def test_every_setting_matters(spec, looser):
    one, other = watched(rule_of(spec), SLOW), watched(rule_of(looser), SLOW)
    assert [(v.statistic, v.threshold) for v in one] != [(v.statistic, v.threshold) for v in other]


def test_pooling_is_isotonic_regression():
    generator = np.random.default_rng(0)
    scores, weights = generator.standard_normal(40), generator.uniform(0.5, 2.0, 40)
    losses = rising_loss(scores.tolist(), weights.tolist())
    blocks, total = (), 0.0
    for n in range(1, 41):
        fit = isotonic_regression(scores[:n], weights=weights[:n]).x
        expected = float((weights[:n] * (scores[:n] - fit) ** 2).sum())
        assert losses[n - 1] == pytest.approx(expected)
        blocks, total = pooled(blocks, total, scores[n - 1], weights[n - 1])
        assert total == pytest.approx(expected)


def test_order_restricted_is_the_difference_of_both_fits():
    scores = np.random.default_rng(1).standard_normal(12)
    rising = ((scores - isotonic_regression(scores).x) ** 2).sum()
    best = rising
    for cut in range(13):
        up = scores[:cut] - isotonic_regression(scores[:cut]).x if cut else np.zeros(0)
        down = scores[cut:] - isotonic_regression(scores[cut:], increasing=False).x
        best = min(best, (up**2).sum() + (down**2).sum())
    last = watched(OrderRestricted(), scores.tolist(), 1.0)[-1]
    assert last.statistic == pytest.approx(rising - best)


def test_glr_cusum_is_the_best_of_all_splits():
    scores = np.random.default_rng(2).standard_normal(60)
    for n, verdict in enumerate(watched(GlrCusum(), scores.tolist(), 1.0), start=1):
        falls = [
            (scores[:k].mean() - scores[k:n].mean()) * math.sqrt(k * (n - k) / n)
            for k in range(1, n)
        ]
        assert verdict.statistic == pytest.approx(max([0.0, *falls]))


def test_the_e_detector_holds_alpha_on_flat_and_rising_curves():
    generator = np.random.default_rng(3)
    for truth in (np.zeros(60), np.linspace(0, 10, 60)):
        scores = truth + generator.standard_normal((200, 60))
        assert (judge(EDetector(alpha=0.05), scores, 1.0).stop >= 0).mean() <= 0.05


@pytest.mark.parametrize("spec", ["order-restricted", "glr-cusum", "bocpd", "local-trend"])
def test_the_stated_false_alarms_are_not_far_off(spec):
    scores = np.random.default_rng(4).standard_normal((150, 30))
    assert (judge(rule_of(spec), scores, 1.0).stop >= 0).mean() <= 0.03


def test_paired_items_see_what_scores_cannot():
    generator = np.random.default_rng(5)
    base = generator.random(200)
    rule = Paired()
    state = rule.start()
    for step in range(6):
        shift = 0.04 if step >= 4 else 0.0
        items = tuple((base + 0.05 * generator.standard_normal(200) - shift).tolist())
        point = EvalPoint(step=step, score=sum(items) / 200, items=items)
        state, verdict = rule.step(state, point)
        assert verdict.alarm is (step >= 4)
    # The score itself has an error of 0.02: two of them is no finding.
    assert np.std(base) / math.sqrt(200) > 0.018


def test_paired_holds_alpha_although_the_best_is_picked():
    generator = np.random.default_rng(6)
    rule, stopped = Paired(alpha=0.05), 0
    for _ in range(200):
        base = generator.random(60)
        state = rule.start()
        for step in range(8):
            items = tuple((base + 0.3 * generator.standard_normal(60)).tolist())
            point = EvalPoint(step=step, score=sum(items) / 60, items=items)
            state, verdict = rule.step(state, point)
            if verdict.alarm:
                stopped += 1
                break
    assert stopped / 200 <= 0.05


def test_paired_finds_no_difference_between_equal_answers():
    rule = Paired()
    state = rule.start()
    for step in range(3):
        state, verdict = rule.step(state, EvalPoint(step=step, score=0.5, items=(0.5,) * 20))
    assert (verdict.statistic, verdict.alarm) == (0.0, False)


def test_paired_says_why_it_does_not_compare():
    rule = Paired()
    state = rule.start()
    for items, words in [((1.0,) * 20, ""), ((0.0,) * 30, "epoch_key"), (None, "0 items")]:
        point = EvalPoint(step=len(words), score=0.5, items=items)
        state, verdict = rule.step(state, point)
        assert words in verdict.note
        assert not verdict.alarm


def test_every_rule_of_the_issue_has_a_name():
    assert {*NAMES, "paired", "scan", "default"} <= set(RULES)
