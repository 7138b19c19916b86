"""What is said of side signals, and when nothing is."""

from __future__ import annotations

import math

import msgspec
import pytest

from evalstop.core.codec import decode_event, encode
from evalstop.core.events import EvalReported
from evalstop.core.history import History
from evalstop.core.points import EvalPoint
from evalstop.core.series import pool
from evalstop.core.signals import remarks, signals_of, trainer_signals
from evalstop.detectors.consecutive import ConsecutiveDecline
from evalstop.detectors.monitor import Monitor

FALLS = [0.50, 0.56, 0.60, 0.57, 0.52, 0.46, 0.40]


def curve(scores=FALLS, proxy=None, **columns):
    return [
        EvalPoint(
            step=100 * (index + 1),
            score=score,
            proxy=None if proxy is None else proxy[index],
            signals=signals_of({name: column[index] for name, column in columns.items()}),
        )
        for index, score in enumerate(scores)
    ]


def test_a_reward_that_rises_while_the_score_falls_is_said():
    (words,) = remarks(curve(proxy=[1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2]))
    assert words == (
        "training reward rose from 1.2 to 2 since the best score at step 300: a score that falls "
        "meanwhile is what over-optimisation looks like"
    )


@pytest.mark.parametrize(
    ("name", "column", "told"),
    [
        ("kl", [0, 1, 2, 4, 6, 8, 10], "KL from the start rose from 1 to 8"),
        ("objective/kl", [0, 1, 2, 4, 6, 8, 10], "the policy moves away from where it began"),
        ("length", [100, 100, 110, 200, 300, 400, 500], "response length rose from 103.3 to 400"),
        ("entropy", [2, 1.9, 1.8, 1.2, 0.9, 0.6, 0.3], "answers become alike"),
        ("grad_norm", [1, 1, 1.1, 2, 3, 4, 5], "updates grow"),
        ("reward_std", [1, 0.9, 0.8, 0.6, 0.4, 0.2, 0.0], "rewards no longer tell answers apart"),
        ("rm_score", [1, 1, 1.1, 2, 3, 4, 5], "rm_score rose from 1.033 to 4 since the best score"),
    ],
)
def test_a_signal_that_moved_is_said_with_its_values(name, column, told):
    (words,) = remarks(curve(**{name: column}))
    assert told in words


@pytest.mark.parametrize(
    "points",
    [
        [],
        curve(),
        curve(kl=[3.0] * 7),
        curve(kl=[1.0, 1.4, 0.9, 1.3, 1.0, 1.4, 1.0]),  # noise
        curve(scores=sorted(FALLS), kl=[0, 1, 2, 4, 6, 8, 10]),  # the best is the newest
        curve(kl=[math.nan] * 7),
        curve(scores=FALLS[:2], kl=[1, 9, 0, 0, 0, 0, 0]),
    ],
)
def test_nothing_is_said_where_nothing_moved_or_too_little_is_known(points):
    assert remarks(points) == ()


def test_values_that_are_not_finite_are_left_out():
    assert signals_of({"kl": math.inf, "b": 2, "a": 1.0, "c": math.nan}) == (("a", 1.0), ("b", 2.0))
    assert signals_of(None) == ()


def test_a_trainers_log_is_read_by_its_own_names():
    line = {"objective/kl": 3.0, "completions/mean_length": 120, "grad_norm": math.nan, "kl": "x"}
    assert trainer_signals(line) == {"kl": 3.0, "length": 120.0}
    assert trainer_signals({"kl": 1.0, "objective/kl": 2.0}) == {"kl": 1.0}


def test_they_survive_the_log_and_old_logs_have_none():
    point = EvalPoint(step=1, score=0.5, signals=(("kl", 2.0),))
    event = EvalReported(time=1.0, job="a", point=point)
    assert decode_event(encode(event)) == event
    old = EvalReported(time=1.0, job="a", point=EvalPoint(step=1, score=0.5))
    assert b"signals" not in encode(old)
    assert decode_event(encode(old)).point.signals == ()


def test_replicates_are_averaged_and_a_repeat_completes_its_report():
    one = EvalPoint(step=1, score=0.4, eval_id="a", signals=(("kl", 1.0), ("length", 9.0)))
    two = EvalPoint(step=1, score=0.6, eval_id="b", signals=(("kl", 3.0),))
    assert pool([one, two])[0].signals == (("kl", 2.0), ("length", 9.0))
    history = History(ConsecutiveDecline(k=2), [msgspec.structs.replace(one, signals=())])
    history.add(one)
    assert [point.signals for point in history.reports] == [one.signals]
    history.add(msgspec.structs.replace(one, signals=(("entropy", 1.0), ("kl", 5.0))))
    assert history.reports[0].signals == (("entropy", 1.0), ("kl", 1.0), ("length", 9.0))


def test_the_monitor_says_them_beside_its_verdict():
    monitor = Monitor(ConsecutiveDecline(k=2), direction="min")
    for step, loss in enumerate(FALLS):
        verdict = monitor.update(score=-loss, step=step, signals={"kl": step**2})
    assert verdict.alarm
    assert verdict.note == ""
    assert monitor.remarks[0].startswith("KL from the start rose from 1.667 to 25.67")
