"""Notices: what is told, signed, retried, and told once; against real servers on this machine."""

from __future__ import annotations

import json
import threading
import time
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest
from aiosmtpd.controller import Controller as SmtpServer
from free_ports import free_port

from evalstop.core.errors import EvalStopError, InputError, StoreError
from evalstop.service.notify import Mail, Notice, Outbox, Target, Webhook, signature, verify
from evalstop.testing.backend import eventually

NOTICE = Notice(
    id="12.0",
    kind="stopping",
    time=1_000_000.0,
    text="Job a is being stopped <!channel> & more.",
    job="a",
    tenant="amber",
    owner="ann@example.org",
    rule="consecutive:k=2",
    best_step=10,
    best_score=0.61,
    best_checkpoint="checkpoint-10",
    author="policy",
)


class Receiver:
    """A web server that keeps what it gets and answers as it is told."""

    def __init__(self):
        self.got = []
        self.answers = []
        self.hang = threading.Event()
        self.hang.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append((self.path, dict(self.headers), body))
                receiver.hang.wait(120)
                code = receiver.answers.pop(0) if receiver.answers else 200
                self.send_response(code)
                if code in {301, 302, 307, 308}:
                    self.send_header("Location", receiver.url("/elsewhere"))
                self.end_headers()

            def do_GET(self):
                receiver.got.append((self.path, {}, b""))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def url(self, path="/hook"):
        return f"http://127.0.0.1:{self.server.server_port}{path}"

    def close(self):
        self.hang.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def receiver():
    receiver = Receiver()
    yield receiver
    receiver.close()


# ---- one webhook


def test_a_notice_arrives_whole_and_signed(receiver):
    Webhook(receiver.url(), secret="s3cret").send(NOTICE)
    ((_, headers, body),) = receiver.got
    assert msgspec.json.decode(body, type=Notice) == NOTICE
    assert headers["Content-Type"] == "application/json"
    assert headers["Evalstop-Notice"] == "12.0"
    assert verify("s3cret", headers, body)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda h, b: (h, b + b" "), "body"),
        (lambda h, b: (h | {"Evalstop-Timestamp": "1000001"}, b), "timestamp"),
        (lambda h, b: (h | {"Evalstop-Signature": "v1=00"}, b), "signature"),
        (lambda h, b: (h | {"Evalstop-Signature": "ü"}, b), "odd signature"),
        (lambda h, b: (h | {"Evalstop-Timestamp": "-5"}, b), "odd timestamp"),
        (lambda h, b: (h | {"Evalstop-Timestamp": "٣"}, b), "digits that are not ASCII"),
        (lambda _, b: ({}, b), "no headers"),
    ],
)
def test_what_was_forged_is_refused(change, why):
    body = b'{"id": "1.0"}'
    headers = {
        "evalstop-timestamp": "1000000",
        "evalstop-signature": signature("k", "1000000", body),
    }
    assert verify("k", headers, body, now=1_000_000.0)
    renamed = {name.title(): value for name, value in headers.items()}
    assert not verify("k", *change(renamed, body), now=1_000_000.0), why


@pytest.mark.parametrize(("age", "fresh"), [(0, True), (299, True), (301, False), (-301, False)])
def test_what_was_replayed_later_is_refused(age, fresh):
    signed = signature("k", "1000000", b"x")
    headers = {"Evalstop-Timestamp": "1000000", "Evalstop-Signature": signed}
    assert verify("k", headers, b"x", now=1_000_000.0 + age) is fresh
    assert not verify("other", headers, b"x", now=1_000_000.0)


@pytest.mark.parametrize("code", [301, 302, 307, 308])
def test_redirects_are_not_followed(receiver, code):
    receiver.answers = [code]
    with pytest.raises(EvalStopError, match=f"answered {code}"):
        Webhook(receiver.url(), secret="k").send(NOTICE)
    assert [path for path, _, _ in receiver.got] == ["/hook"]


@pytest.mark.parametrize(
    "url", ["", "hooks.example.org", "file:///etc/passwd", "ftp://x/y", "https://", "gopher://x"]
)
def test_only_the_web_is_posted_to(url):
    with pytest.raises(InputError, match="webhook's URL"):
        Webhook(url)


def test_errors_hold_no_secret(receiver):
    receiver.answers = [500]
    hook = Webhook(receiver.url("/hook?token=t0ken"), secret="s3cret")
    with pytest.raises(EvalStopError) as failed:
        hook.send(NOTICE)
    assert str(failed.value) == "the receiver answered 500"
    nobody = Webhook("http://127.0.0.1:1/t0ken", secret="s3cret", time_limit_s=1)
    with pytest.raises(EvalStopError) as failed:
        nobody.send(NOTICE)
    assert "t0ken" not in str(failed.value)
    assert "s3cret" not in str(failed.value)


def test_a_receiver_that_hangs_is_left(receiver):
    receiver.hang.clear()
    with pytest.raises(EvalStopError, match="cannot be reached"):
        Webhook(receiver.url(), time_limit_s=0.3).send(NOTICE)
    assert not receiver.hang.is_set()


def test_slack_gets_a_message_in_which_nothing_is_markup(receiver):
    Webhook(receiver.url(), form="slack").send(NOTICE)
    ((_, _, body),) = receiver.got
    message = json.loads(body)
    assert "<!channel>" not in message["text"]
    assert "&lt;!channel&gt; &amp; more" in message["text"]
    assert message["blocks"][0]["text"]["type"] == "mrkdwn"
    assert {"type": "mrkdwn", "text": "*Best score*\n0.61"} in message["blocks"][1]["fields"]


# ---- mail


class Inbox:
    def __init__(self):
        self.got = []

    async def handle_DATA(self, _server, _session, envelope):  # noqa: N802 -- the library's name
        self.got.append(envelope)
        return "250 OK"


@pytest.fixture
def smtp():
    port = free_port()
    inbox = Inbox()
    server = SmtpServer(inbox, hostname="127.0.0.1", port=port, ready_timeout=120)
    server.start()
    yield inbox, port
    server.stop()


def test_the_owner_and_the_operators_get_a_mail(smtp):
    inbox, port = smtp
    Mail("127.0.0.1", port=port, sender="evalstop@x.org", to=["ops@x.org"]).send(NOTICE)
    (envelope,) = inbox.got
    assert envelope.rcpt_tos == ["ops@x.org", "ann@example.org"]
    message = message_from_bytes(envelope.content)
    assert message["Subject"] == "Job a is being stopped"
    assert message["Message-ID"] == "<12.0.1000000@evalstop>"
    text = message.get_payload()
    assert "Best step: 10" in text
    assert "evalstop undo a" in text


def test_nobody_is_mailed_who_has_no_address(smtp):
    inbox, port = smtp
    mail = Mail("127.0.0.1", port=port, sender="evalstop@x.org")
    mail.send(msgspec.structs.replace(NOTICE, owner="not an address"))
    assert not inbox.got
    mail = Mail("127.0.0.1", port=port, sender="evalstop@x.org", to=["o@x.org"], to_owner=False)
    mail.send(NOTICE)
    assert inbox.got[0].rcpt_tos == ["o@x.org"]


@pytest.mark.parametrize("job", ["a\r\nBcc: evil@x.org", "a\nb", "x" * 500])
def test_a_name_cannot_write_headers(smtp, job):
    inbox, port = smtp
    mail = Mail("127.0.0.1", port=port, sender="evalstop@x.org", to=["ops@x.org"])
    mail.send(msgspec.structs.replace(NOTICE, job=job, owner="ann@x.org\r\nBcc: e@x.org"))
    (envelope,) = inbox.got
    assert envelope.rcpt_tos == ["ops@x.org"]
    assert message_from_bytes(envelope.content)["Bcc"] is None


def test_encryption_is_not_given_up_quietly(smtp):
    inbox, port = smtp
    mail = Mail("127.0.0.1", port=port, sender="e@x.org", to=["o@x.org"], starttls=True)
    with pytest.raises(EvalStopError, match="did not take it"):
        mail.send(NOTICE)
    assert not inbox.got
    with pytest.raises(InputError, match="not sent in the clear"):
        Mail("h", sender="e@x.org", user="u", password="p")


@pytest.mark.parametrize("address", ["", "ops", "a b@x.org", "a@x.org,b@x.org", "a@x.org\nBcc: b"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(InputError, match="expected a mail address"):
        Mail("h", sender="e@x.org", to=[address])


def test_a_mail_server_that_is_not_there_is_told():
    with pytest.raises(EvalStopError, match="did not take it: ConnectionRefusedError"):
        Mail("127.0.0.1", port=1, sender="e@x.org", to=["o@x.org"]).send(NOTICE)


# ---- the outbox


class Told:
    """A receiver in memory that fails as often as it is asked to."""

    def __init__(self, failures=0):
        self.failures = failures
        self.tries = 0
        self.notices = []

    def send(self, notice):
        self.tries += 1
        if self.failures:
            self.failures -= 1
            message = "not now"
            raise EvalStopError(message)
        self.notices.append(notice)

    def kinds(self):
        return [notice.kind for notice in self.notices]


@pytest.fixture
def outbox(platform):
    """Make an outbox of the platform's controller, as it is after a restart."""
    made = []

    def make(*targets, start=True):
        box = Outbox(
            platform.controller,
            store=platform.store,
            documents=platform.documents,
            targets=targets,
            now=platform.clock.now,
        )
        made.append(box)
        if start:
            box.start()
        return box

    yield make
    for box in made:
        box.close()


def stopped_run(platform, job="a"):
    """Let a job decline until it is stopped and gone."""
    platform.submit(job, tenant="amber", labels={"owner": "ann@x.org", "direction": "max"})
    platform.look()
    for step, score in enumerate([0.5, 0.6, 0.55, 0.5]):
        platform.report(job, step, score)
    platform.look()
    assert platform.phase(job) == "stopped_by_policy"


def test_a_stop_is_told_before_and_after(platform, outbox):
    told = Told()
    outbox(Target(name="t", receiver=told))
    stopped_run(platform)
    eventually(lambda: told.kinds() == ["stopping", "stopped"], 120)
    before, after = told.notices
    assert (before.job, before.tenant, before.owner) == ("a", "amber", "ann@x.org")
    assert before.rule == "consecutive:k=2"
    assert (before.best_step, before.best_score) == (1, 0.6)
    assert "is being stopped" in before.text
    assert "was stopped and its GPUs are free" in after.text


def test_a_healthy_run_and_a_crash_are_no_news(platform, outbox):
    told = Told()
    box = outbox(Target(name="t", receiver=told))
    for job, code in (("a", 0), ("b", 3)):
        platform.submit(job)
        platform.look()
        platform.report(job, 1, 0.5)
        platform.backend.finish(job, code)
        platform.look()
    platform.command("freeze", actor="ann")
    eventually(lambda: told.kinds() == ["operator"], 120)
    assert told.notices[0].text == "ann ordered freeze."
    eventually(lambda: box.waiting() == 0, 120)


def test_scores_are_told_in_the_metrics_own_direction(platform, outbox):
    told = Told()
    outbox(Target(name="t", receiver=told))
    platform.submit("a", labels={"direction": "min"})
    platform.look()
    for step, score in enumerate([-3.0, -2.0, -2.5, -3.0]):  # turned already: higher is better
        platform.report("a", step, score)
    eventually(lambda: told.kinds() == ["stopping"], 120)
    assert told.notices[0].best_score == 2.0
    assert "best 2 at step 1" in told.notices[0].reason


def test_a_receiver_hears_only_what_it_wants(platform, outbox):
    ours, theirs, ends = Told(), Told(), Told()
    box = outbox(
        Target(name="ours", receiver=ours, tenants=("amber",)),
        Target(name="theirs", receiver=theirs, tenants=("blue",)),
        Target(name="ends", receiver=ends, kinds=("stopped",)),
    )
    stopped_run(platform)
    eventually(lambda: ours.kinds() == ["stopping", "stopped"] and box.waiting() == 0, 120)
    assert (theirs.kinds(), ends.kinds()) == ([], ["stopped"])


def test_a_failed_notice_is_tried_again_with_growing_pauses(platform, outbox):
    told, seen = Told(failures=2), threading.Event()
    send = told.send

    def send_once_the_trouble_was_seen(notice):
        if not told.failures:
            seen.wait(120)
        send(notice)

    told.send = send_once_the_trouble_was_seen
    began = time.monotonic()
    box = outbox(Target(name="t", receiver=told))
    platform.command("freeze", actor="ann")
    eventually(lambda: box.troubles() == ["t was not told of 1.e: not now"], 120)
    seen.set()
    eventually(lambda: told.kinds() == ["operator"], 120)
    assert told.tries == 3
    assert time.monotonic() - began > 2.9  # one second, then two
    eventually(lambda: box.troubles() == [] and box.waiting() == 0, 120)


def test_a_receiver_that_hangs_holds_up_no_other(platform, outbox, receiver):
    receiver.hang.clear()
    told = Told()
    outbox(Target(name="hangs", receiver=Webhook(receiver.url())), Target(name="t", receiver=told))
    stopped_run(platform)
    eventually(lambda: told.kinds() == ["stopping", "stopped"], 120)
    receiver.hang.set()


def test_what_waited_is_told_after_a_restart_and_nothing_twice(platform, outbox):
    down, told = Told(failures=10_000), Told()
    box = outbox(Target(name="down", receiver=down), Target(name="t", receiver=told))
    stopped_run(platform)
    eventually(lambda: told.kinds() == ["stopping", "stopped"] and down.tries > 0, 120)
    eventually(lambda: box.waiting() == 2, 120)
    box.close()
    platform.restart()
    up = Told()
    box = outbox(Target(name="down", receiver=up), Target(name="t", receiver=told))
    eventually(lambda: up.kinds() == ["stopping", "stopped"] and box.waiting() == 0, 120)
    assert told.kinds() == ["stopping", "stopped"]


def test_what_was_decided_while_nobody_listened_is_told(platform, outbox):
    outbox(start=False).close()  # a first start leaves its mark in the log
    stopped_run(platform)
    told = Told()
    outbox(Target(name="t", receiver=told))
    eventually(lambda: told.kinds() == ["stopping", "stopped"], 120)


def test_history_before_the_first_start_is_not_told(platform, outbox):
    stopped_run(platform)
    told = Told()
    outbox(Target(name="t", receiver=told))
    platform.command("freeze", actor="ann")
    eventually(lambda: told.kinds() == ["operator"], 120)


def test_a_notice_older_than_a_day_is_given_up(platform, outbox, caplog):
    told = Told(failures=1)
    outbox(start=False).close()  # a first start leaves its mark in the log
    platform.command("freeze", actor="ann")
    platform.clock.advance(86_401)
    box = outbox(Target(name="t", receiver=told))
    eventually(lambda: told.tries == 1 and box.waiting() == 0, 120)
    assert told.kinds() == []
    assert "given up: t was not told" in caplog.text


def test_a_receiver_with_a_bug_does_not_end_the_telling(platform, outbox):
    class Bug(Told):
        def send(self, notice):
            if not self.tries:
                self.tries += 1
                return 1 / 0
            return super().send(notice)

    told = Bug()
    outbox(Target(name="t", receiver=told))
    platform.command("freeze", actor="ann")
    eventually(lambda: told.kinds() == ["operator"], 120)


class FullDisk:
    """Documents that cannot be written or deleted while ``full`` is set, as on a full disk."""

    def __init__(self, inner):
        self.inner = inner
        self.full = threading.Event()
        self.refused = 0

    def _refuse(self):
        if self.full.is_set():
            self.refused += 1
            message = "database or disk is full"
            raise StoreError(message)

    def put(self, *arguments):
        self._refuse()
        self.inner.put(*arguments)

    def delete(self, *arguments):
        self._refuse()
        self.inner.delete(*arguments)

    def __getattr__(self, name):
        return getattr(self.inner, name)


@pytest.mark.parametrize("when", ["before the start", "while it runs"])
def test_a_full_disk_delays_the_telling_and_does_not_end_it(platform, outbox, monkeypatch, when):
    monkeypatch.setattr("evalstop.service.notify.outbox._FIRST_PAUSE_S", 0.02)
    disk = platform.documents = FullDisk(platform.documents)
    outbox(start=False).close()  # a first start leaves its mark in the log
    told = Told()
    if when == "before the start":
        platform.command("freeze", actor="ann")
        disk.full.set()
    box = outbox(Target(name="t", receiver=told))
    if when == "while it runs":
        disk.full.set()
        platform.command("freeze", actor="ann")
    eventually(lambda: disk.refused > 2 and "disk is full" in "".join(box.troubles()), 120)
    assert told.kinds() == []
    disk.full.clear()
    eventually(lambda: told.kinds() == ["operator"] and not box.troubles(), 120)
    platform.command("unfreeze", actor="ann")
    eventually(lambda: told.kinds() == ["operator", "operator"], 120)


def test_what_was_told_while_the_disk_filled_up_does_not_end_the_telling(platform, outbox):
    disk = platform.documents = FullDisk(platform.documents)
    told = Told()
    send = told.send

    def fill_up_and_send(notice):
        disk.full.set()
        send(notice)

    told.send = fill_up_and_send
    outbox(Target(name="t", receiver=told))
    platform.command("freeze", actor="ann")
    eventually(lambda: told.kinds() == ["operator"] and disk.refused >= 1, 120)
    disk.full.clear()
    platform.command("unfreeze", actor="ann")
    eventually(lambda: told.kinds() == ["operator", "operator"], 120)
