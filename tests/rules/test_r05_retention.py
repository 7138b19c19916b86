"""R03 to R06, R14: whatever a trainer saves, scores and rotates, in whatever order, and whenever
the eval suite changes, `best` names the very checkpoint that was scored best.

Killing the writer at any byte: tests/unit/custody/test_custody_killed.py.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from rule_platform import eventually

from evalstop.custody.places import FilePlace
from evalstop.testing.custody import write_checkpoint


class Trainer:
    """Writes checkpoints of which no two are alike, keeps few, and knows what it scored."""

    def __init__(self, folder, platform, job):
        self.folder, self.platform, self.job = folder, platform, job
        self.attempt = 0
        self.step = 0
        self.epoch = "suite-0"
        self.written = 0
        self.content = {}
        self.scored = {}
        platform.submit(job, checkpoints=str(folder), job_type="other")  # nothing stops it
        platform.until(job, "running")

    def save(self):
        self.written += 1
        place = self.folder / f"checkpoint-{self.step}"
        if place.exists():
            shutil.rmtree(place)
        aside = write_checkpoint(self.folder / "tmp", self.step, values=self.written)
        (aside / "identity").write_text(str(self.written))
        aside.rename(place)
        self.content[self.step] = self.written
        eventually(self.seen)

    def seen(self):
        """Whether custody has what was written last, or had it and let it go again."""
        custodian = self.platform.running.custodian
        with custodian.taking(self.job):  # nothing is let go while we look
            pins = custodian._store.pins(self.job)
            held = [identity(Path(pin.path)) for pin in pins if pin.step == self.step]
        known = custodian._known.get(self.job, {})
        path = self.folder / f"checkpoint-{self.step}"
        return self.written in held or known.get(path.name) == FilePlace().state(str(path))

    def score(self, value):
        self.platform.report(
            self.job, value, first=self.step, epoch_key=self.epoch, attempt=self.attempt
        )
        if self.step in self.content:
            known = self.scored.setdefault(self.epoch, {})
            known[self.attempt, self.step] = (value, self.content[self.step])

    def rotate(self):
        steps = sorted(self.content)
        for step in steps[:-1]:
            shutil.rmtree(self.folder / f"checkpoint-{step}", ignore_errors=True)
            del self.content[step]

    def rewind(self, rng):
        """Go on from an earlier step, as a resumed run does; later files lie there still."""
        self.attempt += 1
        self.step = rng.choice([0, *sorted(self.content)])
        self.content = {step: what for step, what in self.content.items() if step <= self.step}

    def check(self):
        """Compare `best` with the best that was scored with its checkpoint in place."""
        found = self.platform.get(f"/jobs/{self.job}/best")
        scored = self.scored.get(self.epoch)
        if not scored:
            return
        best = max(value for value, _ in scored.values())
        path = found["path"]
        assert path is not None, (found, self.scored)
        assert found["best_saved"]["score"] == best
        good = {content for value, content in scored.values() if value == best}
        assert identity(Path(path)) in good


def identity(checkpoint):
    return int((checkpoint / "identity").read_text())


@pytest.mark.parametrize("rewinds", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_best_is_the_checkpoint_that_scored_best_in_any_order_of_events(
    platform, job, tmp_path, seed, rewinds
):
    """With rewinds a run writes steps anew that were scored before; the best stays (R03)."""
    rng = random.Random(1000 + seed)
    trainer = Trainer(tmp_path, platform, job)
    orders = ["save score", "score save", "save", "score", "save score rotate"]
    if rewinds:  # a trainer does it in one of two ways
        orders = [rng.choice(["save score", "score save"])]
        orders += [f"{orders[0]} rotate"]
    for _ in range(20):
        trainer.step += 1
        order = rng.choice(orders)
        value = rng.choice([-2.0, -1.0, -0.5, 0.0]) + rng.random()
        for verb in order.split():
            if verb == "score":
                trainer.score(value)
            elif verb == "save":
                trainer.save()
                if order.startswith("score save"):
                    known = trainer.scored.setdefault(trainer.epoch, {})
                    known[trainer.attempt, trainer.step] = (value, trainer.content[trainer.step])
            else:
                trainer.rotate()
        trainer.check()
        chance = rng.random()
        if chance < 0.1:
            trainer.epoch = f"suite-{rng.randrange(10**6)}"
        elif rewinds and chance < 0.4:
            trainer.rewind(rng)
