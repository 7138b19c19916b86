import array
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time

import pytest

from evalstop.cli import main

ROWS = "trace_id,step,score\n" + "".join(
    f"{run},{step},{score}\n"
    for run, scores in (("bad", [0.1, 0.5, 0.4, 0.3, 0.2]), ("good", [0.1, 0.2, 0.3, 0.4, 0.5]))
    for step, score in enumerate(scores)
)
KEYS = {
    "trace_id", "source", "metric", "direction", "rule", "n_evals", "fired", "stop_step",
    "stop_index", "best_step", "best_score", "best_score_at_stop", "final_score",
    "saved_fraction", "regret", "statistic", "threshold", "reason", "skipped_points",
}  # fmt: skip


@pytest.fixture
def runs(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(ROWS)
    return str(path)


def test_json_is_all_there_is_on_stdout(runs, capsys):
    code = main(["replay", runs, "--rule", "consecutive:k=2", "--rule", "none",
                 "--direction", "max", "--json"])  # fmt: skip
    out, _ = capsys.readouterr()
    data = json.loads(out)
    assert code == 0
    assert len(data["results"]) == 4
    assert all(set(result) >= KEYS for result in data["results"])
    assert data["summary"]["consecutive:k=2"]["fired"] == 1
    assert {"fired", "saved_fraction_mean", "regret_mean", "regret_max"} <= set(
        data["summary"]["none"]
    )


def test_the_table_is_plain_when_piped_and_tells_stop_and_cost(runs, capsys):
    assert main(["replay", runs, "--rule", "consecutive:k=2", "--direction", "max"]) == 0
    out = capsys.readouterr().out
    assert "bad\tscore\t5\t3\t0.5\t0.5\t1\t0.2\t25%\t0\t2 >= 2" in out
    assert "\x1b" not in out


def test_names_are_whole_when_piped_and_units_are_not_mixed_silently(tmp_path, capsys):
    name = "team/" + "x" * 80 + "/run"
    path = tmp_path / "runs.csv"
    rows = "".join(
        f"{name},{i},{1 - i / 10},{metric},true\n" for metric in ("acc", "f1") for i in range(5)
    )
    path.write_text("trace_id,step,score,metric,greater_is_better\n" + rows)
    assert main(["replay", str(path), "--rule", "consecutive"]) == 0
    out = capsys.readouterr().out
    assert f"\n{name}\t" in out
    assert "Rule consecutive: summary (2 metrics: its regrets mix their units)" in out


def test_a_bad_file_among_good_ones_gives_results_errors_and_code_1(runs, tmp_path, capsys):
    bad = tmp_path / "bad.csv"
    bad.write_text("trace_id,step,score\na,1,x\n")
    assert main(["replay", runs, str(bad), "--direction", "max", "--json"]) == 1
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert len(data["results"]) == 2
    assert data["errors"][0]["source"] == f"{bad}:2"
    assert "bad.csv:2" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing.csv", "--direction", "max"], "no such file"),
        (["RUNS"], "--direction max or --direction min"),
        (["RUNS", "--direction", "up"], "must be max or min"),
        (["RUNS", "--direction", "max", "--rule", "consecutive:q=2"], "no setting 'q'"),
        (["RUNS", "--direction", "max", "--rule", "nonsense"], "the known ones are"),
        (["RUNS", "--direction", "max", "--metric", "scores"], "Did you mean 'score'?"),
        ([], "--example"),
        (["RUNS", "--no-such-option"], "--no-such-option"),
    ],
)
def test_bad_usage_and_input_exit_2_with_what_to_do(runs, capsys, arguments, words):
    code = main(["replay", *(runs if word == "RUNS" else word for word in arguments)])
    out, err = capsys.readouterr()
    assert code == 2
    assert words in " ".join(err.split())
    assert out == ""
    assert "Traceback" not in err


def test_a_page_is_written_where_it_is_wanted(runs, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["replay", runs, "--direction", "max", "--html", str(page)]) == 0
    assert "<svg" in page.read_text()
    assert str(page) in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_a_run_time_failure(runs, tmp_path, capsys):
    page = tmp_path / "no" / "page.html"
    assert main(["replay", runs, "--direction", "max", "--html", str(page)]) == 1
    assert "No such file" in capsys.readouterr().err


def test_the_built_in_runs_replay_with_every_rule(capsys):
    from evalstop.config.rules import RULES

    options = [word for name in (*RULES, "paper") for word in ("--rule", name)]
    assert main(["replay", "--example", "--json", *options]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data["summary"]) == {*RULES, "paper"}
    assert data["summary"]["default"]["fired"] > 0


def test_rules_lists_every_rule_with_parameters(capsys):
    from evalstop.config.rules import RULES

    assert main(["rules", "--json"]) == 0
    rules = {rule["name"]: rule for rule in json.loads(capsys.readouterr().out)["rules"]}
    assert set(rules) == {*RULES, "paper"}
    assert rules["consecutive"]["parameters"][0]["name"] == "k"
    assert main(["rules"]) == 0
    assert "consecutive" in capsys.readouterr().out


# Tests that run in a shell's background inherit that interrupts are ignored: not so this command.
INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from evalstop.cli import main
sys.exit(main())
"""


def test_an_interrupt_ends_the_command_without_a_trace(tmp_path):
    fifo = tmp_path / "runs.csv"
    os.mkfifo(fifo)  # the command waits for it to be written
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, "replay", str(fifo)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    writer = _opened_once_read(fifo)
    # While a file is being opened an interrupt can be lost: Python hears it, and reads on.
    os.write(writer, b"trace_id,step,score\n")
    while _unread(writer):
        time.sleep(0.05)
    time.sleep(1.0)  # it waits for more now
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    os.close(writer)
    assert process.returncode == 130
    assert "Traceback" not in err


def _unread(pipe):
    """Return how many bytes of a pipe nobody has read yet."""
    size = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, size)
    return size[0]


def _opened_once_read(fifo):
    """Open a pipe for writing as soon as somebody reads it."""
    for _ in range(30_000):
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.01)
    pytest.fail("the command did not open the file")
