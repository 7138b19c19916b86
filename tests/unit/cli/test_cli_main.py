import json
import re
import subprocess
import sys
import types

import pytest
import typer

from evalstop.cli import commands, main
from evalstop.cli.output import fit, number, print_table, progress, tell, write_json
from evalstop.core.errors import EvalStopError, InputError, MissingExtraError, ReadError


@pytest.fixture
def command(monkeypatch):
    """Install a command `try` that runs the function given."""

    def install(function):
        module = types.ModuleType("evalstop_cli_try")
        module.run = function
        monkeypatch.setitem(sys.modules, "evalstop_cli_try", module)
        monkeypatch.setitem(
            commands.COMMANDS, "try", commands.Entry("evalstop_cli_try:run", "Try it.", "Tests")
        )
        monkeypatch.setitem(
            commands.COMMANDS, "other", commands.Entry("no_such_module:run", "Other.", "Tests")
        )

    return install


def raising(error):
    def run() -> None:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (InputError("wanted X, got Y"), 2, "wanted X, got Y"),
        (ReadError("a.csv:3", "no number"), 2, "a.csv:3: no number"),
        (MissingExtraError("tensorboard", "tensorboard"), 2, "evalstop[tensorboard]"),
        (EvalStopError("lost"), 1, "lost"),
        (PermissionError(13, "Permission denied", "x"), 1, "Permission denied"),
        (ZeroDivisionError("oops"), 1, "EVALSTOP_TRACEBACK=1"),
        (typer.Exit(1), 1, ""),
        (typer.BadParameter("bad"), 2, "bad"),
    ],
)
def test_errors_become_a_line_and_an_exit_code(command, capsys, error, code, words):
    command(raising(error))
    assert main(["try"]) == code
    out, err = capsys.readouterr()
    assert words in err
    assert "Traceback" not in err
    assert out == ""


def test_an_interrupt_is_clean(command, capsys):
    command(raising(KeyboardInterrupt()))
    assert main(["try"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_unexpected_errors_show_their_stack_on_request(command, monkeypatch):
    monkeypatch.setenv("EVALSTOP_TRACEBACK", "1")
    command(raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        main(["try"])


def test_help_lists_commands_without_importing_them(command, capsys):
    command(lambda: None)
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "Try it." in out
    assert "Other." in out


def test_success_version_and_an_unknown_command(command, capsys):
    command(lambda: typer.echo("done"))
    assert main(["try"]) == 0
    assert capsys.readouterr().out == "done\n"
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("evalstop ")
    assert main(["tri"]) == 2
    assert "try" in capsys.readouterr().err


def test_a_group_of_commands_is_mounted(command, capsys):
    group = typer.Typer()
    group.callback()(lambda: None)
    group.command("sub")(lambda: typer.echo("sub ran"))
    command(group)
    assert main(["try", "sub"]) == 0
    assert capsys.readouterr().out == "sub ran\n"


def test_a_reader_that_leaves_early_is_no_error():
    program = (
        "import sys; from evalstop.cli import main, commands\n"
        "import types; m = types.ModuleType('m'); sys.modules['m'] = m\n"
        "m.run = lambda: [print('x' * 1000) for _ in range(10_000)] and None\n"
        "commands.COMMANDS['try'] = commands.Entry('m:run', '', '')\n"
        "sys.exit(main(['try']))\n"
    )
    process = subprocess.run(
        f'{sys.executable} -c "{program}" | head -1',
        shell=True,
        check=False,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert process.stdout.startswith("xxx")
    assert process.stderr == ""


def test_json_holds_no_nan(capsys):
    write_json({"a": float("nan"), "b": [float("inf")]})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None]}


def test_tables_are_plain_when_piped(capsys):
    print_table("Title", ["name", "value"], [["[a]", number(0.123456)], ["b", number(None)]])
    assert capsys.readouterr().out == "Title\nname\tvalue\n[a]\t0.1235\nb\t-\n\n"


def test_long_names_lose_their_middle():
    assert fit("short") == "short"
    assert len(fit("x" * 100, 20)) == 20
    assert fit("first/" + "x" * 100 + "/last", 20).endswith("/last")


def test_tables_are_ruled_in_a_terminal_and_figures_are_not_broken(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    print_table("Title", ["run [x]", "value"], [["[b] name " * 12, "1.18e+03"]], right="lr")
    out = capsys.readouterr().out
    assert "run [x]" in out
    assert "[b] name" in out
    assert "\u2500" in out
    assert "1.18e+03" in out


def test_names_that_would_break_a_table_or_a_terminal_are_escaped(monkeypatch, capsys):
    name = "a\tb\nc\x1b[31m\u202ed"
    print_table("Title", ["name"], [[name]])
    assert capsys.readouterr().out == "Title\nname\na\\tb\\nc\\x1b[31m\\u202ed\n\n"
    tell(f"{name}: not read\n  see")
    assert capsys.readouterr().err == "a\\tb\nc\\x1b[31m\\u202ed: not read\n  see\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    print_table("Title", ["name"], [[name]])
    assert r"a\tb\nc\x1b[31m\u202ed" in capsys.readouterr().out


def test_json_holds_names_that_utf_8_cannot(capsys):
    write_json({"a\udcff": ["b\ud800", 1.5, None, True]})
    assert json.loads(capsys.readouterr().out) == {"a\\udcff": ["b\\ud800", 1.5, None, True]}


def test_a_table_too_wide_for_the_screen_is_turned(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    header = ["rule", *(f"figure {i}, h" for i in range(12))]
    rows = [[rule, *(f"{i}.5 (-31.0 %)" for i in range(12))] for rule in ("none", "paper")]
    print_table("Title", header, rows, right="w" + "r" * 12)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 60
    assert [line.split() for line in lines if "rule" in line] == [["rule", "none", "paper"]]
    assert ["figure", "7,", "h", "7.5", "(-31.0", "%)", "7.5", "(-31.0", "%)"] in [
        line.split() for line in lines
    ]


def test_one_column_of_long_texts_does_not_starve_the_others(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    row = ["order-restricted", "a short sentence on what it does", "x" * 700]
    print_table("Title", ["name", "what", "parameters"], [row], right="wll")
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert "order-restricted" in out
    assert "a short sentence" in out


def test_help_flows_with_the_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "70")
    assert main(["replay", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "what that saves and what it costs. Exit code 1" in text
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["replay", "--help"]) == 0
    assert "what that saves and what it costs. Exit code 1" in capsys.readouterr().out
    assert main(["simulate", "--help"]) == 0
    assert "Default: srtf-est." in capsys.readouterr().out


RUNS = [
    [
        f"{team}-{run}/run-of-a-long-name:eval_accuracy",
        str(run),
        "0.4957",
        "12.5 (-31.0 %)",
        "598 >= 3.82",
    ]
    for team in "ab"
    for run in range(2)
]
HEADS = ["run", "evals", "best by then", "JCT mean, h", "why"]


@pytest.mark.parametrize("columns", [10, 20, 40, 60, 80, 120, 200])
def test_no_cell_is_lost_however_narrow_the_terminal_is(monkeypatch, capsys, columns):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    print_table("Title", HEADS, RUNS, right="lrrrl")
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    for row in RUNS:
        for cell in row[1:-1]:  # figures stand in one piece
            assert cell in out
    for name in HEADS:
        for word in name.split():
            assert word in out
    for row in RUNS:  # words fold, and their first letters are enough to tell one from another
        assert row[0][:12] in out


@pytest.mark.parametrize("columns", [80, 100, 300])
def test_a_table_is_no_wider_than_its_terminal(monkeypatch, capsys, columns):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    print_table("Title", HEADS, RUNS, right="lrrrl")
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(len, out.splitlines())) <= columns


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_names_may_hold_what_the_terminal_cannot_show(tmp_path, encoding, options):
    path = tmp_path / "runs.csv"
    rows = "".join(
        f"\u00dcn\u00ef-\u2192-\U0001f389,{i},{s}\n" for i, s in enumerate([0.5, 0.6, 0.1])
    )
    path.write_text("trace_id,step,score\n" + rows, encoding="utf-8")
    command = ["replay", str(path), "--direction", "max", "--rule", "patience:k=1", *options]
    process = subprocess.run(
        [sys.executable, "-m", "evalstop", *command],
        capture_output=True,
        env={"PYTHONPATH": ":".join(sys.path), "PYTHONIOENCODING": encoding},
        check=True,
    )
    assert process.stderr == b""
    out = process.stdout.decode(encoding)
    if options:
        assert json.loads(out)["results"][0]["trace_id"] == "\u00dcn\u00ef-\u2192-\U0001f389"
    else:
        assert out.splitlines()[2].split("\t")[1:3] == ["score", "3"]


def test_progress_is_shown_to_people_only(capsys):
    with progress() as bar:
        bar.advance(bar.add_task("work", total=1))
    assert capsys.readouterr().err == ""
