import json

import pytest

from evalstop.cli import main
from evalstop.cli.simulate import parse_seeds

SMALL = ["--jobs", "40", "--gpus", "16"]


def run(capsys, *arguments):
    code = main(["simulate", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_json_has_one_result_a_scheduler_and_rule(capsys):
    code, out, _ = run(capsys, *SMALL, "--scheduler", "fifo", "--scheduler", "srtf-est",
                       "--rule", "none", "--rule", "paper", "--seeds", "3,7", "--json")  # fmt: skip
    data = json.loads(out)
    assert code == 0
    assert [(r["scheduler"], r["rule"]) for r in data["results"]] == [
        ("fifo", "none"), ("fifo", "paper"), ("srtf-est", "none"), ("srtf-est", "paper"),
    ]  # fmt: skip
    for result in data["results"]:
        assert (result["scenario"], result["gpus"], result["jobs"]) == ("paper", 16, 40)
        assert result["seeds"] == [3, 7]
        assert set(result["intervals"]) == {"system", "quality", "detection"}
        assert {"jct_mean_s", "gpu_hours_wasted", "jain_tenants"} <= set(result["system"])
        assert {"precision", "recall", "fpr", "fpr_rlhf"} <= set(result["detection"])
        assert result["events"] > 0
    paper = data["results"][1]
    assert paper["detection"]["tp"] > 0
    assert paper["system"]["gpu_hours_wasted"] < data["results"][0]["system"]["gpu_hours_wasted"]


def test_the_same_seed_gives_the_same_bytes(capsys):
    def outcome():
        data = json.loads(run(capsys, *SMALL, "--seeds", "2", "--json")[1])
        for result in data["results"]:
            del result["wall_s"]
        return json.dumps(data)

    assert outcome() == outcome()


def test_the_table_compares_with_the_first_line(capsys):
    code, out, _ = run(capsys, *SMALL, "--rule", "none", "--rule", "default")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].startswith("Scenario paper: 40 jobs on 16 GPUs, 1 seed;")
    assert " %)" not in lines[2]
    assert " %)" in lines[3]


def test_a_trace_of_known_answer_is_met_to_the_digit(capsys, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("job_id,num_gpu,submit_time,duration\na,2,0,100\nb,2,10,50\nc,1,20,10\n")
    code, out, err = run(
        capsys, "--trace", str(path), "--gpus", "2", "--scheduler", "fifo", "--rule", "none",
        "--json",
    )  # fmt: skip
    (result,) = json.loads(out)["results"]
    assert code == 0
    assert "3 jobs (plain form)" in err
    assert result["jobs"] == 3
    assert result["trace"] == str(path)
    assert result["system"]["jct_mean_s"] == pytest.approx((100 + 140 + 140) / 3)
    assert result["system"]["makespan_s"] == 160


def test_a_scenario_can_be_a_file(capsys, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('base = "paper"\njobs = 20\ngpus = 16\n')
    code, out, _ = run(capsys, "--scenario", str(path), "--json")
    assert code == 0
    assert json.loads(out)["results"][0]["scenario"] == "mine"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scenario", "papier"], "known: paper"),
        (["--scenario", "no.toml"], "no.toml: cannot be read"),
        (["--scheduler", "lifo"], "the known ones are"),
        (["--rule", "lifo"], "the known ones are"),
        (["--seeds", "none"], "such as 3,7"),
        (["--seeds", "0"], "such as 3,7"),
        (["--seeds", "1,-2"], "such as 3,7"),
        (["--seeds", "3,7,3"], "names a seed twice"),
        (["--gpus", "1"], "never fits on 1 GPUs"),
        (["--gpus", "0"], "--gpus"),
        (["--trace", "no.csv"], "no such file"),
    ],
)
def test_bad_usage_exits_2_and_says_what_to_do(capsys, arguments, words):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert words in " ".join(err.split())
    assert out == ""


def test_a_job_larger_than_the_cluster_is_refused(capsys, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("job_id,num_gpu,submit_time,duration\na,64,0,100\n")
    code, _, err = run(capsys, "--trace", str(path), "--gpus", "16")
    assert code == 2
    assert "64 GPUs" in err


def test_a_scenario_file_begins_with_a_mark_or_is_empty(capsys, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('base = "paper"\njobs = 3\n', encoding="utf-8-sig")
    assert main(["simulate", "--scenario", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["jobs"] == 3
    path.write_text(" \n")
    assert main(["simulate", "--scenario", str(path)]) == 2
    assert "mine.toml: the file is empty" in capsys.readouterr().err


def test_seeds_are_a_number_or_a_list():
    assert parse_seeds("3") == (0, 1, 2)
    assert parse_seeds("3,7") == (3, 7)
    assert parse_seeds("5,") == (5,)


def test_a_scenario_with_node_types_runs_under_any_scheduler(capsys, tmp_path):
    path = tmp_path / "mixed.toml"
    path.write_text(
        'jobs = 40\npools = [{ name = "h100", gpus = 16, speed = 2.0 }, '
        '{ name = "a100", gpus = 48 }]\n'
    )
    code, out, _ = run(capsys, "--scenario", str(path), "--scheduler", "srtf-est",
                       "--scheduler", "pollux", "--rule", "paper", "--json")  # fmt: skip
    results = json.loads(out)["results"]
    assert code == 0
    assert all(result["system"]["jct_mean_s"] > 0 for result in results)
    assert all(0 < result["system"]["utilisation"] <= 1 for result in results)


def test_what_is_asked_for_twice_is_told_once(capsys):
    twice = ["--rule", "none", "--rule", "none", "--scheduler", "fifo", "--scheduler", "fifo"]
    code, out, _ = run(capsys, *SMALL, *twice, "--json")
    assert (code, len(json.loads(out)["results"])) == (0, 1)


def test_a_cluster_that_schedules_itself_starts_nothing_here_and_that_is_said(capsys):
    code, out, err = run(capsys, *SMALL, "--scheduler", "native", "--json")
    (result,) = json.loads(out)["results"]
    assert (code, result["system"]["jct_mean_s"]) == (0, None)
    assert "no job starts" in err
