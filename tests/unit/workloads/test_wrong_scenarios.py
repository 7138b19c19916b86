"""A scenario that no cluster could have is refused, in a file and in Python, by name and value."""

import math
import re

import msgspec
import pytest
from msgspec.structs import replace

from evalstop.core.errors import InputError, ReadError, SpecError
from evalstop.workloads import scenario as described
from evalstop.workloads.generate import generate
from evalstop.workloads.scenario import Curves, Durations, Noise, Scenario
from evalstop.workloads.scenario_text import read_scenario
from evalstop.workloads.scenarios import GAO, HARD, MATCHED, NAMED, PAPER

GROUPS = [
    Curves,
    Noise,
    Durations,
    described.Arrivals,
    described.Elasticity,
    described.Adversaries,
    described.Mitigation,
    described.Signals,
    described.Deliveries,
    described.Costs,
]

NUMBERS = [
    (group, field.name)
    for group in GROUPS
    for field in msgspec.structs.fields(group)
    if isinstance(field.default, int | float | tuple) and not isinstance(field.default, bool)
]

PAIRS = [(group, name) for group, name in NUMBERS if isinstance(getattr(group(), name), tuple)]


@pytest.mark.parametrize(("group", "name"), NUMBERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_every_number_is_finite(group, name, value):
    with pytest.raises(SpecError, match=f"{name} must be finite, got {value}"):
        group(**{name: value})


@pytest.mark.parametrize(("group", "name"), PAIRS)
def test_every_pair_is_in_order(group, name):
    low, high = getattr(group(), name)
    with pytest.raises(SpecError, match=f"{name} must be a number or a pair in order"):
        group(**{name: (high, low)})
    with pytest.raises(SpecError, match=f"{name} must be finite"):
        group(**{name: (low, math.nan)})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[curves]\npower = 0", "line 1: curves: power must be above 0, got 0.0"),
        ("[curves]\ngain = -0.1", "line 1: curves: gain must be at least 0, got -0.1"),
        ("[curves]\ngain = nan", "line 1: curves: gain must be finite, got nan"),
        ("[noise]\nsigma = inf", "line 1: noise: sigma must be finite, got inf"),
        ("[signals]\nloss_rate = [-1.0, 2.0]", "loss_rate must be at least 0, got (-1.0, 2.0)"),
        ("[elasticity]\nnoise_scale = -3", "noise_scale must be at least 0, got -3.0"),
        ("gpus = 0", "line 1: gpus: Expected `int` >= 1, got 0"),
        ("[arrivals]\nload = -2", "line 2: arrivals.load: Expected `float` > 0.0, got -2"),
        ("jobs = 100000000000", "jobs: Expected `int` <= 1000000000, got 100000000000"),
    ],
)
def test_a_file_is_told_what_came(text, complaint):
    with pytest.raises(ReadError, match=re.escape(complaint)):
        read_scenario(text, source="mine.toml")


@pytest.mark.parametrize(
    ("scenario", "complaint"),
    [
        (Scenario(jobs=-5), "scenario 'custom': jobs: Expected `int` >= 0, got -5"),
        (Scenario(jobs=2.5), "jobs: Expected `int`, got `float`"),
        (Scenario(jobs="many"), "jobs: Expected `int`, got `str`"),
        (Scenario(jobs=10**23), "jobs: "),
        (Scenario(noise=Noise(rho=1.5)), "noise.rho: Expected `float` < 1.0, got 1.5"),
        (Scenario(durations=Durations(median_s=-1.0)), "durations.median_s: Expected `float` > 0"),
        (Scenario(curves=Curves(gain="large")), "curves.gain: Expected "),
        (Scenario(noise=object()), "expected numbers, words and tables, but "),
    ],
)
def test_one_made_in_python_is_checked_before_anything_is_drawn(scenario, complaint):
    with pytest.raises(SpecError, match=re.escape(complaint)):
        generate(scenario, 0)


def test_durations_that_no_number_can_say_are_refused():
    endless = replace(PAPER, jobs=50, durations=Durations(median_s=1e300, sigma=100.0))
    with pytest.raises(InputError, match=r"lower durations\.median_s"):
        generate(endless, 0)


@pytest.mark.parametrize("scenario", NAMED.values(), ids=list(NAMED))
def test_those_that_ship_are_all_right(scenario):
    assert len(generate(replace(scenario, jobs=3), 0)) == 3


def test_healthy_and_hacking_runs_share_one_law_before_the_peak():
    """No detector wins by the shape of the rise: the labels differ after the peak alone."""
    for scenario in (PAPER, GAO, MATCHED):
        assert scenario.curves.healthy == scenario.curves.hacking == {"gao-rl": 1.0}
    assert set(HARD.curves.hacking) <= set(described.DECLINING)
