"""Every system figure of the story, added up by hand; and what nothing at all gives."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalstop.metrics import system

HOUR = 3600.0


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        (system.jct_mean_s, (60 + 40 + 80 + 170) / 4),
        (system.jct_completed_mean_s, 170.0),
        (system.makespan_s, 200.0),
        (system.queue_delay_mean_s, (0 + 10 + 30 + 70) / 4),
        (system.gpu_hours_used, 450 / HOUR),
        (system.gpu_hours_wasted, (120 * 20 / 60 + 100 * 60 / 100) / HOUR),
        (system.gpu_hours_hacking, (120 + 30 + 100) / HOUR),
        (system.gpu_hours_lost_healthy, 200 / HOUR),
        (system.gpu_hours_reclaimed, (2 * 40 + 1 * 70 + 4 * 150) / HOUR),
        (system.delivered_score_mean, (0.7 + 0.5 + 0.4 + 0.3) / 4),
        (system.regret_mean, (0.1 + 0.3 + 0.5 + 0.5) / 4),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_figures_of_the_story(story, figure, expected):
    assert figure(story) == pytest.approx(expected)


def test_percentiles_are_linear_between_ranks(story):
    assert system.jct_percentile_s(story, percent=50) == pytest.approx(70.0)
    assert system.jct_percentile_s(story, percent=100) == pytest.approx(170.0)


def test_utilisation_is_gpu_time_held_over_gpu_time_there_was(story):
    assert system.utilisation(story, gpus=8) == pytest.approx(450 / (8 * 200))


def test_slowdowns_are_means_by_tenant_over_jobs_that_ended(story):
    assert system.mean_slowdowns(story) == pytest.approx([(0.6 + 0.4) / 2, (0.4 + 1.7) / 2])
    x, y = 0.5, 1.05
    assert system.jain_tenants(story) == pytest.approx((x + y) ** 2 / (2 * (x * x + y * y)))


def test_gpu_share_is_what_was_held_of_what_was_asked_for_while_the_job_was_there(story):
    first = (120 + 30) / (2 * 60 + 1 * 40)
    second = (200 + 100) / (4 * 80 + 1 * 170)
    assert system.gpu_shares(story) == pytest.approx([first, second])
    assert system.jain_gpu_shares(story) == pytest.approx(system.jain_index([first, second]))


def test_the_worst_tenant_has_the_highest_mean_slowdown(story):
    assert system.slowdown_worst_tenant(story) == pytest.approx(1.05)


def test_a_tenant_whose_jobs_never_ended_has_no_slowdown(make_columns):
    columns = make_columns(end_s=[100.0, math.nan], tenant=[1, 0])
    assert system.mean_slowdowns(columns) == pytest.approx([1.0])


@pytest.mark.parametrize(
    ("figure", "empty"),
    [
        (system.jct_mean_s, math.nan),
        (system.jct_completed_mean_s, math.nan),
        (system.makespan_s, math.nan),
        (system.queue_delay_mean_s, math.nan),
        (system.gpu_hours_used, 0.0),
        (system.gpu_hours_wasted, 0.0),
        (system.gpu_hours_hacking, 0.0),
        (system.gpu_hours_lost_healthy, 0.0),
        (system.gpu_hours_reclaimed, 0.0),
        (system.jain_tenants, math.nan),
        (system.jain_gpu_shares, math.nan),
        (system.slowdown_worst_tenant, math.nan),
        (system.delivered_score_mean, math.nan),
        (system.regret_mean, math.nan),
        (lambda columns: system.jct_percentile_s(columns, percent=50), math.nan),
        (lambda columns: system.utilisation(columns, gpus=8), math.nan),
    ],
)
def test_no_jobs_give_what_the_docstring_says(make_columns, figure, empty):
    assert figure(make_columns()) == pytest.approx(empty, nan_ok=True)


def test_overheads_are_wasted_in_proportion(make_columns):
    columns = make_columns(
        gpu_seconds=[220.0], service_s=[100.0], peak_s=[50.0], hacking=[True], gpus=[2]
    )
    assert system.gpu_hours_wasted(columns) == pytest.approx(110 / HOUR)


@pytest.mark.parametrize("peak", [100.0, math.inf])
def test_a_peak_at_the_end_wastes_nothing(make_columns, peak):
    assert system.gpu_hours_wasted(make_columns(peak_s=[peak], hacking=[True])) == 0.0


@pytest.mark.parametrize(
    ("values", "index"),
    [([3.0, 3.0, 3.0], 1.0), ([5.0, 0.0, 0.0, 0.0], 0.25), ([0.0, 0.0], 1.0), ([1.0, 3.0], 0.8)],
)
def test_jain_index_known_answers(values, index):
    assert system.jain_index(values) == pytest.approx(index)


def test_jain_index_of_nothing_is_nan():
    assert math.isnan(system.jain_index([]))


@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=30))
def test_jain_index_lies_between_one_nth_and_one(values):
    index = system.jain_index(values)
    assert 1 / len(values) - 1e-12 <= index <= 1 + 1e-12


@given(st.lists(st.floats(0.1, 1e3), min_size=1, max_size=30), st.floats(0.01, 100))
def test_jain_index_does_not_depend_on_scale(values, factor):
    scaled = system.jain_index(np.array(values) * factor)
    assert scaled == pytest.approx(system.jain_index(values))


def test_wasted_never_exceeds_what_hacking_jobs_used(story):
    assert system.gpu_hours_wasted(story) <= system.gpu_hours_hacking(story)
