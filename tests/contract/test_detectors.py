"""Every rule that judges a curve, and the combinators, under the shipped contract."""

from __future__ import annotations

import pytest

from evalstop.config.rules import RULES
from evalstop.detectors.combine import After, AllOf, AnyOf, Confirm
from evalstop.detectors.consecutive import ConsecutiveDecline
from evalstop.detectors.scan import Scan
from evalstop.testing import DetectorContract

MADE = {
    **{name: entry.make for name, entry in RULES.items() if hasattr(entry.make, "step")},
    "any-of": lambda: AnyOf((Scan(), ConsecutiveDecline(k=3))),
    "all-of": lambda: AllOf((Scan(), ConsecutiveDecline(k=3))),
    "after": lambda: After(rule=Scan(), evals=5),
    "confirm": lambda: Confirm(rule=Scan()),
}


@pytest.mark.parametrize("name", MADE)
class TestEveryDetector(DetectorContract):
    @pytest.fixture(autouse=True)
    def _named(self, name):
        self.name = name
        self.stops_plateaus = name == "patience"
        # paired judges the scores of single items, which the contract's curves do not carry
        self.stops_nothing = name in {"none", "paired"}

    def detector(self):
        return MADE[self.name]()


def test_every_rule_that_judges_a_curve_is_held_to_the_contract():
    assert {"default", "scan", "consecutive", "drop", "cusum", "none"} <= set(MADE)
