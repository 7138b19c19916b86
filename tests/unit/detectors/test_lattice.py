"""What scores betray about the number of items, and what they do not."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalstop.detectors.lattice import START, items_of, may_be_share, refined


def items(scores):
    lattice = START
    for score in scores:
        lattice = refined(lattice, score)
    return items_of(lattice, scores)


@pytest.mark.parametrize("size", [40, 198, 500, 541, 1319, 3531])
def test_shares_as_computed_betray_a_divisor_of_their_items(size):
    generator = np.random.default_rng(size)
    scores = [int(right) / size for right in generator.binomial(size, 0.6, 8)]
    found = items(scores)
    assert found > 1
    assert size % found == 0


@given(st.integers(2, 5000), st.lists(st.integers(0, 5000), min_size=1, max_size=12))
def test_never_more_items_than_there_were(size, rights):
    scores = [min(right, size) / size for right in rights]
    assert items(scores) <= size


@pytest.mark.parametrize("digits", [2, 3, 4])
def test_rounded_shares_betray_nothing(digits):
    # 128 items printed with a few digits: a grid of 10^-digits, which says nothing of 128.
    generator = np.random.default_rng(digits)
    wrong = 0
    for _ in range(200):
        scores = [round(int(right) / 128, digits) for right in generator.binomial(128, 0.5, 10)]
        wrong += items(scores) > 128
    assert wrong <= 4


@pytest.mark.parametrize(
    "scores",
    [
        np.random.default_rng(1).random(10).tolist(),
        [61.2, 58.4, 55.0],
        [1e-7, 2e-7, 3e-7],
        [1.0, 1.0, 0.0, 1.0],
        [0.5],
    ],
    ids=["continuous", "percent", "tiny", "whole", "one"],
)
def test_says_nothing_where_nothing_can_be_known(scores):
    assert items(scores) == 0


def test_a_turned_direction_changes_nothing():
    scores = [right / 541 for right in (300, 310, 290, 250)]
    assert items([-score for score in scores]) == items(scores) == 541


@pytest.mark.parametrize("size", [10_001, 12_345, 16_384, 20_000])
def test_one_of_more_than_ten_thousand_items_is_a_share_too(size):
    assert refined(START, 1 / size).denominator == size  # Python writes it with an exponent


@given(st.integers(1, 20_000), st.data())
def test_the_quick_look_is_never_too_strict(size, data):
    score = data.draw(st.integers(0, size)) / size
    assert (
        refined(START, score).denominator == Fraction(score).limit_denominator(20_000).denominator
    )
    assert may_be_share(np.array([score, -score, math.pi / 4])).tolist() == [True, True, False]
