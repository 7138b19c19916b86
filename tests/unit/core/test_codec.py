import math

import msgspec
import pytest

from evalstop.core.actions import Action, Advise, Preempt, Start, Stop
from evalstop.core.codec import (
    VERSION,
    Unknown,
    decode_action,
    decode_event,
    encode,
    require_writable,
)
from evalstop.core.errors import InputError
from evalstop.core.events import EvalReported, Event, JobEnded, JobSubmitted, LossReported
from evalstop.core.job import JobSpec, Outcome
from evalstop.core.points import NOT_FINITE, EvalPoint, Kind, State, Verdict

EVENTS = [
    JobSubmitted(time=1.0, job=JobSpec(id="a", tenant="t", gpus=4, labels={"x": "y"})),
    EvalReported(time=2.5, job="a", point=EvalPoint(step=3, score=-0.5, items=(0.0, 1.0))),
    JobEnded(time=3.0, job="a", outcome=Outcome.STOPPED_BY_POLICY),
]

ACTIONS = [
    Start(job="a", gpus=2),
    Preempt(job="a"),
    Advise(
        job="a",
        action=Stop(
            job="a",
            rule="scan",
            verdict=Verdict(state=State.ALARM, statistic=5.0, kind=Kind.OVEROPTIMISED),
        ),
    ),
]


@pytest.mark.parametrize("event", EVENTS)
def test_events_survive_the_wire(event):
    assert decode_event(encode(event)) == event


@pytest.mark.parametrize("action", ACTIONS)
def test_actions_survive_the_wire(action):
    assert decode_action(encode(action)) == action


@pytest.mark.parametrize("score", [NOT_FINITE, math.nan, math.inf, -math.inf, float("nan")])
def test_a_score_that_is_no_finite_number_is_absent_on_the_wire(score):
    line = encode(EvalReported(time=1.0, job="a", point=EvalPoint(step=1, score=score)))
    assert msgspec.json.decode(line)["point"] == {"step": 1}
    assert math.isnan(decode_event(line).point.score)


@pytest.mark.parametrize(
    "line",
    [
        b'{"v":1,"type":"CoolantLeaked","time":1.0,"litres":3}',
        b'{"v":2,"type":"JobEnded","time":1.0,"job":"a","cause":"moon"}',
    ],
)
def test_what_a_newer_version_wrote_is_kept_byte_for_byte(line):
    kept = decode_event(line)
    assert isinstance(kept, Unknown)
    assert encode(kept) == line


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b"null", b'{"v":1,"type":"JobEnded"}', b'{"v":"x","type":"JobEnded"}'],
)
def test_a_broken_line_is_refused_with_what_came(line):
    with pytest.raises(InputError, match="expected one event or action"):
        decode_event(line)


def test_every_line_carries_the_version():
    assert all(msgspec.json.decode(encode(item))["v"] == VERSION for item in [*EVENTS, *ACTIONS])


@pytest.mark.parametrize("kind", [*Event.__args__, *Action.__args__])
def test_every_fact_and_intent_is_frozen(kind):
    assert kind.__struct_config__.frozen


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, -math.nan])
@pytest.mark.parametrize("field", ["statistic", "threshold", "best_score"])
@pytest.mark.parametrize("wrap", [lambda stop: stop, lambda stop: Advise(job="a", action=stop)])
def test_a_stop_can_be_read_again_whatever_its_rule_computed(field, number, wrap):
    """A log that holds a line it cannot read would keep a controller from starting again."""
    verdict = msgspec.structs.replace(Verdict(state=State.ALARM), **{field: number})
    line = encode(wrap(Stop(job="a", rule="custom", verdict=verdict)))
    read = decode_action(line)
    stop = read if isinstance(read, Stop) else read.action
    assert (stop.job, stop.rule, stop.verdict.state) == ("a", "custom", State.ALARM)
    if field == "best_score":
        assert math.isnan(stop.verdict.best_score)
    elif math.isinf(number):
        assert math.copysign(1.0, getattr(stop.verdict, field)) == math.copysign(1.0, number)
        assert abs(getattr(stop.verdict, field)) > 1e308
    else:
        assert getattr(stop.verdict, field) == 0.0
    assert encode(read) == line


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: LossReported(time=1.0, job="a", step=1, loss=x),
        lambda x: JobEnded(time=x, job="a"),
        lambda x: EvalReported(time=1.0, job="a", point=EvalPoint(step=1, items=(x, 1.0))),
        lambda x: EvalReported(time=1.0, job="a", point=EvalPoint(step=1, signals=(("kl", x),))),
    ],
)
def test_a_fact_that_could_not_be_read_again_is_refused_before_it_is_one(make, number):
    require_writable(make(0.5))
    with pytest.raises(InputError, match="the log cannot hold"):
        require_writable(make(number))


def test_a_score_that_is_no_number_can_be_written():
    for score in (math.nan, math.inf, NOT_FINITE):
        require_writable(EvalReported(time=1.0, job="a", point=EvalPoint(step=1, score=score)))
