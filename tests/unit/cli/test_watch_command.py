"""`evalstop watch` shows what comes, whatever its name and however often the server restarts."""

import io

import pytest
from rich.console import Console, Group

from evalstop.cli import oversee
from evalstop.core.errors import EvalStopError, InputError

CLUSTER = {"gpus": {"total": 4, "free": 3, "held": {"running": 1}, "quarantined": []}}


def job(**fields):
    return {
        "id": "a", "tenant": "t", "job_type": "rlhf", "gpus": 1, "outcome": None,
        "phase": "running", "evals_seen": 2, "best": {"score": 0.5, "step": 3}, "verdict": None,
        "advice": "", "series": [],
    } | fields  # fmt: skip


def shown(cluster, *jobs, width=100):
    out = io.StringIO()
    console = Console(file=out, width=width)
    console.print(Group(*oversee.cluster_picture(cluster, list(jobs))))
    return out.getvalue()


@pytest.mark.parametrize("name", ["[red]", "[/]", "[/bold]", "[link=x]y", "plain"])
@pytest.mark.parametrize("field", ["tenant", "job_type", "advice"])
def test_names_are_shown_as_they_are(field, name):
    assert name in shown(CLUSTER, job(**{field: name}))


@pytest.mark.parametrize("total", [1, 64, 1000, 100_000])
def test_the_bar_of_gpus_fits_a_line(total):
    free = total // 2
    cluster = {
        "gpus": {"total": total, "free": free, "held": {"running": total - free}, "quarantined": []}
    }
    bar = shown(cluster, width=100).splitlines()[0]
    assert f"{free} of {total} free" in bar
    assert ("\u2588" in bar, "\u00b7" in bar) == (True, free > 0)


class Server:
    """Answers, is away for two looks, answers again, and then refuses."""

    def __init__(self, *_):
        self.looks = 0

    def get(self, path):
        self.looks += path == "/cluster"
        if self.looks in {2, 3}:
            message = "nobody answers"
            raise EvalStopError(message)
        if self.looks == 5:
            message = "send a token we know"
            raise InputError(message)
        return CLUSTER if path == "/cluster" else {"jobs": [job()]}


def test_in_a_pipe_one_picture_follows_the_other(monkeypatch, capsys):
    server = Server()
    server.looks = 10  # it always answers
    looks = []

    def sleep(_):
        looks.append(capsys.readouterr().out.count("3 of 4 free"))
        if len(looks) == 3:
            raise BrokenPipeError

    monkeypatch.setattr(oversee, "Remote", lambda *_: server)
    monkeypatch.setattr(oversee.time, "sleep", sleep)
    with pytest.raises(BrokenPipeError):
        oversee.watch()
    assert looks == [1, 1, 1]


def test_a_server_that_restarts_is_waited_for(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    server = Server()
    monkeypatch.setattr(oversee, "Remote", lambda *_: server)
    monkeypatch.setattr(oversee.time, "sleep", lambda _: None)
    with pytest.raises(InputError, match="a token we know"):
        oversee.watch()
    assert server.looks == 5
    assert "3 of 4 free" in capsys.readouterr().out
