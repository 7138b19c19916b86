"""Against a real MLflow server on SQLite, and the store without a server."""

import math
import os
import subprocess
import sys
import time
import urllib.request

import pytest
from free_ports import free_port
from mlflow import MlflowClient
from mlflow.entities import Metric

from evalstop.config.rules import parse_rule
from evalstop.feedback.mlflow import JOB_TAG, MlflowPoll
from evalstop.feedback.scores import Watch
from evalstop.traces.replay import replay
from evalstop.traces.sources import read_source

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow's own, of its parts

WATCH = Watch(job="job-7", metric="eval/acc", direction="max")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture(scope="module")
def server(store):
    port = free_port()  # the server takes half a minute to get there
    process = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store,
         "--host", "127.0.0.1", "--port", str(port), "--workers", "1"],
        env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    for _ in range(3000):  # it takes half a minute to start, more on a busy machine
        try:
            urllib.request.urlopen(f"{address}/health", timeout=10)
            break
        except OSError:
            assert process.poll() is None, "the MLflow server has ended"
            time.sleep(0.1)
    yield address
    os.killpg(process.pid, 15)
    process.wait(300)


@pytest.fixture(scope="module")
def client(server):
    return MlflowClient(tracking_uri=server)


@pytest.fixture
def run(client, request):
    experiment = client.create_experiment(request.node.name)
    return client.create_run(experiment, run_name="mine", tags={JOB_TAG: "job-7"})


def log(client, run, rows, metric="eval_acc"):
    metrics = [Metric(metric, value, 1000 + i, step) for i, (step, value) in enumerate(rows)]
    for start in range(0, len(metrics), 1000):
        client.log_batch(run.info.run_id, metrics=metrics[start : start + 1000])


def test_a_history_of_many_pages_is_read_whole(server, client, run):
    log(client, run, [(step, step / 5000) for step in range(2500)])
    (curve,) = read_source(f"mlflow:{server}?run={run.info.run_id}").curves
    assert list(curve.steps) == list(range(2500))
    assert (curve.trace_id, curve.partial) == ("mine", "")


def test_nan_repeats_and_order_are_coped_with(server, client, run):
    log(client, run, [(30, 0.3), (10, 0.1), (20, float("nan")), (30, 0.3), (40, float("inf"))])
    (curve,) = read_source(f"mlflow:{server}?run={run.info.run_id}").curves
    assert list(curve.steps) == sorted(curve.steps)
    by_step = dict(zip(curve.steps, curve.scores, strict=True))
    assert by_step[10] == 0.1
    assert math.isnan(by_step[20])
    # SQL stores keep infinity as the largest double.
    assert not math.isfinite(by_step[40]) or by_step[40] > 1e300


def test_a_resumed_run_is_judged_by_its_newest_branch(server, store, client, run):
    """Neither attempt falls twice in a row; pooled they would. The abandoned best stays best."""
    first = [(10, 0.5), (20, 0.9375), (30, 0.625), (40, 0.75)]
    second = [(20, 0.5), (30, 0.625), (40, 0.4375), (50, 0.625)]
    log(client, run, first + second)
    followed = MlflowPoll(f"mlflow:{server}?run={run.info.run_id}", WATCH)
    assert [(r.point.attempt, r.point.step) for r in followed.readings()] == [
        *((0, step) for step, _ in first),
        *((1, step) for step, _ in second),
    ]
    for uri in (server, store):
        place = f"mlflow:{uri}?run={run.info.run_id}"
        (result,) = replay(place, parse_rule("consecutive:k=2"), direction="max").results
        assert (result.fired, result.best_step, result.best_score) == (False, 20, 0.9375)


def test_step_0_for_all_is_ordered_by_time(server, client, run):
    log(client, run, [(0, 0.1), (0, 0.2), (0, 0.3)])
    (curve,) = read_source(f"mlflow:{server}?run={run.info.run_id}").curves
    assert list(curve.scores) == [0.1, 0.2, 0.3]


def test_a_run_is_followed_by_its_jobs_tag(server, client, run):
    source = MlflowPoll(f"mlflow:{server}", WATCH)
    log(client, run, [(10, 0.1), (20, 0.2)])
    assert [r.point.step for r in source.readings()] == [10, 20]
    assert source.readings() == []
    client.log_metric(run.info.run_id, "eval_acc", 0.5, step=30)
    assert source.readings()[-1].point.score == 0.5


def test_replay_of_an_experiment_and_of_the_store_itself_agree(server, store, client, run):
    log(client, run, [(10, 0.1), (20, 0.5), (30, 0.4), (40, 0.3), (50, 0.2)])
    name = client.get_experiment(run.info.experiment_id).name
    reports = [
        replay(f"mlflow:{uri}?experiment={name}", parse_rule("consecutive:k=2"), direction="max")
        for uri in (server, store)
    ]
    for report in reports:
        (result,) = report.results
        assert (result.stop_step, result.best_score) == (40, 0.5)
