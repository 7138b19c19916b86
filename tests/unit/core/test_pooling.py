"""Replicates of one step are pooled, whatever numbers they carry."""

from __future__ import annotations

import math

import pytest

from evalstop.core.points import EvalPoint
from evalstop.core.series import pool


def replicates(*errors, items=None):
    return pool(
        [
            EvalPoint(step=1, score=0.5, stderr=error, n_items=items, eval_id=str(number))
            for number, error in enumerate(errors)
        ]
    )


@pytest.mark.parametrize("items", [None, 100, 2**53])
@pytest.mark.parametrize("error", [0.0, 1e-300, 0.02, 1e100, 1e160, 1e300])
def test_two_equal_errors_pool_to_one_over_root_two(error, items):
    """Found by fuzzing: the square of 1e160 is no number, and explain failed on it."""
    (point,) = replicates(error, error, items=items)
    assert point.stderr == pytest.approx(error / math.sqrt(2))


def test_one_unknown_error_makes_the_pooled_one_unknown():
    (point,) = replicates(0.01, None)
    assert point.stderr is None
