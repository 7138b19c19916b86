"""A short soak: the long one is `python benchmarks/soak_live.py`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from soak_live import Soak


def test_nothing_goes_wrong_while_the_controller_is_killed_again_and_again(tmp_path):
    soak = Soak(tmp_path / "soak", jobs=6, seed=3)
    try:
        soak.run(4.0, at_least=2)
        faults = soak.faults()
    finally:
        soak.down()
    assert soak.kills >= 2
    assert not faults
