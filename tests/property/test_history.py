"""R03, R11, R12, R14, R15: the verdict is a function of the set of reports."""

import itertools
import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from evalstop.core.history import DIVERGED_AFTER, History
from evalstop.core.points import NOT_FINITE, EvalPoint, State
from evalstop.core.series import pool
from evalstop.detectors.consecutive import ConsecutiveDecline
from evalstop.detectors.cusum import Cusum
from evalstop.detectors.drop import Drop
from evalstop.detectors.never import Never
from evalstop.detectors.scan import Scan

DETECTORS = st.sampled_from(
    [ConsecutiveDecline(k=2), Scan(alpha=0.05), Drop(g=2.0, k=1), Cusum(), Never()]
)

SCORES = st.one_of(
    st.floats(-2, 2, allow_nan=False), st.sampled_from([0.0, -0.5, 0.5, math.nan, math.inf])
)


@st.composite
def reports(draw, attempts=2, epochs=(None, "b")):
    return EvalPoint(
        step=draw(st.integers(0, 8)),
        score=draw(SCORES),
        stderr=draw(st.sampled_from([None, 0.1, 0.2])),
        n_items=draw(st.sampled_from([None, 10, 30])),
        attempt=draw(st.integers(0, attempts)),
        epoch_key=draw(st.sampled_from(epochs)),
        eval_id=draw(st.sampled_from([None, "x"])),
        checkpoint=draw(st.sampled_from([None, "c1", "c2"])),
    )


def same(one, other):
    return msgspec.json.encode(one) == msgspec.json.encode(other)


@given(DETECTORS, st.lists(reports(), max_size=12), st.randoms(use_true_random=False))
def test_any_order_of_arrival_gives_the_same_verdict_best_and_series(detector, points, random):
    shuffled = list(points)
    random.shuffle(shuffled)
    one, other = History(detector, points), History(detector, shuffled)
    assert same(one.verdict, other.verdict)
    assert same(one.series, other.series)
    assert same(one.best, other.best)


@given(DETECTORS, st.lists(reports(), max_size=10), st.data())
def test_a_repeated_report_has_no_effect(detector, points, data):
    if not points:
        return
    once = History(detector, points)
    twice = History(detector, points)
    twice.add(data.draw(st.sampled_from(points)))
    assert same(once.verdict, twice.verdict)
    assert len(twice.reports) == len(once.reports)


@given(DETECTORS, st.lists(reports(), max_size=12), st.integers(0, 12))
def test_a_restart_from_the_reports_goes_on_as_if_nothing_happened(detector, points, cut):
    whole = History(detector, points)
    first = History(detector, points[:cut])
    restarted = History(detector, first.reports)
    for point in points[cut:]:
        restarted.add(point)
    assert same(whole.verdict, restarted.verdict)
    assert same(whole.best, restarted.best)


@given(DETECTORS, st.lists(reports(epochs=(None,)), max_size=12))
def test_best_is_finite_and_the_highest_pooled_score_of_the_epoch(detector, points):
    history = History(detector, points)
    finite = [p.score for p in pool(points_once(points)) if math.isfinite(p.score)]
    if finite:
        assert history.best.score == max(finite)
    else:
        assert history.best is None


def points_once(points):
    return History(Never(), points).reports


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30))
def test_best_never_gets_worse_while_reports_come_one_a_step(scores):
    history = History(Never())
    best = -math.inf
    for step, score in enumerate(scores):
        history.add(EvalPoint(step=step, score=score, attempt=step // 7))
        assert history.best.score >= best
        best = history.best.score


@given(st.integers(1, 6), st.booleans())
def test_non_finite_scores_in_a_row_diverge_and_a_finite_one_ends_it(count, ordered):
    history = History(ConsecutiveDecline(k=2), [EvalPoint(step=0, score=1.0)])
    steps = range(1, count + 1) if ordered else range(count, 0, -1)
    for step in steps:
        history.add(EvalPoint(step=step, score=NOT_FINITE))
    expected = State.DIVERGED if count >= DIVERGED_AFTER else State.OK
    assert history.verdict.state is expected
    assert history.best.step == 0
    assert history.add(EvalPoint(step=count + 1, score=0.9)).state is State.OK


def test_a_nan_between_two_declines_neither_adds_to_the_run_nor_breaks_it():
    history = History(ConsecutiveDecline(k=2))
    history.add(EvalPoint(step=1, score=0.9))
    history.add(EvalPoint(step=2, score=0.8))
    assert not history.add(EvalPoint(step=3, score=NOT_FINITE)).alarm
    assert history.add(EvalPoint(step=4, score=0.7)).alarm


def test_a_late_report_that_breaks_the_run_withdraws_the_alarm():
    history = History(ConsecutiveDecline(k=2))
    for step, score in [(1, 0.9), (2, 0.8), (4, 0.7)]:
        verdict = history.add(EvalPoint(step=step, score=score))
    assert verdict.alarm
    assert not history.add(EvalPoint(step=3, score=0.95)).alarm


def test_a_changed_suite_opens_a_new_epoch_and_no_drop_counts_across_it():
    history = History(ConsecutiveDecline(k=1))
    history.add(EvalPoint(step=1, score=0.9, epoch_key="v1"))
    assert not history.add(EvalPoint(step=2, score=0.2, epoch_key="v2")).alarm
    assert history.best.step == 2
    assert history.add(EvalPoint(step=3, score=0.1, epoch_key="v2")).alarm


def test_a_rewind_drops_the_abandoned_branch_but_keeps_its_best():
    history = History(ConsecutiveDecline(k=2))
    for step, score in [(1, 0.5), (2, 0.9), (3, 0.8)]:
        history.add(EvalPoint(step=step, score=score, attempt=1))
    assert not history.add(EvalPoint(step=2, score=0.7, attempt=2)).alarm
    assert [point.score for point in history.series] == [0.5, 0.7]
    assert history.best.score == 0.9


def test_of_equal_scores_the_earliest_step_is_best_though_a_later_one_came_first():
    reports = [
        EvalPoint(step=80, score=0.6),
        EvalPoint(step=0, score=0.5, attempt=1),
        EvalPoint(step=10, score=0.6, attempt=1),
    ]
    for order in itertools.permutations(reports):
        history = History(ConsecutiveDecline(k=2))
        for report in order:
            history.add(report)
            assert history.best is not None  # looked at in between, as a platform does
        assert (history.best.step, history.best.attempt) == (10, 1)


def test_conflicting_reports_of_a_step_are_pooled_by_items():
    history = History(Never())
    history.add(EvalPoint(step=1, score=0.5, stderr=0.05, n_items=100))
    history.add(EvalPoint(step=1, score=0.8, stderr=0.05, n_items=50))
    (point,) = history.series
    assert math.isclose(point.score, 0.6)
    assert point.n_items == 150
    assert point.replicates == 2
    assert math.isclose(point.stderr, math.hypot(100 * 0.05, 50 * 0.05) / 150)


def test_best_score_and_best_saved_score_are_two_numbers():
    history = History(Never())
    history.add(EvalPoint(step=1, score=0.5, checkpoint="c1"))
    history.add(EvalPoint(step=2, score=0.9))
    assert history.best.step == 2
    assert history.best_saved.step == 1
