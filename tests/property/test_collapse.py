"""R19: far below the start it takes one confirming evaluation, and a broken one is forgiven."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalstop.core.points import Kind, State
from evalstop.detectors.fleet import judge
from evalstop.detectors.monitor import Monitor
from evalstop.detectors.scan import Scan

SIGMA = 0.01
ERRORS = {"stderr": {"stderr": SIGMA}, "items": {"n_items": 2500}, "unknown": {}}
"""2,500 items near 0.5 have that error, too."""


@st.composite
def collapses(draw):
    """A curve near 0.5 that rises a little or not at all, and what is left after its collapse."""
    evals = draw(st.integers(6, 40))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    # Odd decimals: else a curve whose error is not known betrays its items.
    rise = draw(st.sampled_from([0.0, 0.01, 0.02])) * np.arange(evals) / evals
    curve = 0.5 + rise + SIGMA * generator.standard_normal(evals)
    ruin = draw(st.floats(0.0, 0.1)) + 1e-4 * generator.random(3)
    return curve, ruin


def fed(curve, *, direction="max", scale=1.0, **error):
    monitor = Monitor(Scan(), direction=direction)
    sign = scale if direction == "max" else -scale
    if "stderr" in error:
        error = {"stderr": scale * error["stderr"]}
    verdicts = [
        monitor.update(score=sign * float(score), step=step, **error)
        for step, score in enumerate(curve)
    ]
    return monitor, verdicts


def is_innocent(verdicts):
    """Noise alone excites the rule now and then: such curves are not what is asked about."""
    return all(verdict.state is State.OK for verdict in verdicts)


@settings(max_examples=60, deadline=None)
@given(collapses(), st.sampled_from(sorted(ERRORS)), st.sampled_from(["max", "min"]))
def test_one_evaluation_is_suspect_and_the_next_one_stops(run, error, direction):
    curve, ruin = run
    if error == "items":
        direction = "max"
    _, before = fed(curve, direction=direction, **ERRORS[error])
    if not is_innocent(before):
        return
    _, verdicts = fed([*curve, *ruin], direction=direction, **ERRORS[error])
    first, second, third = verdicts[curve.size :]
    assert first.state is State.SUSPECT
    assert "one more evaluation" in first.note
    assert first.statistic < first.threshold
    for verdict in (second, third):
        assert verdict.state is State.ALARM
        assert verdict.kind is Kind.COLLAPSED
        assert verdict.statistic >= verdict.threshold
        assert verdict.best_step == int(np.argmax(curve))


@settings(max_examples=60, deadline=None)
@given(collapses(), st.sampled_from(sorted(ERRORS)), st.integers(1, 4))
def test_a_dip_of_one_evaluation_leaves_no_trace(run, error, back):
    curve, ruin = run
    place = curve.size - back
    broken = np.insert(curve, place, ruin[0])
    _, before = fed(curve[:place], **ERRORS[error])
    _, verdicts = fed(broken, **ERRORS[error])
    _, whole = fed(curve, **ERRORS[error])
    if not is_innocent(before) or (error == "unknown" and place <= 5):
        return
    assert verdicts[place].state is State.SUSPECT
    for ours, theirs in zip(verdicts[place + 1 :], whole[place:], strict=True):
        assert ours.state is theirs.state
        assert ours.statistic == pytest.approx(theirs.statistic, abs=1e-9)
        assert ours.threshold == theirs.threshold
        assert "1 evaluation(s) far below the start left out" in ours.note


@settings(max_examples=30, deadline=None)
@given(collapses(), st.floats(1e-3, 1e3))
def test_scale_plays_no_part(run, scale):
    curve, ruin = run
    for error in ({}, {"stderr": SIGMA}):
        _, ones = fed([*curve, *ruin], **error)
        _, others = fed([*curve, *ruin], scale=scale * 50.0, **error)
        _, same = fed([*curve, *ruin], scale=50.0, **error)
        assert [v.state for v in others] == [v.state for v in same]
        if error:
            assert [v.state for v in ones] == [v.state for v in same]


@settings(max_examples=30, deadline=None)
@given(collapses(), st.randoms(use_true_random=False))
def test_the_order_of_arrival_plays_no_part(run, random):
    curve, ruin = run
    steps = list(enumerate([*curve, *ruin[:1], *curve[-2:]]))
    _, verdicts = fed([score for _, score in steps], stderr=SIGMA)
    random.shuffle(steps)
    monitor = Monitor(Scan(), direction="max")
    for step, score in steps:
        monitor.update(score=float(score), step=step, stderr=SIGMA)
    assert monitor.verdict == verdicts[-1]


@settings(max_examples=30, deadline=None)
@given(collapses(), st.integers(0, 30), st.booleans())
def test_a_batch_gives_the_verdicts_of_the_stream(run, place, known):
    curve, ruin = run
    broken = np.insert(curve, min(place, curve.size), ruin[0])
    table = np.stack([np.append(curve, ruin[0]), broken, np.append(curve[:-1], ruin[:2])])
    fleet = judge(Scan(), table, SIGMA if known else None)
    for row, alarms, statistics in zip(table, fleet.alarm, fleet.statistic, strict=True):
        _, verdicts = fed(row, **({"stderr": SIGMA} if known else {}))
        assert [verdict.alarm for verdict in verdicts] == alarms.tolist()
        assert [v.statistic for v in verdicts] == pytest.approx(statistics.tolist(), abs=1e-9)


def test_an_alarm_that_is_on_is_not_taken_back_by_a_collapse():
    # A pending stop must not be cancelled because things got worse.
    declining = [0.50, 0.60, 0.60, 0.55, 0.50, 0.48]
    _, verdicts = fed([*declining, 0.05, 0.06], stderr=SIGMA)
    assert [verdict.alarm for verdict in verdicts[4:]] == [True] * 4
    assert verdicts[-1].kind is Kind.COLLAPSED


def test_scores_that_are_no_number_are_divergence_not_collapse():
    monitor, _ = fed([0.50, 0.51, 0.50, 0.52, 0.50, 0.51], stderr=SIGMA)
    monitor.update(score=0.01, step=6, stderr=SIGMA)
    for step in (7, 8, 9):
        verdict = monitor.update(score=math.nan, step=step)
    assert verdict.state is State.DIVERGED
    assert monitor.update(score=0.02, step=10, stderr=SIGMA).kind is Kind.COLLAPSED


def test_a_replicate_that_contradicts_does_not_confirm():
    # The same step evaluated again: pooled, half-way between; it takes another step to be sure.
    monitor, _ = fed([0.50, 0.51, 0.50, 0.52], stderr=SIGMA)
    monitor.update(score=0.10, step=4, stderr=SIGMA, eval_id="a")
    assert monitor.update(score=0.50, step=4, stderr=SIGMA, eval_id="b").state is State.SUSPECT
    assert monitor.update(score=0.51, step=5, stderr=SIGMA).state is State.OK


@pytest.mark.parametrize("rho", [0.0, 0.3])
def test_collapses_are_paid_for_by_alpha(rho):
    # Error unknown: 0.83 and 0.89 % of flat runs in 20 and 60 evaluations, 3.3 and 4.0 % at 0.3.
    generator = np.random.default_rng([22, int(rho * 10)])
    scores = generator.standard_normal((6000, 30))
    for index in range(1, 30):
        scores[:, index] = rho * scores[:, index - 1] + math.sqrt(1 - rho**2) * scores[:, index]
    promised = 0.015 if rho == 0.0 else 0.05
    for error in (1.0, None):
        rate = (judge(Scan(), scores, error).stop >= 0).mean()
        assert rate <= promised + 3 * math.sqrt(promised / 6000)
