"""Joining what happened with what was hidden."""

import math

import numpy as np
import pytest

from evalstop.core.errors import InputError
from evalstop.core.job import JobSpec, Outcome
from evalstop.metrics.columns import OUTCOME_CODES, UNFINISHED, job_columns
from evalstop.workloads.job import SimJob, Workload

NAN = float("nan")


def job(name, *, truths, peak_s, duration_s=100.0, hacking=True):
    count = len(truths)
    return SimJob(
        spec=JobSpec(id=name, tenant=name, job_type="rlhf", gpus=2),
        submit_s=0.0,
        duration_s=duration_s,
        eval_offsets=[duration_s * (i + 1) / count for i in range(count)],
        eval_steps=list(range(count)),
        scores=truths,
        true_scores=truths,
        hacking=hacking,
        peak_s=peak_s,
    )


@pytest.fixture
def joined():
    workload = Workload.from_jobs(
        [
            job("stopped", truths=[0.1, 0.5, 0.9, 0.4], peak_s=75.0),
            job("cancelled", truths=[0.1, 0.5, 0.9, 0.4], peak_s=75.0),
            job("done", truths=[0.1, 0.5, 0.9, 0.4], peak_s=75.0),
            job("unwatched", truths=[], peak_s=math.inf, hacking=False),
            job("waiting", truths=[0.2, NAN], peak_s=math.inf, hacking=False),
        ]
    )
    codes = [Outcome.STOPPED_BY_POLICY, Outcome.CANCELLED, Outcome.COMPLETED, Outcome.COMPLETED]
    return job_columns(
        workload,
        first_start_s=np.array([0.0, 0.0, 0.0, 0.0, NAN]),
        end_s=np.array([80.0, 60.0, 100.0, 100.0, NAN]),
        outcome=np.array([*(OUTCOME_CODES[code] for code in codes), UNFINISHED]),
        gpu_seconds=np.array([160.0, 120.0, 200.0, 200.0, 0.0]),
        service_s=np.array([80.0, 60.0, 100.0 - 1e-12, 100.0, 0.0]),
        stop_eval=np.array([2, -1, -1, -1, -1]),
        kept_eval=np.array([1, -1, -1, -1, -1]),
    )


def test_a_stopped_job_delivers_what_was_kept_and_others_their_last_checkpoint(joined):
    assert joined.delivered_score == pytest.approx([0.5, 0.5, 0.4, NAN, NAN], nan_ok=True)


def test_best_score_is_over_the_whole_run_and_skips_nan(joined):
    assert joined.best_score == pytest.approx([0.9, 0.9, 0.9, NAN, 0.2], nan_ok=True)


def test_peak_evals_counts_those_made_up_to_the_peak(joined):
    assert joined.peak_evals.tolist() == [3, 3, 3, 0, 2]


def test_flags_and_times(joined):
    assert joined.stopped.tolist() == [True, False, False, False, False]
    assert joined.ended(Outcome.COMPLETED).tolist() == [False, False, True, True, False]
    assert joined.response_s == pytest.approx([80.0, 60.0, 100.0, 100.0, NAN], nan_ok=True)
    assert len(joined) == 5


def test_a_stop_that_names_no_checkpoint_delivers_the_last_one_made():
    workload = Workload.from_jobs([job("a", truths=[0.1, 0.5, 0.9, 0.4], peak_s=75.0)])
    one = np.array([80.0])
    columns = job_columns(
        workload,
        first_start_s=np.zeros(1),
        end_s=one,
        outcome=np.array([OUTCOME_CODES[Outcome.STOPPED_BY_POLICY]]),
        gpu_seconds=one,
        service_s=one,
        stop_eval=np.array([-1]),
        kept_eval=np.array([-1]),
    )
    assert columns.delivered_score.tolist() == [0.9]


def test_a_workload_without_evals_has_no_scores():
    workload = Workload.from_jobs([job("a", truths=[], peak_s=math.inf)])
    zero = np.zeros(1)
    columns = job_columns(
        workload,
        first_start_s=zero,
        end_s=zero,
        outcome=np.array([0]),
        gpu_seconds=zero,
        service_s=zero,
        stop_eval=np.array([-1]),
        kept_eval=np.array([-1]),
    )
    assert np.isnan(columns.best_score).all()


def test_columns_of_another_length_are_refused(make_columns):
    with pytest.raises(InputError, match="end_s must have 2 entries, got 1"):
        make_columns(submit_s=[0.0, 1.0], end_s=[1.0])
