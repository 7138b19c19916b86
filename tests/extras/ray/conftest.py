"""A real Ray cluster of two nodes on this machine, with GPUs that Ray only counts."""

from __future__ import annotations

import os
import socket
import sys
import time
import uuid
from pathlib import Path

# As on a node: the jobs' `python` is the cluster's own.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parents[3] / "src"), os.environ.get("PYTHONPATH", "")]
)
os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_JOB_STOP_WAIT_TIME_S"] = "1"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"

import pytest
from ray.cluster_utils import Cluster

from evalstop.backends.ray import RayBackend
from evalstop.core.errors import BackendError
from evalstop.ports import Launch, Order, RunState

GPUS_A_NODE = 2


def unused_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def until_jobs_are_taken(address, within_s=180.0):
    """Wait for the agent that takes jobs in: it comes up some seconds after its node."""
    backend, deadline = RayBackend(address), time.monotonic() + within_s
    while True:
        try:
            backend.start(Order(key="0.0", job="first", launch=Launch(command=("true",))))
            break
        except BackendError:
            assert time.monotonic() < deadline
            time.sleep(1.0)
    while backend.listing().jobs[0].state is not RunState.RELEASED:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    backend.forget("first")


@pytest.fixture(scope="session")
def cluster():
    port = unused_port()
    made = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 4,
            "num_gpus": GPUS_A_NODE,
            "include_dashboard": True,
            "dashboard_host": "127.0.0.1",
            "dashboard_port": port,
            "object_store_memory": 100 * 2**20,
        },
    )
    made.add_node(num_cpus=2, num_gpus=GPUS_A_NODE, object_store_memory=100 * 2**20)
    made.wait_for_nodes()
    made.dashboard = f"http://127.0.0.1:{port}"
    until_jobs_are_taken(made.dashboard)
    yield made
    made.shutdown()


@pytest.fixture
def backend(cluster):
    made = RayBackend(cluster.dashboard, namespace=f"t{uuid.uuid4().hex}")
    yield made
    for found in made.listing().jobs:
        made.stop(Order(key="9.0", job=found.job, grace_s=0.0))
    deadline = time.monotonic() + 60.0
    while any(found.state is not RunState.RELEASED for found in made.listing().jobs):
        assert time.monotonic() < deadline
        time.sleep(0.2)
