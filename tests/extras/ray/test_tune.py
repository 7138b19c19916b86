"""Ray Tune with the rule around its own schedulers, and as a stopper: real trials."""

from __future__ import annotations

import pickle

import pytest
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler

from evalstop.client.ray import EvalStopScheduler, EvalStopStopper
from evalstop.core.errors import InputError, SpecError

HEALTHY = [0.50, 0.54, 0.57, 0.59, 0.60, 0.61, 0.62, 0.62]
HACKED = [0.50, 0.58, 0.63, 0.55, 0.45, 0.35, 0.25, 0.15]


def training():
    def train(config):  # a closure travels to the workers by value
        for score in config["scores"]:
            tune.report({"win_rate": score, "error": 0.01})

    return train


@pytest.fixture(scope="module")
def _connected(cluster):
    ray.init(address=cluster.address, log_to_driver=False, ignore_reinit_error=True)
    yield
    ray.shutdown()


def fit(folder, *, curves, scheduler=None, stop=None, mode="max"):
    tuner = tune.Tuner(
        training(),
        param_space={"scores": tune.grid_search(curves)},
        tune_config=tune.TuneConfig(scheduler=scheduler, metric="win_rate", mode=mode),
        run_config=tune.RunConfig(storage_path=str(folder), name="x", verbose=0, stop=stop),
    )
    grid = tuner.fit()
    assert not grid.errors
    return [len(result.metrics_dataframe) for result in grid]


BASES = {
    "asha": (lambda: ASHAScheduler(max_t=8, grace_period=8), "max"),
    # Not HyperBand: after a stop it can leave the others paused for ever (docs/limits.md).
    "asha, lower is better": (lambda: ASHAScheduler(max_t=8, grace_period=8), "min"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_connected")
@pytest.mark.parametrize(("base", "mode"), BASES.values(), ids=BASES)
def test_the_falling_trial_is_stopped_whichever_way_is_better(tmp_path, base, mode):
    curves = [HEALTHY, HACKED]
    if mode == "min":
        curves = [[1 - score for score in curve] for curve in curves]
    scheduler = EvalStopScheduler(base(), stderr="error")
    healthy, hacked = fit(tmp_path, curves=curves, scheduler=scheduler, mode=mode)
    assert healthy == len(HEALTHY)
    assert 3 < hacked < len(HACKED)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_connected")
def test_the_stopper_stops_the_same_trial(tmp_path):
    stopper = EvalStopStopper("win_rate", direction="max", stderr="error")
    healthy, hacked = fit(tmp_path, curves=[HEALTHY, HACKED], stop=stopper)
    assert healthy == len(HEALTHY)
    assert hacked < len(HACKED)


class Trial:
    trial_id = "t"


def step_through(scheduler, scores):
    decisions = []
    for place, score in enumerate(scores, start=1):
        result = {"win_rate": score, "error": 0.01, "training_iteration": place}
        decisions.append(scheduler.on_trial_result(None, Trial(), result))
    return decisions


def test_the_curve_survives_tunes_own_saving():
    scheduler = EvalStopScheduler(metric="win_rate", direction="max", stderr="error")
    assert set(step_through(scheduler, HACKED[:3])) == {"CONTINUE"}
    back = pickle.loads(pickle.dumps(scheduler))
    fallen = [{"win_rate": 0.2, "error": 0.01, "training_iteration": place} for place in (4, 5)]
    answers = [back.on_trial_result(None, Trial(), result) for result in fallen]
    assert answers == ["CONTINUE", "STOP"]  # R19: after one confirming evaluation


def test_the_error_is_found_by_its_usual_name():
    named = EvalStopScheduler(metric="win_rate", direction="max", stderr="error")
    found = EvalStopScheduler(metric="win_rate", direction="max")
    step_through(named, HACKED)
    for place, score in enumerate(HACKED, start=1):
        result = {"win_rate": score, "win_rate_stderr": 0.01, "training_iteration": place}
        found.on_trial_result(None, Trial(), result)
    assert found.verdicts == named.verdicts
    assert found.verdicts["t"].alarm


def test_a_result_without_the_metric_is_no_evaluation():
    scheduler = EvalStopScheduler(metric="win_rate", direction="max")
    assert scheduler.on_trial_result(None, Trial(), {"training_iteration": 1}) == "CONTINUE"
    assert scheduler.verdicts == {}


def test_a_rule_that_cannot_judge_lets_the_trial_go_on(caplog):
    scheduler = EvalStopScheduler(
        metric="win_rate", direction="max", rule="stop-at:fraction=0.5", stderr="error"
    )
    assert set(step_through(scheduler, HACKED)) == {"CONTINUE"}
    assert "unwatched" in caplog.text


@pytest.mark.parametrize("known", [{}, {"metric": "win_rate"}, {"direction": "max"}])
def test_without_a_metric_and_a_direction_it_refuses(known):
    with pytest.raises(InputError, match="metric and"):
        EvalStopScheduler(**known).set_search_properties(None, None)


def test_mistakes_are_refused_before_the_experiment():
    with pytest.raises(SpecError, match="known"):
        EvalStopScheduler(rule="defualt")
    with pytest.raises(InputError, match="direction"):
        EvalStopScheduler(direction="up")
