"""A server that is killed in the middle of an answer has given none, whoever asked it."""

from __future__ import annotations

import socket
import threading

import pytest

from evalstop.cli.remote import Remote
from evalstop.client import reporter as module
from evalstop.client.reporter import Reporter, get, post
from evalstop.client.wire import Destination
from evalstop.core.errors import EvalStopError, ReadError
from evalstop.testing.backend import eventually
from evalstop.traces.mlflow import Address, Server

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"
BROKEN = [HEAD + b'{"stop":', b"HTTP/", b""]
WHOLE = b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"stop": true}'


class Breaking:
    """Answers each connection with the next of the given bytes, the last ones again and again."""

    def __init__(self, answers):
        self.answers, self.asked, self.over = list(answers), 0, False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self._answer)
        self.thread.start()

    def _answer(self):
        while True:
            connection, _ = self.listener.accept()
            if self.over:
                connection.close()
                return
            with connection:
                request = b""
                while not _is_whole(request):
                    request += connection.recv(100_000)
                self.asked += 1
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                connection.sendall(answer)

    def close(self):
        self.over = True
        with socket.create_connection(self.listener.getsockname()):
            pass
        self.thread.join()
        self.listener.close()


def _is_whole(request):
    head, found, body = request.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return found and len(body) >= sum(int(line.partition(b":")[2]) for line in lengths)


@pytest.fixture
def breaking():
    made = []

    def make(*answers):
        made.append(Breaking(answers))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("answer", BROKEN)
def test_half_an_answer_is_an_error_of_the_network(breaking, tmp_path, monkeypatch, answer):
    monkeypatch.setenv("EVALSTOP_TOKEN", "t")
    server = breaking(answer)
    with pytest.raises(OSError, match=r"broke off|closed|reset"):
        post(server.url, b"{}", {}, timeout_s=60)
    with pytest.raises(OSError, match=r"broke off|closed|reset"):
        get(server.url, {}, timeout_s=60)
    with pytest.raises(EvalStopError, match="nobody answers"):
        Remote(server.url, tmp_path).get("/jobs")
    with pytest.raises(ReadError, match="does not answer as it should"):
        Server(server.url).runs(Address(uri=server.url, experiment="", run="r"))


def destination(url, tmp_path):
    return Destination(url=url, job="a", token="t", file=str(tmp_path / "evals"))


def test_a_report_whose_answer_broke_off_is_sent_again(breaking, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.01)
    server = breaking(*BROKEN, WHOLE)
    reporter = Reporter(destination(server.url, tmp_path))
    reporter.report(1, 0.5)
    assert reporter.flush(120)
    assert server.asked == len(BROKEN) + 1
    assert reporter.should_stop()
    assert list(tmp_path.iterdir()) == []


def test_a_question_whose_answer_broke_off_is_asked_again(breaking, tmp_path):
    server = breaking(*BROKEN, WHOLE)
    reporter = Reporter(destination(server.url, tmp_path), ask_every_s=0.01)
    eventually(reporter.should_stop, 120)
    assert server.asked > len(BROKEN)
