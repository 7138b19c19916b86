"""The simulator refuses clusters that cannot be, and what is no policy, before it begins."""

import math

import numpy as np
import pytest

from evalstop.core.errors import InputError
from evalstop.core.job import JobSpec
from evalstop.schedulers.fifo import Fifo
from evalstop.sim.simulator import Simulator
from evalstop.workloads.job import SimJob, Workload

ONE = Workload.from_jobs([SimJob(spec=JobSpec(id="a"), submit_s=0.0, duration_s=1.0)])
NONE = Workload.from_jobs([])


@pytest.mark.parametrize("workload", [ONE, NONE], ids=["one job", "no job"])
@pytest.mark.parametrize("gpus", [-3, 2.5, "4", None, {"a": 4, "b": -2}, {"a": 1.5}], ids=repr)
def test_gpus_are_counted(workload, gpus):
    with pytest.raises(InputError, match="gpus must be a whole number >= 0"):
        Simulator(workload, gpus=gpus, policy=Fifo())


@pytest.mark.parametrize("speeds", [{"b": 1.0}, {"a": 0.0}, {"a": -1.0}, {"a": math.nan}], ids=repr)
def test_speeds_are_of_the_node_types_there_are(speeds):
    with pytest.raises(InputError, match="speeds must be numbers > 0 of the node types 'a'"):
        Simulator(ONE, gpus={"a": 4}, speeds=speeds, policy=Fifo())


@pytest.mark.parametrize("policy", [None, 5, Fifo, "fifo"], ids=repr)
def test_a_policy_decides(policy):
    with pytest.raises(InputError, match="policy must be one that decides"):
        Simulator(ONE, gpus=4, policy=policy)


@pytest.mark.parametrize("gpus", [0, {}])
def test_a_job_that_could_never_start_is_refused(gpus):
    with pytest.raises(InputError, match="asks for 1 GPUs, but the cluster has 0"):
        Simulator(ONE, gpus=gpus, policy=Fifo())
    assert Simulator(NONE, gpus=gpus, policy=Fifo()).run().ends == 0


@pytest.mark.parametrize("gpus", [4, np.int64(4), np.int32(4)], ids=["int", "int64", "int32"])
def test_any_whole_number_of_gpus_is_one(gpus):
    simulator = Simulator(ONE, gpus=gpus, policy=Fifo())
    assert simulator.run().ends == 1
    assert type(simulator.kernel.state.view.free_gpus) is int
