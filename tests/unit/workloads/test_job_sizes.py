"""Sizes, owners, labels and arrivals follow the laws that scenarios name."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalstop.workloads.arrivals import bursty_arrivals, mean_gap_s, poisson_arrivals
from evalstop.workloads.sizes import (
    apportion,
    draw_gangs,
    estimate_durations,
    nested_labels,
    shuffled_kinds,
    zipf_tenants,
)


@given(st.integers(0, 1000), st.lists(st.floats(0.01, 10), min_size=1, max_size=6))
def test_apportioned_counts_add_up_and_are_within_one_of_their_quota(total, weights):
    counts = apportion(total, weights)
    assert sum(counts) == total
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count - total * weight / sum(weights)) < 1 + 1e-6


def test_apportion_gives_the_papers_numbers():
    assert apportion(200, [0.8, 0.1, 0.1]) == [160, 20, 20]
    assert apportion(160, [0.6, 0.4]) == [96, 64]


def test_kinds_are_exact_and_in_random_order():
    kinds = shuffled_kinds(np.random.default_rng(0), 200, shares=[0.8, 0.1, 0.1])
    assert np.bincount(kinds).tolist() == [160, 20, 20]
    assert len(set(kinds[:160].tolist())) > 1


def test_labels_are_exact_in_each_kind_and_nest_as_the_share_grows():
    kinds = np.repeat([0, 1], [100, 50])
    few, many = (
        nested_labels(np.random.default_rng(4), kinds, shares=[share, 0.0]) for share in (0.2, 0.6)
    )
    assert few[:100].sum() == 20
    assert many[:100].sum() == 60
    assert not many[100:].any()
    assert (few <= many).all()


def test_gangs_follow_their_weights():
    gangs = draw_gangs(np.random.default_rng(5), 20_000, weights={8: 1.0, 1: 5.0, 2: 2.0, 4: 2.0})
    shares = np.bincount(gangs, minlength=9) / gangs.size
    assert shares[[1, 2, 4, 8]] == pytest.approx([0.5, 0.2, 0.2, 0.1], abs=0.02)


def test_estimates_are_lognormal_around_the_biased_duration():
    durations = np.full(20_000, 100.0)
    ratio = np.log(estimate_durations(np.random.default_rng(6), durations, sigma=0.4, bias=2.0))
    assert np.median(ratio) == pytest.approx(np.log(200.0), abs=0.02)
    assert ratio.std() == pytest.approx(0.4, rel=0.03)


def test_zipf_tenants_fall_as_one_over_rank():
    owners = zipf_tenants(np.random.default_rng(7), 50_000, tenants=4, exponent=1.0)
    counts = np.bincount(owners, minlength=4)
    assert counts / counts[0] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4], abs=0.02)


@pytest.mark.parametrize(
    ("draw", "variation"),
    [
        (lambda rng, n: poisson_arrivals(rng, n, gap_s=10.0), 1.0),
        (lambda rng, n: bursty_arrivals(rng, n, gap_s=10.0, variation=3.0), 3.0),
        (lambda rng, n: bursty_arrivals(rng, n, gap_s=10.0, variation=1.0), 1.0),
    ],
)
def test_gaps_have_the_mean_and_variation_asked_for(draw, variation):
    times = draw(np.random.default_rng(8), 50_000)
    gaps = np.diff(times)
    assert times[0] == 0.0
    assert (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(10.0, rel=5 * variation / np.sqrt(50_000))
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05)


def test_no_jobs_no_times():
    assert poisson_arrivals(np.random.default_rng(0), 0, gap_s=1.0).size == 0


def test_load_is_work_over_capacity():
    work = np.array([100.0, 300.0])
    assert mean_gap_s(work, load=0.5, gpus=4) == pytest.approx(100.0)
