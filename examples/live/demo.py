"""`make demo`: one queue of real training jobs, with EvalStop and without, side by side.

Two platforms run here, each with 8 slots under SRTF-Est and the same dozen jobs of three
tenants; one of them watches the jobs' held-out quality with the default rule and enforces it.
The jobs are `train.py`: a policy trained against a learned reward. Nothing is simulated, and
nothing is downloaded; the jobs sleep between steps, in place of a GPU's work. About 80 seconds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from train import World

import evalstop
from evalstop.cli.oversee import cluster_picture
from evalstop.cli.remote import Remote
from evalstop.core.errors import EvalStopError

SLOTS = 8
COMMAND = Path(sys.executable).with_name("evalstop")
TRAINER = Path(__file__).with_name("train.py")
LOOK_EVERY_S = 0.5
GIVE_UP_S = 900.0

JOBS = (
    # name, tenant, type, gpus, seconds, data, seed, more; the first two columns name the job
    ("rlhf-a", "ada", "rlhf", 2, 24, "narrow", 0, ()),
    ("rlhf-b", "ada", "grpo", 2, 24, "narrow", 1, ()),
    ("dpo-a", "ada", "dpo", 1, 16, "wide", 0, ()),
    ("sft", "ada", "lora", 1, 12, "wide", 1, ()),
    ("rlhf-c", "bo", "rlhf", 4, 28, "narrow", 2, ()),
    ("rlhf-d", "bo", "rlhf", 2, 20, "wide", 2, ()),
    ("rlhf-e", "bo", "ppo", 2, 22, "narrow", 3, ()),
    ("crash", "bo", "rlhf", 1, 16, "narrow", 4, ("--crash-at", "90")),
    ("rlhf-f", "cy", "rlhf", 4, 22, "narrow", 5, ()),
    ("dpo-b", "cy", "dpo", 2, 18, "wide", 3, ()),
    ("rlhf-g", "cy", "grpo", 1, 16, "wide", 4, ()),
    ("blind", "cy", "rlhf", 1, 14, "wide", 5, ("--broken-judge",)),
)
STEPS = 200

CONFIG = """
[cluster]
slots = {slots}
scheduler = "srtf-est"
poll_s = 0.1
[policy]
mode = "enforce"
rule = "{rule}"
warn_s = 0
backed_s = 5
stops_per_tenant_hour = 100
[custody]
every_s = 0.3
settle_s = 0.1
"""

console = Console(highlight=False)


class Cluster:
    """One platform of its own: `evalstop up` in a process, and what is asked of it."""

    def __init__(self, folder: Path, rule: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        (folder / "evalstop.toml").write_text(CONFIG.format(slots=SLOTS, rule=rule))
        source = str(Path(evalstop.__file__).parents[1])
        environment = dict(os.environ) | {
            "PYTHONPATH": source,
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        for name in ("EVALSTOP_TOKEN", "EVALSTOP_URL", "EVALSTOP_DIR"):
            environment.pop(name, None)
        self.process = subprocess.Popen(  # noqa: S603 -- our own command
            [sys.executable, "-m", "evalstop", "up", "--port", "0", "--dir", str(folder / "state")],
            cwd=folder,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.remote = Remote(self._address(), folder / "state")
        self.jobs: list[dict[str, Any]] = []

    def _address(self) -> str:
        assert self.process.stderr is not None
        heard = []
        for line in self.process.stderr:
            heard.append(line)
            if "listens at" in line:
                return line.split()[3]
        message = "evalstop up ended: " + "".join(heard)
        raise EvalStopError(message)

    def submit(self) -> None:
        """Hand in the whole queue."""
        for name, tenant, kind, gpus, seconds, data, seed, more in JOBS:
            job = f"{tenant}.{name}"
            checkpoints = self.folder / "out" / job
            words = {"--data": data, "--seed": seed, "--seconds": seconds, "--steps": STEPS}
            command = [sys.executable, str(TRAINER), "--checkpoints", str(checkpoints)]
            command += [str(part) for pair in words.items() for part in pair]
            self.remote.post(
                "/jobs",
                {
                    "id": job,
                    "tenant": tenant,
                    "job_type": kind,
                    "gpus": gpus,
                    "estimated_s": seconds,
                    "direction": "max",
                    "metric": "quality",
                    "command": [*command, *more],
                    "checkpoints": str(checkpoints),
                    "grace_s": 2,
                },
            )

    def look(self) -> bool:
        """Read the jobs again; return whether all have ended."""
        self.jobs = self.remote.get("/jobs?series=true")["jobs"]
        return all(job["outcome"] is not None for job in self.jobs)

    def delivered(self, job: dict[str, Any], *, best: bool) -> float | None:
        """Return the true quality of what a job leaves: its best checkpoint, or its last."""
        last = sorted((self.folder / "out" / job["id"]).glob("policy-*.npz"))
        path = self.remote.get(f"/jobs/{job['id']}/best")["path"] if best else None
        if path is None and not last:
            return None
        seed = next(row[6] for row in JOBS if f"{row[1]}.{row[0]}" == job["id"])
        return World(np.random.default_rng(seed)).true_quality(Path(path or last[-1]))

    def close(self) -> None:
        """End the platform and whatever still runs under it."""
        for job in self.jobs:
            if job["outcome"] is None:
                self.remote.post(f"/jobs/{job['id']}/stop", {"note": "the demo is over"})
        deadline = time.monotonic() + 60
        while not self.look() and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)
        self.process.terminate()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


def main() -> int:
    """Run both queues, show them, and report."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="evalstop-demo-"))
    console.print(" ".join(__doc__.partition("\n\n")[2].split()) + "\n")
    clusters = [Cluster(folder / "with", "default"), Cluster(folder / "without", "none")]
    try:
        for cluster in clusters:
            cluster.submit()
        finished = show(clusters, began)
        report(*clusters, seconds=time.monotonic() - began)
    finally:
        for cluster in clusters:
            cluster.close()
    console.print(f"\nState and checkpoints lie in {folder}; try", soft_wrap=True)
    command = "evalstop" if shutil.which("evalstop") else os.path.relpath(COMMAND)
    explain = f"{command} explain ada.rlhf-a --offline --dir {folder}/with/state"
    console.print(f"  {explain}", soft_wrap=True)
    return 0 if finished else 1


def show(clusters: list[Cluster], began: float) -> bool:
    """Show both queues; return whether they were empty before the patience ended."""
    states: dict[tuple[int, str], str] = {}
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            done = [cluster.look() for cluster in clusters]
            for number, cluster in enumerate(clusters):
                tell(number, cluster, states, began, quiet=console.is_terminal)
            if console.is_terminal:
                live.update(picture(clusters, began), refresh=True)
            if all(done):
                return True
            if time.monotonic() - began > GIVE_UP_S:
                console.print("[red]The demo takes too long on this machine: ending it.[/]")
                return False
            time.sleep(LOOK_EVERY_S)


def tell(
    number: int,
    cluster: Cluster,
    states: dict[tuple[int, str], str],
    began: float,
    *,
    quiet: bool,
) -> None:
    """Print a line for every change of state; in a terminal only for stops."""
    for job in cluster.jobs:
        state = job["outcome"] or job["phase"]
        old = states.get((number, job["id"]))
        states[number, job["id"]] = state
        if state == old or state in {"waiting", "starting", "releasing", "preempting"}:
            continue
        if quiet and state != "stopped_by_policy":
            continue
        where = "with EvalStop   " if number == 0 else "without EvalStop"
        words = f"{time.monotonic() - began:5.1f} s  {where}  {job['id']:<10} {state}"
        if state == "stopped_by_policy":
            words += f": {job['stop']['reason']}"
        console.print(words, soft_wrap=True)


def picture(clusters: list[Cluster], began: float) -> Group:
    """Return what a terminal shows: the watched cluster in full, the other in one line."""
    watched, other = clusters
    lines = [Text(f"{time.monotonic() - began:.0f} s  with EvalStop", style="bold")]
    ended = sum(job["outcome"] is not None for job in other.jobs)
    bar = cluster_picture(other.remote.get("/cluster"), [])[0]
    return Group(
        *lines,
        *cluster_picture(watched.remote.get("/cluster"), watched.jobs),
        Text(f"\nwithout EvalStop: {ended} of {len(other.jobs)} jobs have ended", style="bold"),
        bar,
    )


def figures(cluster: Cluster, *, best: bool) -> dict[str, float]:
    """Return what a queue cost and what it delivered; quality is the true one."""
    first = min(job["submitted_at"] for job in cluster.jobs)
    ends = [job["ended_at"] - first for job in cluster.jobs if job["ended_at"]]
    hacking = {f"{row[1]}.{row[0]}" for row in JOBS if row[5] == "narrow" and not row[7]}
    delivered = [cluster.delivered(job, best=best) for job in cluster.jobs if job["id"] in hacking]
    known = [quality for quality in delivered if quality is not None]
    return {
        "mean time to a job's end, s": sum(ends) / len(ends),
        "until the queue is empty, s": max(ends),
        "GPU-seconds used": 3600 * sum(job["gpu_hours"] for job in cluster.jobs),
        "... of them by over-optimising jobs": 3600
        * sum(job["gpu_hours"] for job in cluster.jobs if job["id"] in hacking),
        "true quality the over-optimising jobs deliver": sum(known) / max(1, len(known)),
    }


def report(watched: Cluster, other: Cluster, *, seconds: float) -> None:
    """Print the stops, the comparison and the savings by tenant."""
    hacking = {f"{row[1]}.{row[0]}" for row in JOBS if row[5] == "narrow"}
    stopped = [job for job in watched.jobs if job["outcome"] == "stopped_by_policy"]
    right = sum(job["id"] in hacking for job in stopped)
    missed = sum(job["id"] in hacking and job["outcome"] == "completed" for job in watched.jobs)
    console.print(
        f"\n[bold]{len(stopped)} jobs were stopped: {right} over-optimising, "
        f"{len(stopped) - right} healthy by mistake; {missed} over-optimising missed.[/]"
    )
    table = Table("", "with EvalStop", "without", "change", box=None, header_style="bold")
    with_, without = figures(watched, best=True), figures(other, best=False)
    for name, value in with_.items():
        before = without[name]
        change = f"{100 * (value / before - 1):+.0f} %" if before > 0 else ""
        table.add_row(name, f"{value:.2f}", f"{before:.2f}", change)
    console.print(table)
    savings = Table("tenant", "stops", "GPU-seconds used", "saved by estimate", box=None)
    for row in watched.remote.get("/savings")["tenants"]:
        savings.add_row(
            row["tenant"],
            str(row["stops"]),
            f"{3600 * row['gpu_hours_used']:.0f}",
            f"{3600 * row['gpu_hours_saved']:.0f}",
        )
    console.print()
    console.print(savings)
    console.print(f"\nOne run, on this machine, in {seconds:.0f} s: an illustration, no benchmark.")


if __name__ == "__main__":
    if shutil.which("sh") is None:
        sys.exit("the demo needs a POSIX system")
    sys.exit(main())
