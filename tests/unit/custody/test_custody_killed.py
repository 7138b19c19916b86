"""Kill the keeper at any step: the old best stays loadable, and no torn one appears (R03-R06)."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from evalstop.core.errors import TornCheckpointError
from evalstop.custody import FileCustody, to_keep
from evalstop.testing.custody import write_checkpoint


class Killed(BaseException):
    pass


class Killer:
    """Kills at the n-th system call of a kind that changes something."""

    def __init__(self, monkeypatch):
        self.left = -1
        for owner, name in (
            (Path, "hardlink_to"),
            (Path, "mkdir"),
            (Path, "rename"),
            (os, "fsync"),
            (os, "unlink"),
            (os, "rmdir"),
        ):
            monkeypatch.setattr(owner, name, self.wrapped(getattr(owner, name)))

    def wrapped(self, inner):
        def call(*args, **fields):
            self.left -= 1
            if self.left == 0:
                raise Killed
            return inner(*args, **fields)

        return call


def check(root, scores, floor):
    """Every pin that shows is whole; the best of them is no worse than before."""
    store = FileCustody(root)
    pins = list(store.pins("a"))
    for pin in pins:
        store.verify(pin)
    best = max((scores[pin.step] for pin in pins if pin.step in scores), default=None)
    if floor is not None:
        assert best is not None
        assert best >= floor
    assert not [left for left in (root / "a").glob(".*") if left.is_dir()]
    return best


@pytest.mark.parametrize("seed", range(8))
def test_killed_between_any_two_changes_the_best_never_gets_worse(tmp_path, monkeypatch, seed):
    rng = random.Random(seed)
    killer = Killer(monkeypatch)
    out, root = tmp_path / "out", tmp_path / "custody"
    scores, floor, kills = {}, None, 0
    for step in range(1, 41):
        source = write_checkpoint(out, step)
        score = rng.choice([-1.0, 0.0, 0.5]) + rng.random()
        if rng.random() < 0.2:  # a torn one among them
            (source / "optimizer.pt").write_bytes(b"torn")
        store = FileCustody(root)
        killer.left = rng.randrange(1, 25)
        try:
            store.pin("a", step, str(source))
            scores[step] = score
            keep = to_keep({pin.step for pin in store.pins("a")}, scores)
            for pin in store.pins("a"):
                if pin.step not in keep:
                    store.unpin(pin)
        except Killed:
            kills += 1
        except TornCheckpointError:
            pass
        killer.left = -1
        if rng.random() < 0.7:  # the trainer's own rotation
            for old in sorted(out.iterdir())[:-1]:
                shutil.rmtree(old)
        floor = check(root, scores, floor)
    assert kills > 10


def test_a_checkpoint_that_grew_is_pinned_again_and_one_that_shrank_is_not(tmp_path):
    store = FileCustody(tmp_path / "custody")
    source = write_checkpoint(tmp_path / "out", 5)
    state = source / "trainer_state.json"
    content = state.read_bytes()
    state.unlink()
    first = store.pin("a", 5, str(source))
    state.write_bytes(content)
    second = store.pin("a", 5, str(source))
    assert second.path != first.path
    assert list(store.pins("a")) == [second]
    (source / "optimizer.pt").unlink()  # rotation has begun
    assert store.pin("a", 5, str(source)) == second


@pytest.mark.parametrize("job", ["..", ".", "", "a/../../b", "a/b"])
def test_no_name_leaves_the_root(tmp_path, job):
    store = FileCustody(tmp_path / "custody")
    pin = store.pin(job, 1, str(write_checkpoint(tmp_path / "out", 1)))
    assert (tmp_path / "custody") in Path(pin.path).resolve().parents
    assert [found.step for found in store.pins(job)] == [1]
