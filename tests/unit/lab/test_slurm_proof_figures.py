"""The arithmetic of benchmarks/slurm_proof, on two queues small enough to check by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks/slurm_proof"))

import figures

ROOT = Path(__file__).parents[3]
STEPS = [0, 5, 10, 15, 20]


def job(arm, true, *, gpus=1, submitted=0.0, started=0.0, seconds=10.0, **more):
    """A job whose evaluations are ``seconds`` apart, ended right after the last one."""
    times = [started + seconds * (1 + place) for place in range(len(true))]
    return {
        "arm": arm,
        "tenant": "chat",
        "gpus": gpus,
        "submitted": submitted,
        "started": started,
        "ended": times[-1] + 1.0,
        "steps": STEPS[: len(true)],
        "times": times,
        "true": true,
        "watched": [None, *true[1:]],
        "weights": [f"{arm}{step}" for step in STEPS[: len(true)]],
        "unit": 0.01,
    } | more


FALL = [0.5, 0.6, 0.62, 0.4, 0.2]
RISE = [0.5, 0.6, 0.65, 0.66, 0.66]


@pytest.fixture
def without():
    jobs = [
        job("grpo-512-noise10", FALL, gpus=2),
        job("rloo-gold", RISE, submitted=5.0, started=51.0),
    ]
    return {"seed": 11, "guarded": False, "step_s": 2.0, "server_cpu_s": None, "jobs": jobs}


@pytest.fixture
def guarded():
    stop = {"best_step": 5, "reason": "alarm", "freed_after_s": 0.5}
    jobs = [
        job("grpo-512-noise10", FALL[:3], gpus=2, stop=stop, evals_seen=2, kept_step=5),
        job("rloo-gold", RISE, submitted=5.0, started=31.0, evals_seen=4, kept_step=20),
    ]
    return {"seed": 11, "guarded": True, "step_s": 2.0, "server_cpu_s": 3.0, "jobs": jobs}


def test_a_queue_is_summed_up(without, guarded):
    with_, full = figures.summary(guarded, without), figures.summary(without, without)
    assert figures.truths(without)["grpo-512-noise10"].label == "declined"
    assert figures.truths(without)["rloo-gold"].label == "healthy"
    assert (full["jct"], with_["jct"]) == ((51 + 97) / 2, (31 + 77) / 2)
    assert (full["jct_healthy"], with_["jct_healthy"]) == (97, 77)
    assert (full["jct chat"], with_["jct chat"]) == (full["jct"], with_["jct"])
    assert (full["wait"], with_["wait"]) == (23, 13)
    assert (full["makespan"], with_["makespan"]) == (102, 82)
    assert (full["gpu_s"], with_["gpu_s"]) == (2 * 51 + 51, 2 * 31 + 51)


def test_what_is_held_after_the_true_peak_is_wasted(without, guarded):
    peak = figures.truths(without)["grpo-512-noise10"].peak_index
    at = 10.0 * (1 + peak)
    assert figures.summary(without, without)["wasted"] == 2 * (51 - at)
    assert figures.summary(guarded, without)["wasted"] == 2 * (31 - at)
    before_the_peak = job("grpo-512-noise10", FALL[:1], gpus=2)
    assert figures.wasted(before_the_peak, figures.truths(without)["grpo-512-noise10"]) == 0


def test_what_is_left_is_the_last_checkpoint_or_the_one_that_was_kept(without, guarded):
    assert figures.summary(without, without)["delivered_declined"] == 0.2
    assert figures.summary(guarded, without)["delivered_declined"] == 0.6
    assert figures.summary(without, without)["own_best_declined"] == 0.62


def test_the_next_start_is_that_of_a_job_that_waited():
    stopped = job("grpo-512-noise10", FALL[:2], started=0.0)
    assert stopped["ended"] == 21.0
    later = [
        job("rloo-gold", RISE, submitted=30.0, started=31.0),  # came after
        job("grpo-8000", RISE, submitted=5.0, started=24.0),
        job("grpo-4096", RISE, submitted=5.0, started=10.0),  # ran already
    ]
    assert figures.next_start(stopped, [stopped, *later]) == [3.0]
    assert figures.next_start(stopped, [stopped, later[0]]) == []


def test_only_seeds_with_both_queues_count(without, guarded):
    other = guarded | {"seed": 12}
    assert figures.pairs_of([without, other, guarded]) == [(guarded, without)]


def test_stops_are_counted_by_what_the_run_was(without, guarded):
    text = figures.stops([(guarded, without)])
    assert "| over-optimised | declined | 1 | 1 |" in text
    assert "| healthy | healthy | 1 | 0 |" in text


def test_the_page_holds_what_the_published_results_say():
    page = (ROOT / "docs/real-runs.md").read_text()
    for name, table in figures.tables(json.loads(figures.RESULTS.read_text())).items():
        assert f"<!-- {name} -->\n\n{table}" in page, "python benchmarks/slurm_proof/run.py --page"
