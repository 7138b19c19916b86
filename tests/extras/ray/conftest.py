"""A real Ray cluster of two nodes on this machine, with GPUs that Ray only counts."""

from __future__ import annotations

import os
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
# A machine that others use, too: a slow start is no failure, and what they hold is no reason to
# kill jobs here.
os.environ |= {
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "600",
    "RAY_NUM_REDIS_GET_RETRIES": "300",
    "RAY_gcs_server_port_wait_time_s": "300",
    "RAY_memory_monitor_refresh_ms": "0",
}

import pytest
from free_ports import free_port
from ray._private import services
from ray.cluster_utils import Cluster

from evalstop.backends.ray import RayBackend
from evalstop.core.errors import BackendError
from evalstop.ports import Launch, Order, RunState

GPUS_A_NODE = 2


def until_jobs_are_taken(address, within_s=900.0):
    """Wait for the agent that takes jobs in: it comes up some seconds after its node."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            backend = RayBackend(address)
            backend.start(Order(key="0.0", job="first", launch=Launch(command=("true",))))
            break
        except BackendError:
            assert time.monotonic() < deadline
            time.sleep(1.0)
    while backend.listing().jobs[0].state is not RunState.RELEASED:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    backend.forget("first")


def patient(ask, within_s=600.0):
    """Ask again for that long: Ray gives a node half a minute to sign on, and not a second more."""

    def asked(*arguments):
        deadline = time.monotonic() + within_s
        while True:
            try:
                return ask(*arguments)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    return asked


services.get_node = patient(services.get_node)


@pytest.fixture(scope="session")
def cluster():
    port = free_port()
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
    made.wait_for_nodes(timeout=300)
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
    deadline = time.monotonic() + 300.0
    while any(found.state is not RunState.RELEASED for found in made.listing().jobs):
        assert time.monotonic() < deadline
        time.sleep(0.2)
