"""One queue of real TRL jobs on a real Slurm cluster, with evalstop attached and without.

    python benchmarks/slurm_proof/run.py --out proof --repeats 3      # 15 minutes a repeat
    python benchmarks/slurm_proof/run.py --out proof --report         # the figures again, no runs

Each repeat has a seed of its own: of the arrivals, the comparisons, the reward models and the
training; both queues of a repeat share it. They run side by side, each on a cluster of its own, so
that whatever else the machine does hits both alike. What is done already is not done again. The
clusters are started, used and ended by this command; it needs root (see tools/slurm_cluster.py),
`.ci/slurm-packages`, and evalstop's extras lab and server (`make .venv-trl/.ready`).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from drive import JOBS, Pace, run_queue
from figures import RESULTS, publish, report
from truth import Truth, digest, prepare

from evalstop.lab.arms import arm_named

FIRST_SEED = 11  # the recorded runs of the laboratory have 0 to 5: these are new ones


def measured(record: dict[str, Any], folder: Path, truth: Truth) -> dict[str, Any]:
    """Add true scores, by step, and those of the checkpoint that evalstop kept."""
    for job in record["jobs"]:
        aside = folder / "aside" / job["arm"]
        scores = [
            truth.score(aside / f"step-{step}", seed=record["seed"], step=step)
            for step in job["steps"]
        ]
        job["true"] = [score for score, _ in scores]
        job["unit"] = statistics.median(unit for _, unit in scores)
        job["weights"] = [digest(aside / f"step-{step}") for step in job["steps"]]
        path = job.pop("best_path", None)
        if path is not None:
            step = int(path.rpartition("-")[2])
            place = job["steps"].index(step)
            assert digest(Path(path)) == job["weights"][place], f"{path} is not step {step}"
            job["kept_step"] = step
    return record


def main() -> int:
    """Run what is not there yet, then report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--step-seconds", type=float, default=1.0)
    parser.add_argument("--prefix", default="", help="put before slurmd: 'taskset -c 1 nice'")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--page", action="store_true", help=f"renew {RESULTS} and the page")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    pace = Pace(step_s=options.step_seconds, prefix=tuple(options.prefix.split()))
    if not options.report:
        prepared = (options.out / "prepared").resolve()
        os.environ["OMP_NUM_THREADS"] = "1"
        for seed in range(FIRST_SEED, FIRST_SEED + options.repeats):
            prepare(prepared, [arm_named(arm) for _, arm, _ in JOBS], seed)
            both_queues(options.out, prepared, seed, pace)
    records = [json.loads(file.read_text()) for file in sorted(options.out.glob("queue-*.json"))]
    if options.page:
        publish(records)
    return report(records)


def both_queues(out: Path, prepared: Path, seed: int, pace: Pace) -> None:
    """Run both queues of a seed, measure them, and write a file each; nothing if they are there."""
    targets = {True: out / f"queue-{seed}-with.json", False: out / f"queue-{seed}-without.json"}
    if all(target.exists() for target in targets.values()):
        return
    began = time.monotonic()
    with ThreadPoolExecutor(2) as side_by_side:
        queues = {
            guarded: side_by_side.submit(run_queue, prepared, seed, pace, guarded=guarded)
            for guarded in targets
        }
    print(f"seed {seed}: {time.monotonic() - began:.0f} s", flush=True)
    truth = Truth(out / f"truth-{seed}.json")
    for guarded, target in targets.items():
        record, folder = queues[guarded].result()
        record["step_s"] = pace.step_s
        text = json.dumps(measured(record, folder, truth), allow_nan=False)
        truth.save()
        aside = target.with_suffix(".part")
        aside.write_text(text)
        aside.replace(target)
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
