"""What the custodian lets go: nothing that is scored best, newest, unscored yet, or read now."""

from __future__ import annotations

import msgspec
import pytest

from evalstop.core.errors import StoreError
from evalstop.core.events import CheckpointSaved, TimerFired
from evalstop.custody import FileCustody
from evalstop.ports import Launch
from evalstop.service.carry_out import LAUNCH
from evalstop.service.controller import BusyError
from evalstop.service.custodian import Custodian
from evalstop.testing.custody import write_checkpoint


@pytest.fixture
def kept(platform, tmp_path):
    """Save the checkpoints of steps 1 to 6, of which 1 to 3 are scored; return what stays."""
    platform.look()
    platform.submit("a")
    platform.look()
    launch = Launch(command=("last",), checkpoints=str(tmp_path / "out"))
    platform.documents.put(LAUNCH, "a", msgspec.json.encode(launch))

    def keep(in_use=(), **settings):
        store = FileCustody(tmp_path / "custody")
        custodian = Custodian(store, platform.documents, settle_s=0.0, **settings)
        custodian.attach(platform.controller)
        custodian.keep_in_use(lambda _: in_use)
        platform.controller.start()
        for step in range(1, 7):
            write_checkpoint(tmp_path / "out", step)
            custodian.look("a")
        platform.controller.close()
        for step, score in ((1, 0.9), (2, 0.1), (3, 0.2)):
            platform.report("a", step, score)
        custodian.let_go("a", platform.controller.ledger.jobs["a"])
        return [pin.step for pin in store.pins("a")]

    return keep


def test_the_newest_without_a_score_stay(kept):
    assert kept(unscored=10) == [1, 4, 5, 6]


def test_few_stay_where_few_are_wanted(kept):
    assert kept(unscored=1) == [6]


def test_what_is_being_evaluated_stays(kept):
    assert kept(in_use=(2, 4), unscored=1) == [2, 4, 6]


def test_a_checkpoint_taken_while_the_log_cannot_be_written_is_told_when_it_can(platform, tmp_path):
    platform.look()
    platform.submit("a")
    platform.look()
    launch = Launch(command=("last",), checkpoints=str(tmp_path / "out"))
    platform.documents.put(LAUNCH, "a", msgspec.json.encode(launch))
    store = FileCustody(tmp_path / "custody")
    custodian = Custodian(store, platform.documents, settle_s=0.0)
    custodian.attach(platform.controller)
    controller, append = platform.controller, platform.store.append

    def full(_entries):
        message = "the disk is full"
        raise StoreError(message)

    platform.store.append = full
    controller.start()
    with pytest.raises(BusyError):  # an entry waits for the disk
        controller.ask(lambda s: [TimerFired(time=s.now)]).result(timeout=120)
    write_checkpoint(tmp_path / "out", 3)
    for _ in range(2):
        with pytest.raises(BusyError):
            custodian.look("a")
    platform.store.append = append
    custodian.look("a")
    custodian.look("a")
    controller.close()
    saved = [
        event.checkpoint
        for event in (entry.event for entry in platform.store.read_job("a"))
        if isinstance(event, CheckpointSaved)
    ]
    assert saved == ["checkpoint-3"]
    assert [(pin.step, pin.name) for pin in store.pins("a")] == [(3, "checkpoint-3")]
