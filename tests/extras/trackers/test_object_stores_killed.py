"""kill -9 of a real process at any request to a real store: the old best stays, none is torn."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from s3_server import bucket, s3

import evalstop
from evalstop.custody import ObjectCustody
from evalstop.custody.fsspec import FsspecObjects
from evalstop.testing.custody import write_checkpoint

__all__ = ["bucket", "s3"]  # fixtures

# Pins what is named and lets go what is not best or last; dies at its n-th request that changes
# something, before it is sent or after.
KEEPER = """
import itertools, json, os, signal, sys
from evalstop.custody import ObjectCustody, to_keep
from evalstop.custody.fsspec import FsspecObjects
base, options, steps, scores, dies_at, after = json.loads(sys.argv[1])
scores = {int(step): score for step, score in scores.items()}
inner, count = FsspecObjects._call, itertools.count(1)
def call(objects, name, *args, **fields):
    dies = name in {"cp_file", "pipe_file", "rm_file"} and next(count) == dies_at
    if dies and not after:
        os.kill(os.getpid(), signal.SIGKILL)
    found = inner(objects, name, *args, **fields)
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    return found
FsspecObjects._call = call
store = ObjectCustody(FsspecObjects(base.partition("://")[0], options), base + "/evalstop")
for step in steps:
    store.pin("a", step, f"{base}/runs/checkpoint-{step}")
    keep = to_keep({pin.step for pin in store.pins("a")}, scores)
    for pin in store.pins("a"):
        if pin.step not in keep:
            store.unpin(pin)
"""


@pytest.fixture(params=["file", "s3"])
def base(request, tmp_path):
    if request.param == "file":
        return f"file://{tmp_path}/objects", {}
    return f"{request.getfixturevalue('bucket')}/team", request.getfixturevalue("s3")


def test_killed_at_any_request_the_best_never_gets_worse(base, tmp_path):
    url, options = base
    rng = random.Random(7)
    objects = FsspecObjects(url.partition("://")[0], options)
    scores, floor, kills, step = {}, None, 0, 0
    for _ in range(8):
        steps = []
        for _ in range(3):
            step += 1
            steps.append(step)
            scores[step] = rng.random()
            path = write_checkpoint(tmp_path / "out", step)
            for one in path.iterdir():
                objects.write(f"{url}/runs/checkpoint-{step}/{one.name}", one.read_bytes())
        order = [url, options, steps, scores, rng.randrange(1, 30), rng.random() < 0.5]
        done = subprocess.run(
            [sys.executable, "-c", KEEPER, json.dumps(order)],
            env=dict(os.environ) | {"PYTHONPATH": str(Path(evalstop.__file__).parents[1])},
            check=False,
        )
        assert done.returncode in {0, -signal.SIGKILL}
        kills += done.returncode != 0
        for gone in steps:  # the trainer's own rotation
            for name in objects.files(f"{url}/runs/checkpoint-{gone}"):
                objects.delete(f"{url}/runs/checkpoint-{gone}/{name}")
        store = ObjectCustody(objects, f"{url}/evalstop")
        pins = [store.verify(pin) for pin in store.pins("a")]
        best = max((scores[pin.step] for pin in pins), default=None)
        assert floor is None or best >= floor
        floor = best
        assert objects.files(f"{url}/evalstop/under-way") == {}
        kept = {pin.path.removeprefix(f"{url}/evalstop/data/") for pin in pins}
        bodies = objects.files(f"{url}/evalstop/data")
        assert {name.rpartition("/")[0] for name in bodies} == kept
    assert kills >= 5
