"""Side signals annotate; no rule, no fold and no backend of a rule hears them (R18)."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalstop.config.rules import RULES, parse_rule
from evalstop.core.detector import Detector
from evalstop.core.events import EvalReported, LossReported
from evalstop.core.history import History
from evalstop.core.job import JobView, Phase
from evalstop.core.points import EvalPoint
from evalstop.core.signals import remarks
from evalstop.policies.evalstop import Watch

NUMBER = st.floats(-1e6, 1e6)
SIGNALS = st.dictionaries(st.sampled_from(["kl", "entropy", "length", "x/y"]), NUMBER).map(
    lambda named: tuple(sorted(named.items()))
)
SCORES = st.lists(st.floats(-1.0, 1.0) | st.just(math.nan), min_size=1, max_size=14)


def points_of(scores, errors):
    items = tuple(float(i % 2) for i in range(12))
    return [
        EvalPoint(
            step=10 * (index + 1),
            score=score,
            stderr=errors,
            proxy=0.1 * index,
            items=tuple(item + score for item in items) if math.isfinite(score) else None,
        )
        for index, score in enumerate(scores)
    ]


def job():
    return JobView(
        id="j",
        tenant="",
        job_type="rlhf",
        gpus=1,
        min_gpus=None,
        max_gpus=None,
        estimated_s=1000.0,
        labels={},
        submitted_at=0.0,
        phase=Phase.RUNNING,
        held_gpus=1,
        attempt=1,
        started_at=0.0,
        first_started_at=0.0,
    )


@pytest.mark.parametrize("rule", [*RULES, "paper"])
@given(scores=SCORES, errors=st.none() | st.floats(0.001, 0.2), data=st.data())
def test_a_decision_with_side_signals_is_the_decision_without_them(rule, scores, errors, data):
    bare = points_of(scores, errors)
    told = [msgspec.structs.replace(point, signals=data.draw(SIGNALS)) for point in bare]
    verdicts = []
    for points in (bare, told):
        watch = Watch(parse_rule(rule).named("rlhf"))
        heard = []
        for point in points:
            time = float(point.step)
            events = (
                LossReported(time=time, job="j", step=point.step, loss=1.0),
                EvalReported(time=time, job="j", point=point),
            )
            heard += [msgspec.json.encode(watch.hear(event, {"j": job()})) for event in events]
        verdicts.append(heard)
    assert verdicts[0] == verdicts[1]


@given(scores=SCORES, data=st.data())
def test_nor_does_their_order_of_arrival_or_a_repeat_that_brings_them(scores, data):
    detector = parse_rule("default").for_type("rlhf")
    assert isinstance(detector, Detector)
    bare = points_of(scores, 0.02)
    told = [msgspec.structs.replace(point, signals=data.draw(SIGNALS)) for point in bare]
    plain = History(detector, bare)
    mixed = History(detector, data.draw(st.permutations([*bare, *told])))
    encoded = msgspec.json.encode
    assert encoded(mixed.verdict) == encoded(plain.verdict)
    assert len(mixed.reports) == len(plain.reports)
    if plain.series:
        assert [point.signals for point in mixed.series] == [
            point.signals for point in told if math.isfinite(point.score)
        ]
        assert remarks(mixed.series) == remarks([p for p in told if math.isfinite(p.score)])
