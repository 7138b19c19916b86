"""Scores out of a training run: buffered, retried, off the training thread, never in the way.

What it promises the training run:

- ``report`` takes microseconds, never blocks on the network and never raises;
- reports wait in a bounded buffer (the oldest go to the file when it is full) and are sent in
  batches from a daemon thread, again and again with growing pauses while the server is away;
- a batch sent twice counts once: its idempotency key stays with it;
- at exit the buffer is drained for at most ``drain_s`` seconds; what is left goes to the file;
- where there is no server, or it refuses a report (4xx), the report goes to the file;
- in a distributed run the first rank alone reports (R21);
- standard library only, and ``urllib`` is imported by the thread, not by the import.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from evalstop.client.wire import Destination, batch_body, file_line, is_first_rank, make_report

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from evalstop.client.wire import Report

__all__ = ["Asker", "Reporter", "Sender", "flush", "report", "should_stop"]

_BATCH = 500
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_TIME_OUT_S = 10.0
_LATER = frozenset({408, 425, 429})
_DOES_NOT_FIT = 422
_SERVER_ERROR = 500
_CLIENT_ERROR = 400


class Sender(Protocol):
    """Posts one batch."""

    def __call__(
        self, address: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float
    ) -> tuple[int, bytes]:
        """Return status and body of the answer.

        Raises:
            OSError: if no answer came.
        """
        ...


def post(
    address: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float
) -> tuple[int, bytes]:
    """Post over HTTP; see `Sender`."""
    import urllib.error  # noqa: PLC0415 -- 25 ms that the training script need not pay
    import urllib.request  # noqa: PLC0415 -- as above

    request = urllib.request.Request(address, data=body, headers=dict(headers), method="POST")  # noqa: S310 -- the operator's own address
    with _answered():
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310 -- as above
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()


@contextlib.contextmanager
def _answered() -> Iterator[None]:
    """Take an answer that broke off, as when a server is killed, for none.

    Raises:
        OSError: it broke off; what `http.client` says of that is no OSError.
    """
    import http.client  # noqa: PLC0415 -- part of what urllib.request imports

    try:
        yield
    except http.client.HTTPException as error:
        message = f"the answer broke off: {type(error).__name__}"
        raise ConnectionError(message) from error


class Asker(Protocol):
    """Gets one document."""

    def __call__(self, address: str, headers: Mapping[str, str], *, timeout_s: float) -> bytes:
        """Return the body of the answer.

        Raises:
            OSError: if no answer came, or one that says no.
        """
        ...


def get(address: str, headers: Mapping[str, str], *, timeout_s: float) -> bytes:
    """Get over HTTP; see `Asker`."""
    import urllib.request  # noqa: PLC0415 -- 25 ms that the training script need not pay

    request = urllib.request.Request(address, headers=dict(headers))  # noqa: S310 -- the operator's own address
    with _answered(), urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310 -- as above
        body: bytes = answer.read()
    return body


def _attempt() -> int | None:
    """Return which start of the job this is, None where evalstop did not start it or the first."""
    text = os.environ.get("EVALSTOP_ATTEMPT", "")
    return int(text) if text.isdecimal() and int(text) else None


class Reporter:
    """Sends one job's evaluations; see the module for what it promises.

    Args:
        destination: where to; read from the environment if not given.
        capacity: reports the buffer holds.
        drain_s: longest time that leaving the program may take.
        ask_every_s: how often a job that calls `should_stop` asks the server anew: a stop that
            waits for a save or a warning comes after the answer to the last report.
        sender, asker: post a batch, get a document; for tests.
    """

    def __init__(
        self,
        destination: Destination | None = None,
        *,
        capacity: int = 10_000,
        drain_s: float = 5.0,
        ask_every_s: float = 10.0,
        sender: Sender = post,
        asker: Asker = get,
    ) -> None:
        self.destination = destination or Destination.from_environment()
        self._capacity = capacity
        self._drain_s = drain_s
        self._ask_every_s = ask_every_s
        self._sender = sender
        self._asker = asker
        self._stop_asked = False
        self._complained = False
        self._start_over()
        atexit.register(self.close)
        # A forked child has no sender thread, and the parent sends what the parent was given.
        os.register_at_fork(after_in_child=self._start_over)

    def _start_over(self) -> None:
        self._waiting: deque[Report] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._in_flight = 0
        self._closing = False
        self._wondering = False

    def report(
        self,
        step: object,
        score: object,
        *,
        stderr: object = None,
        n_items: object = None,
        metric: str | None = None,
        direction: str | None = None,
        proxy: object = None,
        checkpoint: str | None = None,
        epoch_key: str | None = None,
        eval_id: str | None = None,
        attempt: object = None,
        loss: object = None,
        signals: Mapping[str, object] | None = None,
    ) -> None:
        """Report one evaluation. Never raises and never blocks; see `EvalPoint` for the fields.

        Args:
            step: training step of the evaluated checkpoint.
            score: its score in the metric's own direction.
            stderr: standard error of ``score``, if known.
            n_items: evaluated items, if known.
            metric: name of the metric; empty for the job's primary one.
            direction: "max" or "min"; which scores of the metric are better.
            proxy: training reward at this step.
            checkpoint: name or path of the evaluated checkpoint.
            epoch_key: identity of the eval suite, judge, prompt and hardware.
            eval_id: tells replicates of one step apart.
            attempt: restart counter of the job; the one evalstop started it under by default.
            loss: training loss at this step.
            signals: what training says beside the score (KL, entropy, response length ...), by
                name; shown with a decision, and never part of one.
        """
        try:
            if not is_first_rank():
                return
            if direction not in {None, "", "max", "min"}:
                # Filed, it would read as "min": the worst model would be the best.
                self._complain(f"direction must be 'max' or 'min', but got {direction!r}: left out")
                direction = None
            made = make_report(
                step=step,
                score=score,
                optional={
                    "stderr": stderr,
                    "n_items": n_items,
                    "metric": metric,
                    "direction": direction,
                    "proxy": proxy,
                    "checkpoint": checkpoint,
                    "epoch_key": epoch_key,
                    "eval_id": eval_id,
                    "attempt": _attempt() if attempt is None else attempt,
                    "loss": loss,
                    "signals": signals,
                },
                reported_at=time.time(),
            )
            self._take(made)
        except Exception as error:  # noqa: BLE001 -- no report is worth a training run
            self._complain(f"a report was lost: {type(error).__name__}: {error}")

    def should_stop(self) -> bool:
        """Say whether the server wants this job to stop, as last heard. Never waits."""
        if self.destination.url and not self._wondering:
            with self._changed:
                self._wondering = True
                self._ensure_thread()
                self._changed.notify_all()
        return self._stop_asked

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until every report has been sent or filed; return whether that came to pass."""
        deadline = time.monotonic() + (self._drain_s if timeout_s is None else timeout_s)
        with self._changed:
            while self._waiting or self._in_flight:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def close(self) -> None:
        """Drain within the bound; file what is left. Called at exit by itself."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self.flush()
        with self._changed:
            left = list(self._waiting)
            self._waiting.clear()
        if left:
            self._file(left)

    def _take(self, made: Report) -> None:
        if not self.destination.url:
            self._file([made])
            return
        overflow: Report | None = None
        with self._changed:
            if len(self._waiting) >= self._capacity:
                overflow = self._waiting.popleft()
            self._waiting.append(made)
            self._ensure_thread()
            self._changed.notify_all()
        if overflow is not None:
            self._file([overflow])

    def _ensure_thread(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._send_all, name="evalstop-reporter", daemon=True
            )
            self._thread.start()

    def _send_all(self) -> None:
        ask_at = 0.0
        while True:
            with self._changed:
                while not self._waiting:
                    left = ask_at - time.monotonic() if self._wondering else None
                    if left is not None and left <= 0:
                        break
                    self._changed.wait(left)
                batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
                self._in_flight = len(batch)
            if not batch:
                self._ask()
                ask_at = time.monotonic() + self._ask_every_s
                continue
            try:
                self._send_until_settled(batch)
            except Exception as error:  # noqa: BLE001 -- the thread must live
                self._complain(f"{type(error).__name__}: {error}")
                self._file(batch)
            with self._changed:
                self._in_flight = 0
                self._changed.notify_all()

    def _send_until_settled(self, batch: Sequence[Report]) -> None:
        key = os.urandom(16).hex()
        body = batch_body(batch)
        pause = _FIRST_PAUSE_S
        while True:
            try:
                status, answer = self._sender(
                    self.destination.address,
                    body,
                    self.destination.headers(key),
                    timeout_s=_TIME_OUT_S,
                )
            except OSError as error:
                self._complain(f"{self.destination.url} does not answer ({error}); will try again")
            else:
                if status < _CLIENT_ERROR:
                    self._read_answer(answer)
                    return
                if status == _DOES_NOT_FIT and len(batch) > 1:
                    for one in batch:  # what is wrong with one must not cost the others
                        self._send_until_settled([one])
                    return
                if status < _SERVER_ERROR and status not in _LATER:
                    said = answer.decode(errors="replace")[:500]
                    self._complain(f"{self.destination.url} refused reports ({status}): {said}")
                    self._file(batch)
                    return
            if self._closing:
                # One try has been made since we were asked to leave.
                self._file(batch)
                return
            with self._changed:
                self._changed.wait_for(lambda: self._closing, timeout=pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _ask(self) -> None:
        # No answer is no order: the job goes on, and asks again.
        with contextlib.suppress(OSError, ValueError):
            said = json.loads(
                self._asker(
                    self.destination.job_address,
                    self.destination.headers(),
                    timeout_s=_TIME_OUT_S,
                )
            )
            if isinstance(said, dict) and said.get("stop"):
                self._stop_asked = True

    def _read_answer(self, answer: bytes) -> None:
        with contextlib.suppress(ValueError):
            said = json.loads(answer or b"{}")
            if isinstance(said, dict) and said.get("stop") is True:
                self._stop_asked = True

    def _file(self, reports: Sequence[Report]) -> None:
        lines = "".join(file_line(self.destination.job, report) for report in reports)
        try:
            with open(self.destination.file, "a", encoding="utf-8") as file:  # noqa: PTH123 -- pathlib costs import time
                file.write(lines)
        except OSError as error:
            self._complain(f"cannot write {self.destination.file}: {error}")

    def _complain(self, message: str) -> None:
        if not self._complained:
            self._complained = True
            _warn(message)


def _warn(message: str) -> None:
    import logging  # noqa: PLC0415 -- 10 ms that a run without complaints need not pay

    logging.getLogger("evalstop.client").warning("evalstop: %s", message)


_reporter: Reporter | None = None


def _shared() -> Reporter:
    global _reporter  # noqa: PLW0603 -- one reporter a process, made when first needed
    if _reporter is None:
        _reporter = Reporter()
    return _reporter


def report(step: object = None, score: object = None, **fields: object) -> None:
    """Report one evaluation of this job; see `Reporter.report`. Never raises.

    ``report(step=500, score=0.61, stderr=0.012, direction="max")``
    """
    try:
        _shared().report(step, score, **fields)  # type: ignore[arg-type] # an unknown field is caught below
    except Exception as error:  # noqa: BLE001 -- no report is worth a training run
        _warn(f"a report was lost: {type(error).__name__}: {error}")


def should_stop() -> bool:
    """Say whether the server wants this job to stop. Never raises, never blocks."""
    return _reporter is not None and _reporter.should_stop()


def flush(timeout_s: float | None = None) -> bool:
    """Wait for everything reported to be sent or filed; return whether it was."""
    return _reporter is None or _reporter.flush(timeout_s)
