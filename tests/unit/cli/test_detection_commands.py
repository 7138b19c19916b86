"""evalstop bench, power and calibrate from the command line."""

import json

import numpy as np
import pytest

from evalstop.cli import main


def run(capsys, *words):
    code = main(words)
    out, err = capsys.readouterr()
    return code, out, err


BENCH = (
    "bench",
    "detectors",
    "--world=linear",
    "--world=flat",
    "--evals=10",
    "--sigma=0.05",
    "--rule=default",
    "--rule=consecutive:k=2",
    "--rule=ray-median",
    "--runs=60",
)


def test_bench_gives_cells_with_intervals_and_a_summary(capsys):
    code, out, _ = run(capsys, *BENCH, "--stderr", "true,unknown", "--json")
    assert code == 0
    found = json.loads(out)
    assert {(c["world"], c["rule"], c["stderr_reported"]) for c in found["cells"]} >= {
        ("linear", "default", "true"),
        ("flat", "ray-median", "unknown"),
    }
    wanted = {
        "world", "n_evals", "sigma", "rho", "base_rate", "stderr_reported", "rule", "n",
        "precision", "recall", "fpr", "early_rate", "delay_evals_mean", "reclaimed_fraction",
        "intervals",
    }  # fmt: skip
    for cell in found["cells"]:
        assert wanted <= set(cell)
        if cell["fpr"] is not None:
            low, high = cell["intervals"]["fpr"]
            assert low <= cell["fpr"] + 1e-12
            assert cell["fpr"] <= high
    flat = [c for c in found["cells"] if c["world"] == "flat" and c["rule"] == "default"]
    assert all(c["recall"] is None and c["base_rate"] == 0 for c in flat)
    two = [c for c in found["cells"] if c["world"] == "flat" and c["rule"] == "consecutive:k=2"]
    assert all(c["fpr"] > 0.6 for c in two)
    assert {line["rule"] for line in found["summary"]} == {
        "default",
        "consecutive:k=2",
        "ray-median",
    }


def test_bench_is_the_same_for_the_same_seed(capsys):
    one, two = (run(capsys, *BENCH, "--json")[1] for _ in range(2))
    assert one == two
    assert run(capsys, *BENCH, "--json", "--seed", "1")[1] != one


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--world", "mars"), "mars"),
        (("--rule", "stop-at"), "more than scores"),
        (("--sigma", "x"), "--sigma"),
        (("--stderr", "maybe"), "maybe"),
    ],
)
def test_bench_says_what_is_wrong(capsys, words, said):
    code, out, err = run(capsys, "bench", "detectors", "--runs", "10", "--evals", "5", *words)
    assert (code, out) == (2, "")
    assert said in err


def power(capsys, *words):
    code, out, _ = run(capsys, "power", "--runs", "400", "--json", *words)
    assert code == 0
    return json.loads(out)


def test_power_grows_with_items_and_with_the_drop(capsys):
    base = power(capsys, "--items", "400", "--evals", "12", "--drop", "0.08")
    more = power(capsys, "--items", "1600", "--evals", "12", "--drop", "0.08")
    deep = power(capsys, "--items", "400", "--evals", "12", "--drop", "0.16")
    assert base["stderr"] == pytest.approx(0.025)
    assert base["chance"] < more["chance"]
    assert base["chance"] < deep["chance"]
    assert more["interval"][0] <= more["chance"] <= more["interval"][1]


def test_power_names_the_items_that_find_nine_in_ten(capsys):
    asked = power(capsys, "--items", "400", "--evals", "12", "--drop", "0.08")
    again = power(capsys, "--items", str(asked["items_for_90"]), "--evals", "12", "--drop", "0.08")
    assert 0.88 <= again["chance"] <= 0.93
    assert power(capsys, "--stderr", "0.025", "--evals", "12", "--drop", "0.08")[
        "chance"
    ] == pytest.approx(asked["chance"])


@pytest.mark.parametrize(
    "words",
    [
        ("--evals", "12", "--drop", "0.1"),
        ("--evals", "12", "--drop", "0.1", "--items", "10", "--stderr", "0.1"),
        ("--evals", "3", "--drop", "0.1", "--items", "10"),
        ("--evals", "12", "--drop", "-1", "--items", "10"),
        ("--evals", "12", "--drop", "inf", "--stderr", "0.1"),
        ("--evals", "12", "--drop", "nan", "--stderr", "0.1"),
        ("--evals", "12", "--drop", "2", "--items", "100"),
        ("--evals", "12", "--drop", "0.1", "--items", "10", "--shape", "round"),
        ("--evals", "12", "--drop", "0.1", "--items", "10", "--peak", "12"),
    ],
)
def test_power_refuses_questions_without_an_answer(capsys, words):
    code, out, err = run(capsys, "power", *words)
    assert (code, out) == (2, "")
    assert err


def history(folder, drop):
    generator = np.random.default_rng(0)
    rows = ["trace_id,step,score,stderr"]
    for trace in range(30):
        scores = 0.5 + 0.02 * generator.standard_normal(12) - drop * (np.arange(12) > 6)
        rows += [f"run{trace},{step},{score:.5f},0.02" for step, score in enumerate(scores)]
    path = folder / "history.csv"
    path.write_text("\n".join(rows) + "\n")
    return str(path)


def test_calibrate_finds_the_setting_for_ones_own_runs(capsys, tmp_path):
    path = history(tmp_path, 0.0)
    code, out, _ = run(capsys, "calibrate", path, "--direction", "max", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["runs"] == 30
    assert found["spec"].startswith("scan:alpha=")
    assert not found["certified"]
    assert found["runs_to_certify"] == 381
    rates = [level["rate"] for level in found["levels"]]
    assert rates == sorted(rates)


def test_calibrate_counts_no_run_that_could_not_have_been_stopped(capsys, tmp_path):
    path = tmp_path / "empty.csv"
    path.write_text("trace_id,step,score\n" + "".join(f"e{i},1,nan\n" for i in range(70)))
    whole = history(tmp_path, 0.0)
    code, out, _ = run(capsys, "calibrate", whole, str(path), "--direction", "max", "--json")
    assert (code, json.loads(out)["runs"]) == (0, 30)
    code, out, err = run(capsys, "calibrate", str(path), "--direction", "max", "--json")
    assert (code, out) == (2, "")
    assert "none of the runs has an evaluation" in err


def test_calibrate_says_when_the_runs_are_not_healthy(capsys, tmp_path):
    path = history(tmp_path, 0.3)
    code, out, _ = run(capsys, "calibrate", path, "--direction", "max", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["spec"] == "none"
    assert "healthy" in found["note"]
