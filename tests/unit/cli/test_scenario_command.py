"""``evalstop scenario``: what it prints, writes and refuses."""

import json

import pytest

from evalstop.cli import main
from evalstop.workloads.scenario_text import read_scenario
from evalstop.workloads.scenarios import HARD


def run(capsys, *arguments):
    code = main(["scenario", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_table_counts_jobs_and_labels(capsys):
    code, out, _ = run(capsys, "paper")
    assert code == 0
    assert "Scenario paper, seed 0: 200 jobs on 64 GPUs, 2000 evaluations" in out
    assert "rlhf\t160\t96\t60.0 %" in out.splitlines()


def test_json_holds_the_scenario_and_its_facts(capsys):
    code, out, _ = run(capsys, "hard", "--seed", "3", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["seed"] == 3
    assert data["scenario"]["name"] == "hard"
    assert data["facts"]["jobs"] == 200
    assert data["facts"]["hacking"] == {"rlhf": 40, "dpo": 10, "lora": 0}


def test_json_of_a_scenario_without_hacking_has_null_and_no_nan(capsys, tmp_path):
    path = tmp_path / "calm.toml"
    path.write_text("hacking = {}\n")
    _, out, _ = run(capsys, str(path), "--json")
    assert "NaN" not in out
    assert json.loads(out)["facts"]["peak"]["median"] is None


def test_toml_is_a_whole_scenario_to_start_from(capsys):
    code, out, _ = run(capsys, "hard", "--toml")
    assert code == 0
    assert read_scenario(out, source="mine.toml") == HARD


@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
def test_the_figure_is_the_same_bytes_each_time(capsys, tmp_path, ending):
    paths = [tmp_path / f"{name}.{ending}" for name in "ab"]
    for path in paths:
        code, _, err = run(capsys, "paper", "--figure", str(path))
        assert code == 0
        assert f"drawn: {path}" in err
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("papr",), "unknown scenario 'papr'; known: paper"),
        (("nowhere.toml",), "nowhere.toml: cannot be read"),
        (("paper", "--figure", "x.jpg"), "--figure writes .svg, .png, .pdf, but it is 'x.jpg'"),
    ],
)
def test_what_cannot_be_used_is_refused(capsys, arguments, complaint):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert complaint in err
