"""Rules refuse settings that are no numbers of their kind, before the first evaluation."""

import math

import msgspec
import numpy as np
import pytest

from evalstop.config.rules import RULES
from evalstop.core.errors import SpecError
from evalstop.detectors.combine import After, AllOf, AnyOf, Confirm
from evalstop.detectors.consecutive import ConsecutiveDecline
from evalstop.detectors.scan import Scan
from evalstop.policies.baselines import StopAt

SETTINGS = [
    (entry.make, field.name, field.type)
    for name, entry in RULES.items()
    if name != "default"
    for field in msgspec.structs.fields(entry.make)
]

NO_NUMBERS = [math.nan, math.inf, -math.inf, "2", None, True, [1], 1 + 2j]


@pytest.mark.parametrize(("rule", "name", "kind"), SETTINGS)
@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
def test_a_setting_that_is_no_number_is_refused_by_name(rule, name, kind, value):
    if kind is str:
        return
    with pytest.raises(SpecError, match=rf"{name}\b"):
        rule(**{name: value})


@pytest.mark.parametrize(("rule", "name"), [(r, n) for r, n, kind in SETTINGS if kind is int])
def test_a_count_is_whole(rule, name):
    with pytest.raises(SpecError, match=f"{name} must be a whole number, but got 2.5"):
        rule(**{name: 2.5})


def test_numbers_of_numpy_are_numbers():
    assert ConsecutiveDecline(k=np.int64(2)).k == 2
    assert Scan(alpha=np.float32(0.25)).alpha == 0.25


@pytest.mark.parametrize("evals", [-1, 1.5, math.nan, "3", None, True])
def test_combined_rules_count_whole_evaluations(evals):
    with pytest.raises(SpecError, match="After: evals must be a whole number >= 0"):
        After(evals=evals, rule=Scan())
    with pytest.raises(SpecError, match="Confirm: evals must be a whole number >= 1"):
        Confirm(evals=evals, rule=Scan())


def test_nothing_to_confirm_with_is_refused_and_no_warm_up_is_not():
    with pytest.raises(SpecError, match=">= 1, but got 0"):
        Confirm(evals=0, rule=Scan())
    assert After(evals=0, rule=Scan()).evals == 0


@pytest.mark.parametrize("part", [None, "scan", Scan, StopAt(), 3], ids=repr)
def test_what_judges_no_curve_cannot_be_combined(part):
    for make in (
        lambda: AnyOf((Scan(), part)),
        lambda: AllOf((part,)),
        lambda: After(evals=1, rule=part),
        lambda: Confirm(rule=part),
    ):
        with pytest.raises(SpecError, match="expected a rule that judges a curve"):
            make()


@pytest.mark.parametrize("parts", [None, "scan", Scan()], ids=repr)
def test_rules_to_combine_come_together(parts):
    with pytest.raises(SpecError, match="in brackets"):
        AnyOf(parts)
