"""Scenarios in TOML: what is written shows, and every mistake names its line and the way out."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalstop.core.errors import ReadError
from evalstop.workloads.scenario import Curves, Noise, Scenario
from evalstop.workloads.scenario_text import read_scenario, scenario_toml, write_scenario
from evalstop.workloads.scenarios import GAO, NAMED, PAPER

replace = msgspec.structs.replace


def test_an_empty_text_is_the_default_scenario_under_the_files_name():
    assert read_scenario("", source="dir/mine.toml") == Scenario(name="mine")


def test_a_base_is_changed_key_by_key_and_tables_of_shares_whole():
    text = """
    base = "gao"
    jobs = 50
    gangs = { 1 = 1.0 }
    [hacking]
    dpo = 0.5
    [noise]
    rho = 0.3
    [curves]
    gain = 0.4
    start = [0.0, 0.1]
    """
    assert read_scenario(text, source="x.toml") == replace(
        GAO,
        name="x",
        jobs=50,
        gangs={1: 1.0},
        hacking={"dpo": 0.5},
        noise=replace(GAO.noise, rho=0.3),
        curves=replace(GAO.curves, gain=0.4, start=(0.0, 0.1)),
    )


@pytest.mark.parametrize("name", NAMED)
def test_what_is_written_reads_back_the_same(name):
    plain = write_scenario(NAMED[name])
    assert msgspec.convert(plain, Scenario, str_keys=True) == NAMED[name]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("jobs = 3\ngpus = = 2", r"not TOML: .*line 2, column 8"),
        (
            "gpus = 64\njob = 3",
            r"line 2: unknown key 'job' \(did you mean 'jobs'\?\); known: name, ",
        ),
        (
            "[noise]\nsigm = 1",
            r"line 2: unknown key 'noise\.sigm' \(did you mean 'sigma'\?\); known",
        ),
        ("zzz = 1", r"line 1: unknown key 'zzz'; known: name, gpus"),
        ("noise = 3", r"line 1: noise is a table: write \[noise\]"),
        (
            'base = "papr"',
            r"line 1: unknown base scenario 'papr'; known: paper, gao, matched, hard",
        ),
        ('\njobs = "many"', r"line 2: jobs: Expected `int`, got `str`"),
        ("jobs = -1", r"line 1: jobs: Expected `int` >= 0"),
        ("[noise]\n\nrho = 1.0", r"line 3: noise\.rho: Expected `float` < 1\.0"),
        (
            '[noise]\nreported = "no"',
            r"line 2: noise\.reported: Invalid enum value 'no'; known: true, ",
        ),
        ("[curves]\nhealthy_kl = 2.0", r"line 1: curves: healthy_kl must lie in \(0, 1\]"),
        ("[curves.healthy]\nsteep = 1.0", r"line 1: curves\.healthy: Invalid .* known: gao-rl, "),
        ("[gangs]\n128 = 1.0", r"a gang of 128 never fits on 64 GPUs"),
        ("[evals]\ncount = -2", r"line 1: evals: count must be at least 0"),
        ("[evals]\ncount = [1, 2, 3]", r"line 2: evals\.count: Expected `array` of length 2"),
        ("[durations]\nmedian_s = 0", r"line 2: durations\.median_s: Expected `float` > 0"),
    ],
)
def test_mistakes_name_the_line_and_what_to_do(text, complaint):
    with pytest.raises(ReadError, match=complaint) as caught:
        read_scenario(text, source="bad.toml")
    assert str(caught.value).startswith("bad.toml: ")


@given(st.text(max_size=60))
def test_any_text_gives_a_scenario_or_a_read_error(text):
    try:
        scenario = read_scenario(text, source="any.toml")
    except ReadError:
        return
    assert isinstance(scenario, Scenario)


def test_a_scenario_is_frozen():
    with pytest.raises(AttributeError):
        PAPER.jobs = 3
    assert Scenario(noise=Noise(sigma=0.1)).noise.sigma == 0.1
    assert Curves() != PAPER.curves


@pytest.mark.parametrize("name", NAMED)
def test_a_scenario_written_as_toml_reads_back_the_same(name):
    assert read_scenario(scenario_toml(NAMED[name]), source="other.toml") == NAMED[name]


def test_names_with_quotes_and_odd_keys_survive_toml():
    odd = Scenario(name='a "b"', types={"my type.": 1.0}, hacking={})
    assert read_scenario(scenario_toml(odd), source="x.toml") == odd


def test_node_types_are_read_and_written():
    text = """
    gpus = 48
    [[pools]]
    name = "h100"
    gpus = 16
    speed = 2.5
    [[pools]]
    name = "a100"
    gpus = 32
    """
    scenario = read_scenario(text, source="mixed.toml")
    assert scenario.speeds == {"h100": 2.5, "a100": 1.0}
    assert read_scenario(scenario_toml(scenario), source="other.toml") == scenario
    with pytest.raises(ReadError, match=r"unknown field `colour`"):
        read_scenario(text + "colour = 1", source="mixed.toml")
