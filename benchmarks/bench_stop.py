"""How long a stop takes with real processes, from the report to the next job's first breath.

A real `evalstop up` with one slot; job after job reports scores that fall. Measured on one clock,
that of the machine, by the processes themselves:

- from the moment the deciding report is sent until SIGTERM is in the job's handler,
- from there (the job exits at once) until the next job, which has been waiting, runs its first
  line: release proven, slot freed, next job decided on, written, and started as a process.

Windows for confirming, saving and warning are zero, as the bounds ask.

    python benchmarks/bench_stop.py [--stops 100]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np

import evalstop

# Bounds of issue 5, in seconds, at p99.
MOST_TO_SIGTERM_S = 0.100
MOST_TO_NEXT_S = 1.000

CONFIG = """
[cluster]
slots = 1
scheduler = "fifo"
[policy]
mode = "enforce"
rule = "consecutive:k=2"
warn_s = 0
backed_s = 0
save_s = 0
stops_per_tenant_hour = 100000
"""

JOB = r"""
import os, signal, sys, time
began = time.monotonic()
name = sys.argv[1] + "/" + os.environ["EVALSTOP_JOB_ID"]
def write(what, at):
    with open(name + ".aside", "w") as file:
        file.write(repr(at))
    os.rename(name + ".aside", name + what)
def end(number, frame):
    write(".term", time.monotonic())
    os._exit(0)
signal.signal(signal.SIGTERM, end)
write(".began", began)
while True:
    signal.pause()
"""


class Remote:
    """Speaks to the server as a job does."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"}

    def post(self, path: str, body: object) -> dict[str, object]:
        """Send one body and return the answer."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self._url}/api/v1{path}", data, self._headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())


def wait_for(path: Path, within_s: float = 30.0) -> float:
    """Wait for a file of a job's and return the time in it."""
    deadline = time.monotonic() + within_s
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.002)
    return float(path.read_text())


def measure(folder: Path, remote: Remote, stops: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return seconds to the answer, to SIGTERM, and from there to the next job, of each stop."""
    (folder / "job.py").write_text(JOB)
    for number in range(stops + 1):
        remote.post(
            "/jobs",
            {
                "id": f"j{number}",
                "job_type": "rlhf",
                "direction": "max",
                "command": [sys.executable, "-S", "-E", str(folder / "job.py"), str(folder)],
            },
        )
    rows = []
    for number in range(stops):
        wait_for(folder / f"j{number}.began")
        path = f"/jobs/j{number}/evals"
        for step in (1, 2):
            remote.post(path, {"evals": [{"step": step, "score": -0.1 * step}]})
        time.sleep(0.05)
        sent = time.monotonic()
        remote.post(path, {"evals": [{"step": 3, "score": -0.3}]})
        answered = time.monotonic()
        term = wait_for(folder / f"j{number}.term")
        began = wait_for(folder / f"j{number + 1}.began")
        rows.append((answered - sent, term - sent, began - term))
    remote.post(f"/jobs/j{stops}/stop", {})  # the last one, which waited for all others
    wait_for(folder / f"j{stops}.term")
    return tuple(np.array(rows).T)


def main() -> int:
    """Measure and report; exit code 1 if a bound does not hold."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stops", type=int, default=100)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-stop-"))
    (folder / "evalstop.toml").write_text(CONFIG)
    environment = dict(os.environ) | {"PYTHONPATH": str(Path(evalstop.__file__).parents[1])}
    server = subprocess.Popen(
        [sys.executable, "-m", "evalstop", "up", "--port", "0", "--dir", "state"],
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        url = next(
            word for line in server.stderr if "listens at" in line for word in line.split()[3:4]
        )
        token = (folder / "state" / "admin-token").read_text().strip()
        answer, term, following = measure(folder, Remote(url, token), options.stops)
    finally:
        server.terminate()
        server.wait()
    print(f"load average of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for what, seconds in (
        ("report sent to its answer", answer),
        ("report sent to SIGTERM in the job", term),
        ("SIGTERM to the next job's first line", following),
    ):
        p50, p99, most = 1e3 * np.quantile(seconds, [0.5, 0.99, 1.0])
        print(f"{what + ':':<38}p50 {p50:6.1f} ms, p99 {p99:6.1f} ms, max {most:6.1f} ms")
    held = np.quantile(term, 0.99) < MOST_TO_SIGTERM_S
    held = held and np.quantile(following, 0.99) < MOST_TO_NEXT_S
    print(f"{options.stops} stops: " + ("all bounds hold" if held else "A BOUND DOES NOT HOLD"))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
