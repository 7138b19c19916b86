"""Processes of their own: four ranks under torchrun, and a run that gets SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tiny_trainer import EVERY, HACKED

from evalstop.client.pins import INCOMPLETE, is_complete

HERE = Path(__file__).parent
RANKS = 4
LONGEST_S = 1800


def environment() -> dict[str, str]:
    source = HERE.parents[2] / "src"
    return os.environ | {
        "PYTHONPATH": f"{source}{os.pathsep}{HERE}",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }


def test_only_the_first_rank_decides_and_all_leave_at_the_same_step(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={RANKS}", str(HERE / "rank_script.py"), str(tmp_path)]
    done = subprocess.run(  # a rank that left alone would hang the others: the time-out is the test
        command, env=environment(), timeout=LONGEST_S, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]
    steps = {one["left_at"] for one in told}
    assert len(steps) == 1
    assert {one["stopped_at"] for one in told} == steps
    assert steps < {EVERY * place for place in range(1, len(HACKED))}
    best = EVERY * (HACKED.index(max(HACKED)) + 1)
    assert told[0]["best"] == str(tmp_path / "run" / "evalstop" / f"checkpoint-{best}")
    assert {one["best"] for one in told[1:]} == {"None"}  # one rank pins


def test_a_run_saved_just_in_time_keeps_its_best(tmp_path):
    run = subprocess.Popen(
        [sys.executable, str(HERE / "jit_script.py"), str(tmp_path)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + LONGEST_S
    while not (tmp_path / f"checkpoint-{5 * EVERY}").exists():
        assert run.poll() is None, run.communicate()[1][-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    run.send_signal(signal.SIGTERM)
    _, complained = run.communicate(timeout=LONGEST_S)
    assert run.returncode == 0, complained[-3000:]
    assert (tmp_path / "told").read_text() == f"best checkpoint-{3 * EVERY}"
    assert is_complete(tmp_path / "evalstop" / f"checkpoint-{3 * EVERY}")
    assert not list(tmp_path.rglob(INCOMPLETE))
