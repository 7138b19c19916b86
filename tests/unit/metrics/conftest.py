"""A run in columns: five jobs of two tenants, told as a story a reader can add up by hand."""

import numpy as np
import pytest

from evalstop.core.job import Outcome
from evalstop.metrics.columns import OUTCOME_CODES, UNFINISHED, JobColumns

NAN = float("nan")


@pytest.fixture
def make_columns():
    def make(**changes):
        jobs = len(next(iter(changes.values()))) if changes else 0
        defaults = {
            "submit_s": np.zeros(jobs),
            "first_start_s": np.zeros(jobs),
            "end_s": np.full(jobs, 100.0),
            "outcome": np.full(jobs, OUTCOME_CODES[Outcome.COMPLETED]),
            "gpus": np.ones(jobs, dtype=np.int64),
            "gpu_seconds": np.full(jobs, 100.0),
            "service_s": np.full(jobs, 100.0),
            "duration_s": np.full(jobs, 100.0),
            "peak_s": np.full(jobs, 100.0),
            "hacking": np.zeros(jobs, dtype=bool),
            "stop_eval": np.full(jobs, -1),
            "peak_evals": np.full(jobs, 10),
            "delivered_score": np.full(jobs, NAN),
            "best_score": np.full(jobs, NAN),
            "tenant": np.zeros(jobs, dtype=np.int64),
            "job_type": np.zeros(jobs, dtype=np.int64),
            "tenants": ("a", "b"),
            "job_types": ("rlhf", "lora"),
        }
        given = {
            name: value if isinstance(value, tuple) else np.asarray(value)
            for name, value in changes.items()
        }
        return JobColumns(**(defaults | given))

    return make


@pytest.fixture
def story(make_columns):
    """Five jobs.

    0: hacking, stopped at 60 of 100 s, peak at 40, by its 6th eval (4 made up to the peak).
    1: hacking, stopped at 30 of 100 s, before its peak at 40: early.
    2: healthy LoRA, stopped at 50 of 200 s: wrong.
    3: hacking, ran to its end, 100 s, peak at 40: missed.
    4: healthy, never started.
    """
    stopped, done = (
        OUTCOME_CODES[Outcome.STOPPED_BY_POLICY],
        OUTCOME_CODES[Outcome.COMPLETED],
    )
    return make_columns(
        submit_s=[0.0, 10.0, 20.0, 30.0, 40.0],
        first_start_s=[0.0, 20.0, 50.0, 100.0, NAN],
        end_s=[60.0, 50.0, 100.0, 200.0, NAN],
        outcome=[stopped, stopped, stopped, done, UNFINISHED],
        gpus=[2, 1, 4, 1, 8],
        gpu_seconds=[120.0, 30.0, 200.0, 100.0, 0.0],
        service_s=[60.0, 30.0, 50.0, 100.0, 0.0],
        duration_s=[100.0, 100.0, 200.0, 100.0, 50.0],
        peak_s=[40.0, 40.0, 200.0, 40.0, 50.0],
        hacking=[True, True, False, True, False],
        stop_eval=[5, 2, 4, -1, -1],
        peak_evals=[4, 4, 20, 4, 5],
        delivered_score=[0.7, 0.5, 0.4, 0.3, NAN],
        best_score=[0.8, 0.8, 0.9, 0.8, 0.6],
        tenant=[0, 0, 1, 1, 1],
        job_type=[0, 0, 1, 0, 0],
    )
