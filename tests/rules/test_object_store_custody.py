"""R04, R05 at URLs: only what is allowed is touched, and best is backed by a copy of our own.

The store here is fsspec's of files; tests/extras/trackers/test_object_store_up.py has S3.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from pathlib import Path

import msgspec
import pytest
from rule_platform import eventually, platform_in, settings_of

from evalstop.config.settings import CustodySettings
from evalstop.custody.fsspec import FsspecObjects
from evalstop.testing.custody import write_checkpoint, write_safetensors


class Spied:
    """What fsspec was asked, by which thread; it can be down."""

    def __init__(self, monkeypatch):
        self.asked, self.threads, self.down = [], set(), False
        self.goes_on = threading.Event()
        self.goes_on.set()
        inner = FsspecObjects._call

        def call(objects, name, *args, **fields):
            self.asked.append((name, *args))
            self.threads.add(threading.current_thread().name)
            self.goes_on.wait()
            if self.down:
                message = "no route to host"
                raise ConnectionError(message)
            return inner(objects, name, *args, **fields)

        monkeypatch.setattr(FsspecObjects, "_call", call)


@pytest.fixture
def spied(monkeypatch):
    spied = Spied(monkeypatch)
    yield spied
    assert "controller" not in " ".join(spied.threads)


def settings(tmp_path, *, allowed=True, wait_s=120.0, **policy):
    base = f"file://{tmp_path}/objects"
    custody = CustodySettings(
        every_s=0.05,
        settle_s=0.0,
        store=f"{base}/evalstop/",
        allow=(f"{base}/runs/{{tenant}}/",) if allowed else (),
        store_every_s=0.05,
        store_wait_s=wait_s,
    )
    return msgspec.structs.replace(settings_of(**policy), custody=custody)


def saved(tmp_path, step, tenant="t", **fields):
    path = write_checkpoint(tmp_path / "objects" / "runs" / tenant / "mine", step, **fields)
    return f"file://{path}", path


def steps_kept(tmp_path):
    files = (tmp_path / "objects/evalstop/data/a").glob("*/*/model.safetensors")
    return {path.parents[1].name.partition("-")[0] for path in files}


def test_a_checkpoint_named_by_its_url_outlives_the_trainers_rotation(tmp_path, spied):
    with platform_in(tmp_path / "state", settings(tmp_path)) as platform:
        platform.submit("a", job_type="other")
        for step, score in enumerate((0.5, 0.9, 0.7), start=1):
            url, path = saved(tmp_path, step)
            platform.report("a", score, first=step, checkpoint=url)
            shutil.rmtree(path)
        found = platform.get("/jobs/a/best")
        assert (found["best"], found["backed"]) == ({"step": 2, "score": 0.9}, True)
        assert found["path"].startswith(f"file://{tmp_path}/objects/evalstop/data/a/2-")
        assert found["unverified"] == ""
        names = [one["checkpoint"] for one in platform.get("/jobs/a")["checkpoints"]]
        assert [name.rpartition("-")[2] for name in names] == ["1", "2", "3"]
        eventually(lambda: steps_kept(tmp_path) == {"2", "3"})  # best and last
    with platform_in(tmp_path / "state", settings(tmp_path)) as platform:
        assert platform.get("/jobs/a/best") == found
    assert spied.asked


@pytest.mark.parametrize("how", ["with its score", "by itself", "as a folder"])
@pytest.mark.parametrize(
    ("allowed", "place"),
    [
        (False, "runs/t/mine/checkpoint-1"),
        (True, "runs/other/mine/checkpoint-1"),
        (True, "evalstop/data/b/1-0/checkpoint-1"),
        (True, "runs/t/../other/mine/checkpoint-1"),
        (True, "runs/t/%2e%2e/other/mine/checkpoint-1"),
    ],
)
def test_what_is_not_allowed_is_never_touched_and_the_status_says_why(
    tmp_path, spied, how, allowed, place
):
    saved(tmp_path, 1)
    saved(tmp_path, 1, tenant="other")
    base = f"file://{tmp_path}/objects"
    url = f"{base}/{place}"
    with platform_in(tmp_path / "state", settings(tmp_path, allowed=allowed)) as platform:
        if how == "as a folder":
            plain = ".." not in place and "%" not in place
            platform.submit("a", checkpoints=url, status=201 if plain else 422)
            if not plain:
                return
            platform.until("a", "running")
            platform.report("a", 0.5)
        elif how == "with its score":
            platform.submit("a")
            platform.report("a", 0.5, checkpoint=url)
        else:
            platform.submit("a")
            platform.post("/jobs/a/checkpoints", {"step": 1, "checkpoint": url})
            platform.report("a", 0.5)
        found = platform.get("/jobs/a/best")
        assert (found["path"], found["backed"]) == (None, False)
        (warning,) = platform.get("/jobs/a")["warnings"]
        assert "unverified, kept as a name only" in warning
        if how != "as a folder":
            assert warning == found["unverified"]
            assert [one["checkpoint"] for one in platform.get("/jobs/a")["checkpoints"]] == (
                [url] if how == "by itself" else []
            )
    assert spied.asked == []


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/x", "simplecache::file:///etc/x", "s3://b/x", "zip://x::file:///x"]
)
def test_other_protocols_are_never_opened(tmp_path, spied, url):
    with platform_in(tmp_path / "state", settings(tmp_path)) as platform:
        platform.submit("a")
        platform.report("a", 0.5, checkpoint=url)
        assert platform.get("/jobs/a/best")["path"] is None
    assert spied.asked == []


def test_a_link_out_of_an_allowed_folder_is_not_followed(tmp_path, spied):
    secret = write_checkpoint(tmp_path / "secret", 1)
    url, path = saved(tmp_path, 1)
    (path / "model.safetensors").unlink()
    (path / "model.safetensors").symlink_to(secret / "model.safetensors")
    with platform_in(tmp_path / "state", settings(tmp_path)) as platform:
        platform.submit("a")
        platform.report("a", 0.5, checkpoint=url)
        assert platform.get("/jobs/a/best")["path"] is None
        (tmp_path / "objects/runs/t/linked").symlink_to(tmp_path / "secret")
        platform.report("a", 0.6, first=2, checkpoint=f"{url[: -len('mine/checkpoint-1')]}linked")
        assert platform.get("/jobs/a/best")["path"] is None
    assert spied.asked
    assert not list((tmp_path / "objects").glob("evalstop/data/**/*.safetensors"))


def test_a_folder_at_a_url_is_looked_after_while_its_job_runs(tmp_path, spied):
    folder = tmp_path / "objects" / "runs" / "t" / "mine"
    with platform_in(tmp_path / "state", settings(tmp_path)) as platform:
        platform.submit("a", checkpoints=f"file://{folder}", job_type="other")
        platform.until("a", "running")
        for step, score in enumerate((0.5, 0.9, 0.7), start=1):
            _, path = saved(tmp_path, step)
            seen = len(platform.get("/jobs/a")["checkpoints"])
            if step == 2:  # by itself, or by its report
                eventually(lambda seen=seen: len(platform.get("/jobs/a")["checkpoints"]) > seen)
            platform.report("a", score, first=step)
            shutil.rmtree(path)
        found = platform.get("/jobs/a/best")
        assert (found["best_saved"], found["backed"]) == ({"step": 2, "score": 0.9}, True)
    assert spied.asked


def test_a_store_that_is_down_delays_the_pin_and_the_stop_and_nothing_else(tmp_path, spied):
    """The best one's pin is awaited: until then nothing says that its score is backed."""
    config = settings(tmp_path, backed_s=600.0)
    with platform_in(tmp_path / "state", config) as platform:
        platform.submit("a")
        platform.until("a", "running")
        spied.down = True
        urls = [saved(tmp_path, step)[0] for step in (1, 2, 3, 4)]
        for step, score in enumerate((0.5, 0.9, 0.8, 0.7), start=1):
            platform.report("a", score, first=step, checkpoint=urls[step - 1])
        job = platform.get("/jobs/a")
        assert (job["phase"], job["stop"], job["checkpoints"]) == ("running", None, [])
        assert any("not in custody yet" in warning for warning in job["warnings"])
        assert any("no route to host" in one for one in platform.get("/troubles")["troubles"])
        assert "no route to host" in platform.get("/jobs/a/best")["unverified"]
        spied.down = False
        platform.until("a", "stopped_by_policy")
        eventually(lambda: platform.get("/jobs/a/best")["backed"])
        found = platform.get("/jobs/a/best")
        assert (found["best_saved"], found["unverified"]) == ({"step": 2, "score": 0.9}, "")
        # Oldest first; where the store came back between the two, the stop rests on the last.
        assert platform.get("/jobs/a")["stop"]["best_checkpoint"] in {urls[1], urls[3]}


def test_a_store_that_hangs_holds_up_no_report_and_no_other_job(tmp_path, spied):
    with platform_in(tmp_path / "state", settings(tmp_path, wait_s=0.1)) as platform:
        platform.submit("far", job_type="other")
        platform.submit("near", job_type="other", checkpoints=str(tmp_path / "near"))
        spied.goes_on.clear()
        url, _ = saved(tmp_path, 1)
        assert platform.report("far", 0.5, checkpoint=url)["accepted"] == 1
        write_checkpoint(tmp_path / "near", 1)
        platform.report("near", 0.5)
        assert platform.get("/jobs/near/best")["backed"]
        write_checkpoint(tmp_path / "near", 2)  # found by a look, not by a report
        eventually(lambda: len(platform.get("/jobs/near")["checkpoints"]) == 2)
        assert platform.get("/jobs/far")["checkpoints"] == []
        spied.goes_on.set()
        eventually(lambda: platform.get("/jobs/far/best")["backed"])


def test_a_fault_in_custody_stops_neither_reports_nor_stops(tmp_path, spied, monkeypatch):
    def broken(_place, _address):
        message = "a fault of ours"
        raise ZeroDivisionError(message)

    monkeypatch.setattr("evalstop.custody.places.ObjectPlace.state", broken)
    with platform_in(tmp_path / "state", settings(tmp_path)) as platform:
        platform.submit("a")
        platform.until("a", "running")
        for step, score in enumerate((0.5, 0.9, 0.8, 0.7), start=1):
            platform.report("a", score, first=step, checkpoint=saved(tmp_path, step)[0])
        # Told for as long as something is not in custody, also of a job that is over.
        assert any("a fault of ours" in one for one in platform.get("/troubles")["troubles"])
        platform.until("a", "stopped_by_policy")
    assert spied.asked == []


def test_what_was_not_in_custody_before_a_restart_is_afterwards(tmp_path, spied):
    config = settings(tmp_path)
    url, path = saved(tmp_path, 1)
    with platform_in(tmp_path / "state", config) as platform:
        platform.submit("a", job_type="other")
        spied.down = True
        platform.report("a", 0.5, checkpoint=url)
        assert platform.get("/jobs/a/best")["path"] is None
    spied.down = False
    with platform_in(tmp_path / "state", config) as platform:
        eventually(lambda: platform.get("/jobs/a/best")["backed"])
        shutil.rmtree(path)
        assert platform.get("/jobs/a/best")["path"].startswith(f"file://{tmp_path}/objects/evals")


def test_a_resumed_run_that_writes_to_the_same_url_takes_nobodys_place(tmp_path, spied):
    """R03: what the first attempt scored is what its own checkpoint was scored."""
    with platform_in(tmp_path / "state", settings(tmp_path)) as platform:
        platform.submit("a", job_type="other")
        url, path = saved(tmp_path, 2)
        platform.report("a", 0.9, first=2, checkpoint=url)
        first = platform.get("/jobs/a/best")
        (path / "model.safetensors").write_bytes(b"torn")  # it is being written again
        platform.report("a", 0.95, first=2, checkpoint=url, attempt=1)
        assert platform.get("/jobs/a/best")["backed"] is False
        assert platform.get("/jobs/a/best")["path"] == first["path"]
        write_safetensors(path / "model.safetensors", values=9)
        eventually(lambda: platform.get("/jobs/a/best")["backed"])
        second = platform.get("/jobs/a/best")
        assert second["best_saved"]["score"] == 0.95
        assert second["path"] != first["path"]
    assert spied.asked


def test_what_a_later_attempt_wrote_is_not_taken_for_what_was_reported(tmp_path, spied):
    """The store was down until the run had gone back, and through the step again."""
    with platform_in(tmp_path / "state", settings(tmp_path)) as platform:
        platform.submit("a", job_type="other")
        spied.down = True
        url, path = saved(tmp_path, 2)
        platform.report("a", 0.9, first=2, checkpoint=url)
        for file in path.iterdir():
            os.utime(file, (time.time() + 3600, time.time() + 3600))
        platform.report("a", 0.5, first=1, attempt=1)
        spied.down = False
        eventually(lambda: platform.get("/jobs/a")["warnings"] == [])
        found = platform.get("/jobs/a/best")
        assert (found["best"]["score"], found["backed"], found["path"]) == (0.9, False, None)
        platform.report("a", 0.6, first=2, attempt=1, checkpoint=url)  # now it is reported
        assert platform.get("/jobs/a/best")["best_saved"] == {"step": 2, "score": 0.6}


def test_one_that_never_comes_is_given_up_when_its_job_has_ended(tmp_path, spied):
    with platform_in(tmp_path / "state", settings(tmp_path)) as platform:
        platform.submit("a", command=["true"], job_type="other")
        platform.until("a", "completed")
        gone = f"file://{tmp_path}/objects/runs/t/mine/checkpoint-9"
        platform.report("a", 0.5, checkpoint=gone)
        eventually(lambda: platform.get("/jobs/a")["warnings"] == [])
    assert spied.asked


class Trainer:
    """Uploads checkpoints of which no two are alike, reports each by its URL, and keeps few."""

    def __init__(self, tmp_path, rng, spied):
        self.tmp_path, self.rng, self.spied = tmp_path, rng, spied
        self.step = self.attempt = self.written = 0
        self.scored, self.waiting, self.lost = {}, {}, set()

    def go_on(self, platform):
        if not self.spied.down:
            self.drain(platform)
        self.step += 1
        self.written += 1
        place = self.tmp_path / "objects/runs/t/mine" / f"checkpoint-{self.step}"
        shutil.rmtree(place, ignore_errors=True)
        self.lost |= {self.waiting.pop(self.step)} if self.step in self.waiting else set()
        url, _ = saved(self.tmp_path, self.step, values=self.written)
        (place / "identity").write_text(str(self.written))
        score = self.rng.choice([-1.0, 0.0, 1.0]) + self.rng.random()
        platform.report("a", score, first=self.step, checkpoint=url, attempt=self.attempt)
        self.scored[score] = self.written
        self.waiting[self.step] = score

    def rotate(self):
        for step in range(1, self.step):
            path = self.tmp_path / "objects/runs/t/mine" / f"checkpoint-{step}"
            shutil.rmtree(path, ignore_errors=True)

    def rewind(self):
        self.step = self.rng.randrange(self.step + 1)
        self.attempt += 1

    def drain(self, platform):
        eventually(lambda: platform.get("/jobs/a/best")["unverified"] == "")
        self.waiting = {}

    def check(self, platform):
        """Compare `best` with what was scored best; what is reported is in custody by now.

        But for what was overwritten while the store was down: that is gone, and said to be.
        """
        self.drain(platform)
        found = platform.get("/jobs/a/best")
        best, kept = max(self.scored), max(self.scored.keys() - self.lost)
        assert found["best"]["score"] == pytest.approx(best)
        assert found["best_saved"]["score"] == pytest.approx(kept)
        assert found["backed"] is (best == kept)
        path = Path(found["path"].removeprefix("file://"))
        assert (path / "identity").read_text() == str(self.scored[kept])


@pytest.mark.parametrize("seed", range(6))
def test_best_is_what_was_scored_best_whatever_happens_in_whatever_order(tmp_path, spied, seed):
    rng = random.Random(seed)
    trainer, config = Trainer(tmp_path, rng, spied), settings(tmp_path, wait_s=1.0)
    begun = False
    for _ in range(3):
        with platform_in(tmp_path / "state", config, end_jobs=False) as platform:
            if not begun:
                platform.submit("a", job_type="other")
                begun = True
            for _ in range(12):
                what = rng.random()
                if what < 0.15 and trainer.step:
                    trainer.rewind()
                elif what < 0.3:
                    spied.down = rng.random() < 0.5
                else:
                    trainer.go_on(platform)
                if rng.random() < 0.6 and not spied.down and trainer.scored:
                    trainer.check(platform)
                    trainer.rotate()
            spied.down = False
            if rng.random() < 0.5:  # else the next controller finds it undone
                trainer.check(platform)
    with platform_in(tmp_path / "state", config) as platform:
        trainer.check(platform)
