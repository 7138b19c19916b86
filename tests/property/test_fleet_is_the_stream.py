"""Many curves at once, with gaps, dips and collapses: verdict by verdict those of the stream."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalstop.core.points import EvalPoint
from evalstop.detectors import fleet
from evalstop.detectors.scan import Scan

SIGMA = 0.01


@st.composite
def tables(draw):
    """Curves near 0.5, some of whose evaluations fall below the start, alone or in a row."""
    evals = draw(st.integers(1, 45))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    table = 0.5 + SIGMA * generator.standard_normal((8, evals))
    table += draw(st.sampled_from([0.0, 0.02])) * np.arange(evals) / evals
    for _ in range(draw(st.integers(0, 6))):
        rows, places = generator.integers(0, 8, 4), generator.integers(0, evals, 4)
        table[rows, places] -= generator.choice([0.05, 0.06, 0.1, 0.3], 4)
    if draw(st.booleans()):
        table[::3, draw(st.integers(0, evals)) :] -= draw(st.sampled_from([0.07, 0.2]))
    if draw(st.booleans()):  # gaps, one of them at a start
        table[generator.random(table.shape) < 0.1] = np.nan
        table[0, 0] = np.nan
    if draw(st.booleans()):  # shorter
        table[1::4, draw(st.integers(0, evals)) :] = np.inf
    if draw(st.booleans()):  # a start that does not scatter
        table[2, :5] = table[2, 0]
    return table


def streamed(rule, scores, errors):
    """Return statistic, threshold and alarm after each evaluation, zeros where there is none."""
    found, state = np.zeros((3, scores.size)), rule.start()
    for step in np.flatnonzero(np.isfinite(scores)).tolist():
        point = EvalPoint(step=step, score=float(scores[step]), stderr=float(errors[step]) or None)
        state, verdict = rule.step(state, point)
        found[:, step] = verdict.statistic, verdict.threshold, verdict.alarm
    return found


@settings(max_examples=60, deadline=None)
@given(tables(), st.sampled_from(["none", "equal", "unequal"]), st.sampled_from([0.01, 0.1]))
def test_a_fleet_gives_the_verdicts_of_the_stream(table, errors, alpha):
    stderr = {"none": 0.0, "equal": SIGMA, "unequal": SIGMA + 0.001 * np.arange(table.shape[1])}
    rule, error = Scan(alpha=alpha), np.broadcast_to(stderr[errors], table.shape)
    found = fleet.judge(rule, table, error)
    for run, scores in enumerate(table):
        statistic, threshold, alarm = streamed(rule, scores, error[run])
        present = np.isfinite(scores)
        assert found.statistic[run].tolist() == pytest.approx(statistic.tolist(), abs=1e-9)
        assert found.threshold[run][present].tolist() == threshold[present].tolist()
        assert found.alarm[run].tolist() == alarm.astype(bool).tolist()


def test_what_is_left_out_is_not_stepped_through(monkeypatch):
    # One at a time such runs would take forty times as long: fleets that collapsed are many.
    generator = np.random.default_rng(6)
    table = 0.5 + SIGMA * generator.standard_normal((40, 30))
    table[:, 20:] -= 0.2
    table[:20, 9] -= 0.2
    table[:10, 15] = np.nan
    monkeypatch.setattr(fleet, "_judge_stepwise", None)
    assert (fleet.judge(Scan(), table, SIGMA).stop == 21).all()
    assert (fleet.judge(Scan(), table).stop == 21).all()


def test_a_run_that_collapses_and_recovers_all_the_time_is_judged_like_others():
    generator = np.random.default_rng(7)
    table = 0.5 + SIGMA * generator.standard_normal((3, 60))
    table[:, 2::2] -= 0.2
    found = fleet.judge(Scan(), table, SIGMA)
    for run, scores in enumerate(table):
        statistic, _, alarm = streamed(Scan(), scores, np.full(60, SIGMA))
        assert found.statistic[run].tolist() == pytest.approx(statistic.tolist(), abs=1e-9)
        assert found.alarm[run].tolist() == alarm.astype(bool).tolist()


PRINTED = {
    "decimals": lambda scores: np.round(scores, 3),
    "shares of 1319": lambda scores: np.round(scores * 1319) / 1319,
    "printed shares of 128": lambda scores: np.round(np.round(scores * 128) / 128, 3),
    "a share by chance": lambda scores: np.column_stack(
        [np.full(len(scores), 344 / 1319), scores[:, 1:]]
    ),
    "no shares any more": lambda scores: np.column_stack(
        [np.round(scores[:, :7] * 500) / 500, scores[:, 7:]]
    ),
}


@pytest.mark.parametrize("printed", PRINTED)
def test_scores_that_may_be_shares_are_judged_like_others(printed):
    generator = np.random.default_rng(8)
    table = 0.5 + 0.03 * generator.standard_normal((12, 30))
    table[::3, 11] -= 0.3
    table[::5, 20:] -= 0.3
    table = PRINTED[printed](table)
    table[4, 8] = np.nan
    found = fleet.judge(Scan(), table)
    for run, scores in enumerate(table):
        statistic, threshold, alarm = streamed(Scan(), scores, np.zeros(30))
        present = np.isfinite(scores)
        assert found.statistic[run].tolist() == pytest.approx(statistic.tolist(), abs=1e-9)
        assert found.threshold[run][present].tolist() == threshold[present].tolist()
        assert found.alarm[run].tolist() == alarm.astype(bool).tolist()
