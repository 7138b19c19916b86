import math

import numpy as np
import pytest
from msgspec.structs import replace

from evalstop.config.rules import parse_rule
from evalstop.core.errors import ReadError
from evalstop.experiments.peers.registry import parse_peer
from evalstop.experiments.real_runs import (
    CLASSICAL,
    LANGUAGE,
    built_in_runs,
    measure,
    measure_peer,
    shared_runs,
)
from evalstop.traces.series import Curve, normalise

K2 = parse_rule("consecutive:k=2")


def run(label, scores):
    curve = Curve(
        trace_id=label, source="s", metric="m", steps=range(len(scores)), scores=scores, label=label
    )
    return normalise(curve, "max")


def test_false_stops_and_finds_are_counted_by_label():
    runs = [
        run("healthy", [0.1, 0.2, 0.3]),
        run("healthy", [0.3, 0.2, 0.1, 0.4]),
        run("plateau", [0.2, 0.2, 0.2]),
        run("declined", [0.1, 0.5, 0.4, 0.3, 0.2]),
        run("declined", [0.3, 0.2, 0.1, 0.5, 0.4]),
        run("declined", [0.1, 0.5, 0.1, 0.2]),
        run("unclear", [0.3, 0.2, 0.1]),
    ]
    row = measure("test", runs, K2)
    assert (row.healthy, row.plateau, row.declined) == (2, 1, 3)
    assert (row.stopped_healthy, row.stopped_plateau, row.found, row.early) == (1, 0, 2, 1)
    assert row.delay_evals_mean == 2
    assert row.saved_mean == pytest.approx((0.25 + 0.5 + 0) / 3)
    # Regret over range: healthy 0.1 / 0.3; declined 0 and 0.2 / 0.4; unclear 0.
    assert row.regret_share_mean == pytest.approx((1 / 3 + 0 + 0.5 + 0) / 4)
    assert row.regret_share_max == pytest.approx(0.5)
    low, high = row.intervals["declined"]
    assert low < 2 / 3 < high


def test_a_library_is_measured_as_a_rule_is():
    # Without ties (Optuna takes them for no worse), its k is one evaluation longer than ours.
    walks = np.cumsum(np.random.default_rng(0).standard_normal((30, 12)), axis=1).tolist()
    runs = [run(label, walk) for walk in walks for label in ("healthy", "declined")]
    theirs = measure_peer("test", runs, parse_peer("optuna:patient:k=2"))
    ours = measure("test", runs, parse_rule("patience:k=3"))
    assert 0 < ours.found < ours.declined
    assert ours.regret_share_mean > 0
    assert replace(theirs, rule=ours.rule) == ours


def test_a_library_sees_finite_scores_and_may_see_none():
    holes = run("healthy", [0.1, math.nan, 0.5, 0.4, math.inf, 0.3, 0.2])
    row = measure_peer(
        "test", [holes, run("plateau", [math.nan])], parse_peer("optuna:patient:k=2")
    )
    assert (row.stopped_healthy, row.stopped_plateau) == (1, 0)


def test_nothing_stopped_and_no_runs_are_told_as_undefined():
    row = measure("test", [run("healthy", [1.0])], parse_rule("none"))
    assert math.isnan(row.regret_share_mean)
    assert math.isnan(row.saved_mean)
    assert math.isnan(measure("test", [], K2).intervals["healthy"][0])


def test_the_built_in_runs_are_in_two_groups():
    groups = built_in_runs()
    assert {one.label for one in groups[LANGUAGE]} >= {"healthy", "plateau", "declined"}
    assert len(groups[CLASSICAL]) > 100
    assert {one.job_type for one in groups[CLASSICAL]} == {"rl-other"}


def test_the_default_rule_stops_fewer_healthy_runs_than_the_papers():
    runs = built_in_runs()[LANGUAGE]
    default, paper = (
        measure(LANGUAGE, runs, parse_rule(s)) for s in ("default", "consecutive:k=2")
    )
    assert default.stopped_healthy + default.stopped_plateau < (
        paper.stopped_healthy + paper.stopped_plateau
    )


def test_a_collection_without_index_is_told(tmp_path):
    with pytest.raises(ReadError, match=r"index\.csv"):
        shared_runs(tmp_path)
