"""The live platform under load: 10,000 live jobs, 1,000 evaluations a second over HTTP.

Every batch is answered only when it is durable in SQLite (synchronous=FULL). Server and load run
in a process each, on the same machine; the latency is the client's, so that it covers HTTP, the
decision and the disk. Then the log is grown to a million entries and read again.

    python benchmarks/bench_live.py [--jobs 10000] [--rate 1000] [--seconds 30] [--log 1000000]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import uvicorn

from evalstop.config.settings import PolicySettings, Settings, make_policy
from evalstop.core.cluster import ClusterState
from evalstop.core.events import CapacityChanged, EvalReported, JobStarted, JobSubmitted
from evalstop.core.job import JobSpec
from evalstop.core.kernel import Kernel
from evalstop.core.points import EvalPoint
from evalstop.custody import FileCustody
from evalstop.policies.modes import Mode
from evalstop.ports import Entry, Launch, Order
from evalstop.service.api import create_app
from evalstop.service.carry_out import BackendCarryOut
from evalstop.service.clock import SystemClock
from evalstop.service.controller import Controller
from evalstop.service.custodian import Custodian
from evalstop.service.pauses import keep_pauses_short, tcp_listener
from evalstop.service.platform import Parts, Platform
from evalstop.service.poller import Poller
from evalstop.service.recover import decide
from evalstop.service.snapshot import Snapshots, fold
from evalstop.service.tokens import Principal, Scope, Tokens
from evalstop.store.sqlite import SqliteStore
from evalstop.testing import FakeBackend
from evalstop.testing.fakes import _Run

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence
    from concurrent.futures import Future
    from multiprocessing.connection import Connection

    from evalstop.service.controller import Build

BATCH = 10
CONNECTIONS = 8

# Bounds of issue 5. Measured 2026-11 on 2 shared cores; the margin is in the printed figures.
MOST_P99_S = 0.050
MOST_RSS_MIB = 500
MOST_RESTART_S = 10.0


def settings() -> Settings:
    """Return the settings under test: the default rule, enforced, no windows."""
    policy = PolicySettings(mode=Mode.ENFORCE, warn_s=0.0, backed_s=0.0)
    return Settings(policy=policy)


def fill(store: SqliteStore, backend: FakeBackend, jobs: int) -> None:
    """Write a log in which ``jobs`` jobs run, one GPU each, and have the backend run them."""
    events = [CapacityChanged(time=1.0, gpus=jobs)]
    events += [
        JobSubmitted(
            time=1.0, job=JobSpec(id=f"j{n}", tenant=f"t{n % 50}", job_type="rlhf", estimated_s=1e6)
        )
        for n in range(jobs)
    ]
    kernel = fresh_kernel()
    entries: list[Entry] = []

    def take(event: object) -> None:
        kernel.state.apply(event)
        actions = tuple(decide(kernel, event))
        for action in actions:
            kernel.state.promise(action)
        entries.append(Entry(sequence=len(entries) + 1, event=event, actions=actions))

    for event in events:
        take(event)
    for n in range(jobs):
        take(JobStarted(time=2.0, job=f"j{n}", gpus=1))
        backend.start(Order(key=f"1.{n}", job=f"j{n}", gpus=1, launch=Launch(command=("last",))))
    store.append(entries)


def fresh_kernel():  # noqa: ANN201 -- a benchmark
    """Return a kernel with the policy under test."""
    return Kernel(ClusterState(), make_policy(settings()))


class WideBackend(FakeBackend):
    """Finds a free GPU at once: the fake's own search is quadratic."""

    def start(self, order: Order) -> None:
        """Run a job on the GPU of its own number."""
        self._runs[order.job] = _Run(order=order, devices=(order.job,))


def serve(folder: Path, listener: socket.socket, jobs: int, ready: Connection) -> None:
    """Run the server until it is killed."""
    store = SqliteStore(folder / "log.sqlite")
    backend = WideBackend(gpus=jobs)
    fill(store, backend, jobs)
    tokens = Tokens(store)
    policy = make_policy(settings())
    carry_out = BackendCarryOut(backend, store)
    custodian = Custodian(FileCustody(folder / "custody"), store, every_s=5.0)
    controller = Controller(store=store, policy=policy, clock=SystemClock(), carry_out=carry_out)
    custodian.attach(controller)
    platform = Platform(
        Parts(
            controller=controller,
            carry_out=carry_out,
            backend=backend,
            store=store,
            documents=store,
            custodian=custodian,
            tokens=tokens,
            watches=policy.watches,
        )
    )
    meter = Meter(controller, store)
    controller.start()
    Poller(carry_out, every_s=0.1).start()
    custodian.start()
    config = uvicorn.Config(
        create_app(platform, tokens), log_level="error", access_log=False, lifespan="off"
    )
    keep_pauses_short()
    ready.send(tokens.make(Principal(name="bench", scope=Scope.ADMIN)))

    def figures() -> None:
        while True:
            ready.recv()
            ready.send(meter.figures())

    threading.Thread(target=figures, daemon=True).start()
    uvicorn.Server(config).run(sockets=[listener])


class Meter:
    """Times decisions from within: from the hand-over by HTTP until they are durable."""

    def __init__(self, controller: Controller, store: SqliteStore) -> None:
        self._decisions: list[float] = []
        self._writes: list[float] = []
        ask, append = controller.ask, store.append

        def timed_ask(build: Build) -> Future[list[Entry]]:
            began = time.monotonic()
            future = ask(build)
            future.add_done_callback(lambda _: self._decisions.append(time.monotonic() - began))
            return future

        def timed_append(entries: Sequence[Entry]) -> None:
            began = time.monotonic()
            append(entries)
            self._writes.append(time.monotonic() - began)

        controller.ask, store.append = timed_ask, timed_append

    def figures(self) -> dict[str, Any]:
        """Return what was measured since the last call."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        decisions, self._decisions = self._decisions, []
        writes, self._writes = self._writes, []
        return {
            "peak_mib": usage.ru_maxrss / 1024,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "decisions": decisions,
            "writes": writes,
        }


class Generator:
    """Sends batches at a steady rate over kept connections, whatever the answers take.

    Written on bare sockets, so that what is measured is the server: an HTTP client of comfort
    takes a millisecond of CPU for each request, on the cores the server needs.
    """

    def __init__(self, port: int, token: str, options: argparse.Namespace) -> None:
        self._port = port
        self._token = token
        self._interval = BATCH / options.rate
        self._total = int(options.seconds / self._interval)
        self._order = np.random.default_rng(0).permutation(options.jobs)
        self._begun = 0.0
        self.answered = np.full(self._total, np.nan)
        self.waited = np.full(self._total, np.nan)

    def request(self, number: int) -> bytes:
        """Return batch ``number`` as it goes over the wire."""
        job = int(self._order[number % len(self._order)])
        first = 1 + BATCH * (number // len(self._order))
        evals = [
            {
                "step": step,
                "score": 0.5 + 0.001 * step + 0.01 * ((step * 7919 + job) % 7 - 3),
                "stderr": 0.02,
            }
            for step in range(first, first + BATCH)
        ]
        body = json.dumps({"evals": evals}).encode()
        head = (
            f"POST /api/v1/jobs/j{job}/evals HTTP/1.1\r\nHost: bench\r\n"
            f"Authorization: Bearer {self._token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def connection(self, worker: int) -> None:
        """Send every batch of one connection when it is due, and time its answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        for number in range(worker, self._total, CONNECTIONS):
            due = self._begun + number * self._interval
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            request = self.request(number)
            sent = time.monotonic()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            answer = json.loads(await reader.readexactly(length))
            now = time.monotonic()
            self.answered[number], self.waited[number] = now - sent, now - due
            assert answer["accepted"] == BATCH, answer
        writer.close()

    async def run(self) -> float:
        """Send everything; return the seconds it took."""
        self._begun = time.monotonic() + 0.5
        await asyncio.gather(*(self.connection(worker) for worker in range(CONNECTIONS)))
        return time.monotonic() - self._begun


def load(port: int, token: str, options: argparse.Namespace, results: Connection) -> None:
    """Generate the load; in a process of its own, so that it shares no interpreter lock."""
    generator = Generator(port, token, options)
    gc.disable()
    cpu = time.process_time()
    took = asyncio.run(generator.run())
    busy = (time.process_time() - cpu) / took
    results.send((generator.answered, generator.waited, took, busy))


def grow(path: Path, entries: int, jobs: int) -> None:
    """Append evaluations until the log has ``entries`` entries; each job gets its share."""
    store = SqliteStore(path)
    sequence = store.last_sequence()
    last = next(iter(store.read(after=sequence - 1))).event.time
    kinds = []
    while sequence < entries:
        sequence += 1
        job = sequence % jobs
        step = 1_000_000 + sequence // jobs
        point = EvalPoint(step=step, score=0.5 + 0.001 * (sequence // jobs), stderr=0.02)
        kinds.append(
            Entry(sequence=sequence, event=EvalReported(time=last, job=f"j{job}", point=point))
        )
        if len(kinds) == 20_000:
            store.append(kinds)
            kinds = []
    store.append(kinds)


def restart_time(folder: Path, jobs: int) -> float:
    """Return the seconds a restart takes with a snapshot 20,000 entries old, and print more."""
    store = SqliteStore(folder / "log.sqlite")
    snapshots = Snapshots(folder / "snapshots", "bench")
    began = time.process_time()
    folded = fold(store, make_policy(settings()), None)
    print(f"replay of {folded.recovered.sequence} entries: {time.process_time() - began:.1f} s CPU")
    began = time.process_time()
    path = snapshots.write(folded)
    size = path.stat().st_size / 2**20
    print(
        f"snapshot: {size:.0f} MiB, written in {time.process_time() - began:.1f} s CPU, elsewhere"
    )
    del folded
    grow(folder / "log.sqlite", store.last_sequence() + 20_000, jobs)
    began, cpu = time.monotonic(), time.process_time()
    controller = Controller(
        store=store,
        policy=make_policy(settings()),
        clock=SystemClock(),
        carry_out=BackendCarryOut(WideBackend(gpus=jobs), store),
        snapshots=snapshots,
    )
    restart = time.monotonic() - began
    print(
        f"restart with {controller.sequence} entries, the last 20,000 without snapshot: "
        f"{restart:.1f} s ({time.process_time() - cpu:.1f} s CPU)"
    )
    return restart


def under_load(folder: Path, options: argparse.Namespace) -> tuple[float, float]:
    """Serve and load; print the figures; return p99 in seconds and the peak memory in MiB."""
    listener = tcp_listener()
    listener.bind(("127.0.0.1", 0))
    spawn = multiprocessing.get_context("spawn")
    server_end, end = spawn.Pipe()
    server = spawn.Process(
        target=serve, args=(folder, listener, options.jobs, server_end), daemon=True
    )
    server.start()
    token = end.recv()
    time.sleep(2.5)
    end.send("figures")
    before = end.recv()
    ours, theirs = spawn.Pipe()
    generator = spawn.Process(
        target=load, args=(listener.getsockname()[1], token, options, theirs), daemon=True
    )
    generator.start()
    answered, waited, took, generator_busy = ours.recv()
    end.send("figures")
    after = end.recv()
    server.kill()
    server.join()
    print(f"load average of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    sent = BATCH * len(answered)
    print(f"sent {sent} evals in {took:.1f} s: {sent / took:.0f} evals/s")
    tell("answer of a batch, at the client", answered)
    tell("the same, from when it was due", waited)
    tell("decision, until it is durable", np.array(after["decisions"]))
    tell("of which the log's write", np.array(after["writes"]))
    busy = (after["cpu_s"] - before["cpu_s"]) / took
    print(
        f"the server used {after['peak_mib']:.0f} MiB at its peak and {busy:.2f} of a core, the "
        f"generator {generator_busy:.2f}"
    )
    return float(np.quantile(answered, 0.99)), after["peak_mib"]


def tell(what: str, seconds: np.ndarray) -> None:
    """Print quantiles in milliseconds."""
    p50, p99, most = 1e3 * np.quantile(seconds, [0.5, 0.99, 1.0])
    print(f"{what + ':':<36}p50 {p50:6.1f} ms, p99 {p99:6.1f} ms, max {most:6.1f} ms")


def main() -> int:
    """Run both parts; exit code 1 if a bound does not hold."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--log", type=int, default=1_000_000)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-live-"))
    p99, peak = under_load(folder, options)
    restart = 0.0
    if options.log:
        grow(folder / "log.sqlite", options.log, options.jobs)
        restart = restart_time(folder, options.jobs)
    held = p99 < MOST_P99_S and peak < MOST_RSS_MIB and restart < MOST_RESTART_S
    print("all bounds hold" if held else "A BOUND DOES NOT HOLD")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
