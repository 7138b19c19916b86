"""What the fleet lets replay pass over changes no answer."""

import numpy as np
import pytest

from evalstop.config.rules import parse_rule
from evalstop.core.history import History
from evalstop.detectors.scan import Scan
from evalstop.traces import quiet
from evalstop.traces.replay import judge, replay_series
from evalstop.traces.series import Curve, normalise

SCAN = parse_rule("default")


def curves(count, *, evals=40, stderr=0.02, direction="max"):
    rng = np.random.default_rng(7)
    steps = np.arange(evals)
    made = []
    for index in range(count):
        scores = 0.3 + 0.4 * (1 - np.exp(-steps / 8)) + rng.normal(0, 0.02, evals)
        if index % 3 == 0:
            scores -= np.maximum(0, steps - 20) * 0.01
        curve = Curve(
            trace_id=f"r{index}",
            source="s",
            metric="m",
            steps=(10 * steps).tolist(),
            scores=(scores if direction == "max" else 1 - scores).tolist(),
            stderrs=[stderr] * evals if stderr else None,
        )
        made.append(normalise(curve, direction))
    return made


@pytest.mark.parametrize("stderr", [0.02, 0.0])
@pytest.mark.parametrize("direction", ["max", "min"])
def test_passing_over_quiet_evaluations_changes_no_result(monkeypatch, stderr, direction):
    monkeypatch.setattr(quiet, "_WORTHWHILE", 1)
    runs = curves(60, stderr=stderr, direction=direction)
    fast = replay_series(runs, [SCAN]).results
    slow = tuple(judge(run, SCAN.named("other"), SCAN.spec) for run in runs)
    assert fast == slow
    assert any(result.fired for result in fast)
    assert not all(result.fired for result in fast)


def test_most_evaluations_are_passed_over(monkeypatch):
    monkeypatch.setattr(quiet, "_WORTHWHILE", 1)
    runs = curves(30)
    silent = quiet.quiet_evaluations(runs, [Scan()] * 30)
    assert sum(silent) > 0.6 * sum(len(run.points) for run in runs)
    assert max(silent) == 39  # the last evaluation is always judged


def test_few_runs_are_judged_one_by_one(monkeypatch):
    # The fleet pays by runs side by side: on one long run it costs twice what the rule does.
    monkeypatch.setattr(quiet, "_WORTHWHILE", 1)
    assert quiet.quiet_evaluations(curves(1), [Scan()]) == [0]
    assert quiet.quiet_evaluations(curves(3), [Scan()] * 3) == [0] * 3


def test_only_plain_runs_of_scan_are_passed_over(monkeypatch):
    monkeypatch.setattr(quiet, "_WORTHWHILE", 1)
    plain = curves(1)[0]
    base = {"trace_id": "r", "source": "s", "metric": "m"}
    odd = [
        Curve(**base, steps=[1, 1, 2], scores=[0.5] * 3),
        Curve(**base, steps=[1, 2, 3], scores=[0.5, float("nan"), 0.4]),
        Curve(**base, steps=[1, 2, 3], scores=[0.5] * 3, attempts=[0, 0, 1]),
        Curve(**base, steps=[1, 2, 3], scores=[0.5] * 3, epoch_keys=["a", "a", "b"]),
        Curve(**base, steps=[1, 2, 3], scores=[0.5] * 3, stderrs=[0.1, float("nan"), 0.1]),
        Curve(**base, steps=[1, 2, 3], scores=[0.5] * 3, partial="cut"),
    ]
    runs = [*(normalise(curve, "max") for curve in odd), plain]
    assert quiet.quiet_evaluations(runs, [Scan()] * len(runs))[:-1] == [0] * len(odd)
    assert quiet.quiet_evaluations([plain], [parse_rule("patience").for_type("x")]) == [0]


def test_few_evaluations_are_judged_one_by_one():
    assert quiet.quiet_evaluations(curves(2), [Scan()] * 2) == [0, 0]


@pytest.mark.parametrize("detector", [Scan(), parse_rule("consecutive:k=2").for_type("x")])
def test_a_history_that_absorbed_goes_on_as_if_it_had_judged(detector):
    points = curves(1)[0].points
    judged, absorbed = History(detector), History(detector)
    for point in points[:-1]:
        judged.add(point)
        absorbed.absorb(point)
    assert absorbed.add(points[-1]) == judged.add(points[-1])
    assert absorbed.best == judged.best
    assert absorbed.series == judged.series
    late = points[3]
    assert absorbed.add(late) == judged.add(late)
