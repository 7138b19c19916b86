"""Ray's MedianStoppingRule beside our own reading of it, decision by decision."""

from __future__ import annotations

import numpy as np
import pytest

from evalstop.experiments.detection.rivals import RayMedian
from evalstop.experiments.peers.field import Field
from evalstop.experiments.peers.registry import installed, parse_peer


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("grace", "fewest"), [(4, 3), (1, 1), (2, 6)])
def test_our_median_rule_decides_as_ray_does(seed, grace, fewest):
    generator = np.random.default_rng(seed)
    runs, evals = (47, 12) if seed % 2 else (16, 30)
    scores = np.cumsum(0.3 + generator.standard_normal((runs, evals)), axis=1)
    if seed == 6:
        scores = np.round(scores)  # ties
    field = Field(scores=scores, declines=np.arange(runs) < runs // 2, sigma=1.0, seed=seed)
    theirs = parse_peer(f"ray:median:grace={grace},fewest={fewest}").peer.stops(field)
    assert (theirs >= 0).any()
    assert theirs.tolist() == RayMedian(grace=grace, fewest=fewest).stops(field).tolist()


def test_ray_is_listed():
    assert "ray:median" in installed()
