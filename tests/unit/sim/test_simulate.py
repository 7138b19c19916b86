import json
import math

import pytest

from evalstop.config.rules import parse_rule
from evalstop.core.errors import InputError
from evalstop.policies.evalstop import EvalStop
from evalstop.schedulers.fifo import Fifo
from evalstop.schedulers.shortest import SrtfEst
from evalstop.sim.costs import ExecutionCosts
from evalstop.sim.simulate import costs_of, simulate
from evalstop.workloads.scenario import Costs, Scenario
from evalstop.workloads.scenarios import PAPER

SMALL = Scenario(
    jobs=30, gpus=16, costs=Costs(start_s=10.0, restart_s=10.0, preempt_s=5.0, release_s=2.0)
)


def policy(rule="paper", base=SrtfEst):
    return lambda: EvalStop(base=base(), rules=parse_rule(rule))


def test_the_same_seeds_give_the_same_tree():
    trees = [simulate(SMALL, policy=policy(), seeds=[0, 1]).to_json() for _ in range(2)]
    assert json.dumps(trees[0]) == json.dumps(trees[1])


def test_the_tree_has_no_nan_and_lists_what_is_undefined():
    tree = simulate(SMALL, policy=policy("none"), seeds=[0]).to_json()
    json.dumps(tree, allow_nan=False)
    assert tree["detection"]["precision"] is None
    assert "detection.precision" in tree["undefined"]


def test_a_scenarios_costs_are_paid_at_every_start_preemption_and_release():
    assert costs_of(SMALL) == ExecutionCosts(
        start_s=10.0, restart_s=10.0, preempt_s=5.0, release_s=2.0
    )
    free = simulate(SMALL, policy=policy("none", Fifo), costs=ExecutionCosts())
    paid = simulate(SMALL, policy=policy("none", Fifo))
    extra = paid.runs[0].gpu_seconds - free.runs[0].gpu_seconds
    assert extra.tolist() == pytest.approx((12.0 * free.runs[0].gpus).tolist())


def test_evalstop_reclaims_wasted_hours_on_the_papers_cluster():
    bare = simulate(PAPER, policy=policy("none"), seeds=range(3)).summary
    guarded = simulate(PAPER, policy=policy("paper"), seeds=range(3)).summary
    assert guarded.system["gpu_hours_wasted"] < bare.system["gpu_hours_wasted"]
    assert guarded.system["jct_mean_s"] < bare.system["jct_mean_s"]
    assert math.isnan(bare.detection["precision"])
    assert guarded.detection["precision"] > 0.9


def test_no_seeds_are_refused():
    with pytest.raises(InputError, match="at least one seed"):
        simulate(SMALL, policy=policy(), seeds=[])


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_impossible_costs_are_refused(value):
    with pytest.raises(InputError, match="stop_s must be a finite number"):
        ExecutionCosts(stop_s=value)


@pytest.mark.parametrize("seeds", [3, "3", [-1], [1.5], ["a"], [True], [None]], ids=repr)
def test_seeds_are_a_list_of_whole_numbers(seeds):
    with pytest.raises(InputError, match=r"seeds? must be a "):
        simulate(SMALL, policy=Fifo, seeds=seeds)


def test_a_scenario_is_no_name_and_a_policy_is_made_afresh():
    with pytest.raises(InputError, match=r"expected a scenario, such as scenarios\.PAPER"):
        simulate("paper", policy=Fifo)
    with pytest.raises(InputError, match="policy must make a fresh policy for each seed"):
        simulate(SMALL, policy=Fifo())


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, "3", None, True])
def test_costs_are_seconds(value):
    with pytest.raises(InputError, match="stop_s must be a finite number of seconds >= 0"):
        ExecutionCosts(stop_s=value)


def test_a_seed_counts_once():
    with pytest.raises(InputError, match="seeds name one twice"):
        simulate(SMALL, policy=Fifo, seeds=[3, 3])


def test_what_makes_no_policy_is_refused():
    with pytest.raises(InputError, match="policy must make a policy, such as Fifo"):
        simulate(SMALL, policy=lambda: None)
