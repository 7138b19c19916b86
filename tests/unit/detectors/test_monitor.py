import math
from decimal import Decimal
from fractions import Fraction

import msgspec
import numpy as np
import pytest

from evalstop.config.rules import parse_rule
from evalstop.core.errors import InputError
from evalstop.core.points import State
from evalstop.detectors.consecutive import ConsecutiveDecline
from evalstop.detectors.monitor import Monitor

FALLS = [0.5, 0.9, 0.8, 0.7]


def watch(monitor, scores, **fields):
    for step, score in enumerate(scores):
        verdict = monitor.update(score=score, step=step, **fields)
    return verdict


def test_a_loss_is_watched_the_other_way_round_and_reported_in_its_own_sign():
    monitor = Monitor(ConsecutiveDecline(k=2), direction="min")
    verdict = watch(monitor, [0.5, 0.1, 0.2, 0.3])
    assert verdict.alarm
    assert (verdict.best_step, verdict.best_score) == (1, 0.1)
    assert monitor.verdict == verdict
    assert not watch(Monitor(ConsecutiveDecline(k=2), direction="max"), [0.1, 0.2, 0.3]).alarm


@pytest.mark.parametrize("direction", ["", "up", "maximize", None])
def test_the_direction_is_never_guessed(direction):
    with pytest.raises(InputError, match="'max' or 'min'"):
        Monitor(ConsecutiveDecline(k=2), direction=direction)


def test_a_rule_map_is_read_for_the_job_type():
    rules = parse_rule("rlhf=consecutive:k=2;*=none")
    assert watch(Monitor(rules, direction="max"), FALLS).alarm
    assert watch(Monitor(rules, direction="max", job_type="grpo"), FALLS).alarm
    assert not watch(Monitor(rules, direction="max", job_type="sft"), FALLS).alarm


def test_a_rule_that_needs_more_than_scores_is_refused():
    with pytest.raises(InputError, match="StopAt"):
        Monitor(parse_rule("stop-at"), direction="max")


@pytest.mark.parametrize("score", [None, math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_is_counted_and_never_compared(score):
    monitor = Monitor(ConsecutiveDecline(k=1), direction="max")
    assert not watch(monitor, [0.5, score, score]).alarm
    assert monitor.update(score=score, step=3).state is State.DIVERGED
    assert monitor.history.best.score == 0.5


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"step": -1}, "step must be >= 0"),
        ({"step": 1, "stderr": -0.1}, "stderr must be a finite number"),
        ({"step": 1, "stderr": math.nan}, "stderr must be a finite number"),
    ],
)
def test_impossible_reports_are_refused(fields, what):
    with pytest.raises(InputError, match=what):
        Monitor(ConsecutiveDecline(k=2), direction="max").update(score=0.5, **fields)


def test_a_verdict_explains_itself_in_a_sentence():
    verdict = watch(Monitor(ConsecutiveDecline(k=2), direction="max"), FALLS)
    assert verdict.reason == "alarm: statistic 2 >= 2, best 0.9 at step 1, declining"


FALLING = [0.52, 0.60, 0.66, 0.67, 0.64, 0.58, 0.50, 0.45, 0.41, 0.40]


def test_the_number_of_items_gives_a_share_its_error_and_an_earlier_verdict():
    def first_alarm(**fields):
        monitor = Monitor(parse_rule("default"), direction="max")
        alarms = [
            monitor.update(score=score, step=step, **fields).alarm
            for step, score in enumerate(FALLING)
        ]
        return alarms.index(True)

    assert first_alarm(n_items=1500) < first_alarm()
    monitor = Monitor(parse_rule("default"), direction="max")
    monitor.update(score=0.52, step=1, n_items=500)
    assert monitor.history.reports[0].stderr == pytest.approx(0.0223, abs=1e-4)


def test_items_say_nothing_of_a_score_that_is_no_share_or_whose_error_is_known():
    monitor = Monitor(parse_rule("default"), direction="max")
    monitor.update(score=61.0, step=1, n_items=500)
    monitor.update(score=0.6, step=2, n_items=500, stderr=0.04)
    monitor.update(score=None, step=3, n_items=500)
    assert [point.stderr for point in monitor.history.reports] == [None, 0.04, None]


CURVE = (0.5, 0.75, 0.625, 0.5, 0.25)  # exact in every type
NUMBERS = {
    "float": float,
    "numpy.float32": np.float32,
    "numpy.float64": np.float64,
    "numpy.float16": np.float16,
    "array of no dimension": lambda x: np.array(x, np.float32),
    "Decimal": Decimal,
    "Fraction": Fraction,
}
WHOLES = {
    "int": int,
    "float": float,
    "numpy.int64": np.int64,
    "numpy.uint8": np.uint8,
    "numpy.float32": np.float32,
    "Decimal": Decimal,
}


@pytest.mark.parametrize("rule", ["default", "consecutive:k=2", "cusum", "patience:k=2", "bayes"])
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("whole", WHOLES)
def test_numbers_of_any_library_give_the_same_verdicts(rule, number, whole):
    plain, other = (Monitor(parse_rule(rule), direction="max") for _ in range(2))
    make, count = NUMBERS[number], WHOLES[whole]
    for step, score in enumerate(CURVE):
        expected = plain.update(score=score, step=step, stderr=0.125, n_items=64, proxy=1.5)
        got = other.update(
            score=make(score), step=count(step), stderr=make(0.125), n_items=count(64),
            proxy=make(1.5), attempt=count(0), items=None,
        )  # fmt: skip
        assert got == expected
    assert msgspec.json.encode(other.history.reports) == msgspec.json.encode(plain.history.reports)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("score", bad) for bad in ("0.5", "high", b"1", [0.5], 1j, 10**400, np.ones(2))),
        *(("step", bad) for bad in (None, "3", 1.5, float("nan"), float("inf"), -1, -1.0)),
        *(("stderr", bad) for bad in ("0.1", -0.1, float("nan"), float("inf"))),
        *(("n_items", bad) for bad in ("100", 0, -1, 1.5, float("nan"))),
        *(("attempt", bad) for bad in ("1", -1, 0.5)),
        *(("proxy", bad) for bad in ("high", [1.0])),
        ("items", ("a", "b")),
    ],
)
def test_what_is_no_such_number_is_refused_by_name_and_changes_nothing(field, value):
    monitor = Monitor(parse_rule("default"), direction="max")
    monitor.update(score=0.5, step=1)
    before = monitor.verdict
    with pytest.raises(InputError, match=f"^{field} must be"):
        monitor.update(**({"score": 0.4, "step": 2} | {field: value}))
    assert monitor.verdict == before
    assert len(monitor.history.reports) == 1


@pytest.mark.parametrize("rule", [None, "default"])
def test_a_rule_that_was_not_parsed_is_refused_with_what_to_do(rule):
    with pytest.raises(InputError, match=r"parse_rule\('default'\)"):
        Monitor(rule, direction="max")


def test_a_verdict_on_nothing_claims_no_statistic():
    monitor = Monitor(parse_rule("none"), direction="max")
    assert "statistic" not in monitor.update(score=0.5, step=1).reason


@pytest.mark.parametrize("name", ["epoch_key", "eval_id", "checkpoint"])
def test_names_may_be_numbers_and_nothing_else(name):
    numbered, named = (Monitor(ConsecutiveDecline(k=2), direction="max") for _ in range(2))
    for value in (1, "b"):  # a suite's version, then its name: one kind of key all the same
        numbered.update(score=0.5, step=1, **{name: value})
        named.update(score=0.5, step=1, **{name: str(value)})
    assert numbered.history.reports == named.history.reports
    with pytest.raises(InputError, match=f"{name} must be a name, such as 'suite-2', but got"):
        numbered.update(score=0.5, step=2, **{name: ["suite"]})


def test_signals_that_are_not_known_are_left_out():
    monitor = Monitor(ConsecutiveDecline(k=2), direction="max")
    monitor.update(score=0.5, step=1, signals={"kl": None, "length": np.float32(2), "x": math.nan})
    assert monitor.history.reports[0].signals == (("length", 2.0),)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"signals": 5}, "signals must be named numbers"),
        ({"signals": {"kl": "high"}}, r"signals\['kl'\] must be a number, but got 'high'"),
        ({"items": 5}, "items must be scores, one an item"),
        ({"items": "0110"}, "items must be scores, one an item"),
        ({"items": (1.0, math.nan)}, "items must be finite numbers"),
    ],
)
def test_what_cannot_be_read_is_refused_in_words_and_changes_nothing(fields, words):
    monitor = Monitor(ConsecutiveDecline(k=2), direction="max")
    with pytest.raises(InputError, match=words):
        monitor.update(score=0.5, step=1, **fields)
    assert not monitor.history.reports


@pytest.mark.parametrize("rule", [ConsecutiveDecline, {"rlhf": ConsecutiveDecline(k=2)}], ids=repr)
def test_a_rule_is_an_object_of_one(rule):
    with pytest.raises(InputError, match=r"expected a rule|needs more than scores"):
        Monitor(rule, direction="max")


@pytest.mark.parametrize("job_type", [None, 3])
def test_a_job_type_is_a_name(job_type):
    with pytest.raises(InputError, match="job_type must be a name"):
        Monitor(parse_rule("paper"), direction="max", job_type=job_type)


@pytest.mark.parametrize("scores", ["abc", [["a"]], [[0.5, 0.6], [0.5]], [[None, {}]]], ids=repr)
def test_a_table_of_scores_is_of_numbers(scores):
    with pytest.raises(InputError, match="expected a table of numbers"):
        Monitor(parse_rule("default"), direction="max").update_many(scores)


def test_no_error_of_many_is_negative():
    with pytest.raises(InputError, match="stderr must not be negative"):
        Monitor(parse_rule("default"), direction="max").update_many([[0.5, 0.6]], stderr=-0.1)
