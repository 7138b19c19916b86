"""Sweeps over a Ray cluster of several nodes give the rows that one process gives."""

import msgspec
import pytest
import ray
from msgspec.structs import replace

from evalstop.experiments.ray import over_ray
from evalstop.experiments.runner import cores, run_plans
from evalstop.experiments.spec import Cell, Plan
from evalstop.workloads.scenarios import PAPER

SMALL = replace(PAPER, jobs=24, gpus=16)
PLAN = Plan(
    suite="toy",
    title="Toy",
    cells=tuple(
        Cell(suite="toy", labels={"rule": rule}, scenario=SMALL, scheduler="srtf-est", rule=rule)
        for rule in ("none", "paper")
    ),
    seeds=tuple(range(6)),
)


@pytest.fixture
def address(cluster):
    yield cluster.address
    ray.shutdown()


def test_rows_are_those_of_one_process_wherever_they_ran(address, tmp_path):
    one, many = tmp_path / "one", tmp_path / "many"
    one.mkdir()
    many.mkdir()
    alone = run_plans([PLAN], folder=one, spread=cores(1))
    spread = run_plans([PLAN], folder=many, spread=over_ray(address))
    assert msgspec.json.encode(spread) == msgspec.json.encode(alone)


def test_a_broken_run_goes_on_over_ray(address, tmp_path):
    half = replace(PLAN, seeds=(0, 1, 2))
    run_plans([half], folder=tmp_path, spread=cores(1))
    told = []
    run_plans(
        [PLAN],
        folder=tmp_path,
        spread=over_ray(address),
        progress=lambda done, of: told.append((done, of)),
    )
    assert told[0] == (6, 12)
    assert told[-1] == (12, 12)
