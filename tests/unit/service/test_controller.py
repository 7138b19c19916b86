from __future__ import annotations

import random
import sys
import threading
from contextlib import contextmanager

import pytest

from evalstop.config.rules import parse_rule
from evalstop.core.errors import IllegalEventError, InputError, StoreError
from evalstop.core.events import EvalReported, JobEnded, TimerFired
from evalstop.core.history import History
from evalstop.service.controller import BusyError
from evalstop.service.live_watches import LiveWatches
from evalstop.service.views import cluster_view
from evalstop.store.sqlite import SqliteStore


@contextmanager
def beside(look, over, *, switch_s):
    """Let another thread look, until what is done meanwhile is over; threads take turns fast."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(switch_s)
    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()
        sys.setswitchinterval(interval)


def decline(platform, job, scores=(0.5, 0.6, 0.55, 0.5)):
    for number, score in enumerate(scores):
        platform.report(job, 10 * (number + 1), score)


def test_a_job_is_submitted_started_and_completed(platform):
    platform.look()
    platform.submit("a", gpus=2)
    assert platform.phase("a") == "starting"
    platform.look()
    assert platform.phase("a") == "running"
    platform.backend.finish("a")
    platform.look()
    assert platform.phase("a") == "completed"
    platform.look()
    assert platform.backend.listing().jobs == ()


def test_a_declining_job_is_stopped_and_its_gpus_go_to_the_next(platform):
    platform.look()
    platform.submit("a", gpus=2)
    platform.submit("b", gpus=2)
    platform.look()
    decline(platform, "a")
    assert platform.phase("a") == "releasing"
    assert platform.phase("b") == "waiting"
    platform.look()
    assert platform.phase("a") == "stopped_by_policy"
    platform.look()
    assert platform.phase("b") == "running"


@pytest.mark.parametrize("code", [0, 143, 137, 1])
def test_after_our_stop_every_exit_code_is_our_stop(platform, code):
    platform.look()
    platform.submit("a")
    platform.look()
    platform.backend._runs["a"].stubborn = True
    decline(platform, "a")
    platform.backend.finish("a", code)
    platform.look()
    assert platform.phase("a") == "stopped_by_policy"


def test_a_crash_is_a_failure(platform):
    platform.look()
    platform.submit("a", command=("exit", "3"))
    platform.look()
    platform.look()
    assert platform.phase("a") == "failed"


def test_gpus_that_are_not_proven_free_leave_the_capacity(platform):
    platform.backend.stuck.add("a")
    platform.look()
    platform.submit("a")
    platform.look()
    decline(platform, "a")
    platform.submit("b", gpus=2)
    platform.look()
    view = platform.controller.kernel.state.view
    assert platform.phase("a") == "stopped_by_policy"
    assert (view.total_gpus, view.free_gpus) == (1, 1)
    assert platform.phase("b") == "waiting"


def test_a_job_that_vanishes_fails_only_when_it_stays_away(platform):
    platform.look()
    platform.submit("a")
    platform.look()
    run = platform.backend._runs.pop("a")
    platform.look()
    platform.look()
    assert platform.phase("a") == "running"
    platform.backend._runs["a"] = run
    platform.look()
    del platform.backend._runs["a"]
    for _ in range(3):
        platform.look()
    assert platform.phase("a") == "failed"


def test_a_waiting_job_can_be_stopped_without_ever_having_run(platform):
    platform.look()
    platform.submit("a", gpus=2)
    platform.submit("b", gpus=2)
    platform.look()
    decline(platform, "b")
    platform.look()
    assert platform.phase("b") == "stopped_by_policy"
    assert ("start", "b") not in [(verb, job) for verb, job, _ in platform.backend.log]


def test_a_job_that_runs_after_its_end_is_stopped_again(platform):
    platform.look()
    platform.submit("a")
    platform.look()
    platform.ask(lambda s: [JobEnded(time=s.now, job="a")])
    platform.look()
    assert platform.backend.log[-1][:2] == ("stop", "a")


def test_nothing_is_done_before_it_is_written(platform):
    platform.look()

    class FullDiskError(StoreError):
        pass

    def full(_entries):
        raise FullDiskError

    append, platform.store.append = platform.store.append, full
    with pytest.raises(BusyError, match="cannot be written"):
        platform.submit("a")
    assert platform.backend.log == []
    with pytest.raises(BusyError):
        platform.submit("c")
    platform.store.append = append
    platform.submit("b")
    assert [job for _, job, _ in platform.backend.log] == ["a", "b"]
    before = platform.picture()
    platform.restart()
    assert platform.picture() == before


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_what_no_log_can_hold_is_refused_to_its_asker_alone(make_platform, tmp_path, store):
    platform = make_platform()
    if store == "sqlite":
        platform.store = platform.documents = SqliteStore(tmp_path / "log.sqlite")
        platform.restart()
    platform.look()
    platform.submit("a")
    platform.look()
    before = platform.picture()
    for fields in ({"epoch_key": "\ud800"}, {"checkpoint": "checkpoint-\udcff"}):
        with pytest.raises(InputError, match="the log cannot hold EvalReported"):
            platform.report("a", 10, 0.5, **fields)
    assert platform.picture() == before
    assert not platform.controller.deposed.is_set()
    platform.report("a", 10, 0.5)
    after = platform.picture()
    platform.restart()
    assert platform.picture() == after


def test_a_store_with_a_bug_is_told_and_tried_again(platform):
    platform.look()
    append = platform.store.append

    def broken(_entries):
        message = "a bug in the store"
        raise ZeroDivisionError(message)

    platform.store.append = broken
    with pytest.raises(BusyError, match="a bug in the store"):
        platform.submit("a")
    assert "a bug in the store" in platform.controller.store_problem
    platform.store.append = append
    platform.submit("b")
    assert [job for _, job, _ in platform.backend.log] == ["a", "b"]


def test_a_bug_in_deciding_ends_the_controller_and_keeps_nobody_waiting(platform, caplog):
    platform.look()
    controller = platform.controller

    def broken(*_):
        message = "a bug in the ledger"
        raise ZeroDivisionError(message)

    controller.ledger.note = broken
    controller._timers = [(0.0, "due")]
    controller.start()
    assert controller.deposed.wait(120)
    assert "a bug in the ledger" in controller.failure
    assert "deciding ended by a bug" in caplog.text
    controller.close()
    platform.restart()
    platform.submit("a")
    assert platform.phase("a") == "starting"


def test_a_second_writer_deposes_the_first(platform):
    platform.look()
    first = platform.controller
    platform.restart()
    platform.submit("a")
    future = first.ask(lambda s: [TimerFired(time=s.now)])
    first.settle()
    with pytest.raises(BusyError):
        future.result(timeout=0)
    assert first.deposed.is_set()


def test_an_impossible_event_is_told_to_the_asker_and_leaves_no_trace(platform):
    platform.look()
    before = platform.controller.sequence
    with pytest.raises(IllegalEventError, match="nobody"):
        platform.ask(lambda s: [TimerFired(time=s.now), JobEnded(time=s.now, job="nobody")])
    assert platform.controller.sequence == before + 1  # the timer, which was possible
    platform.restart()
    assert platform.controller.sequence == before + 1


def test_a_policy_that_raises_costs_no_job(platform):
    platform.look()
    platform.submit("a")
    platform.look()
    decide = platform.controller.kernel.policy.decide

    def broken(_event, _view):
        raise ZeroDivisionError

    platform.controller.kernel.policy.decide = broken
    platform.report("a", 10, 0.5)
    assert platform.phase("a") == "running"
    platform.controller.kernel.policy.decide = decide
    assert platform.controller.ledger.jobs["a"].best.score == 0.5


def test_a_wall_clock_that_jumps_does_not_move_the_log(platform):
    platform.look()
    platform.submit("a")
    platform.look()
    before = platform.controller.now()
    platform.clock.jump(-86_400)
    assert platform.controller.now() == before
    platform.look()
    platform.restart()
    platform.report("a", 10, 0.5)
    times = [entry.event.time for entry in platform.store.read()]
    assert times == sorted(times)


def test_a_restart_sends_again_what_nothing_has_acknowledged(platform):
    platform.look()

    def dead(_order):
        raise KeyboardInterrupt

    start, platform.backend.start = platform.backend.start, dead
    with pytest.raises(KeyboardInterrupt):
        platform.submit("a")
    platform.backend.start = start
    platform.restart()
    platform.look()
    assert platform.phase("a") == "running"
    key = platform.backend.log[0][2]
    assert key == "2.0"


def test_a_run_that_nobody_saw_start_is_counted_when_it_is_stopped(platform):
    platform.look()
    platform.submit("a")
    assert platform.phase("a") == "starting"
    decline(platform, "a")
    platform.look()
    assert platform.phase("a") == "stopped_by_policy"
    assert platform.controller.ledger.jobs["a"].starts == 1


def test_a_look_meanwhile_is_repeated_until_nothing_has_changed(platform):
    controller, sequences = platform.controller, []

    def look():
        sequences.append(controller.sequence)
        if len(sequences) < 3:
            platform.submit(f"job-{len(sequences)}")
        return sequences[-1]

    assert controller.steady(look) == controller.sequence
    assert sequences == [0, 1, 2]


def test_gpus_add_up_for_whoever_looks_while_jobs_come_and_go(platform):
    """R24: a job that ends frees its GPUs in two steps; nobody sees the first alone."""
    platform.look()
    controller, wrong, over = platform.controller, [], threading.Event()

    def gpus_of():
        return controller.steady(lambda: cluster_view(controller, ()))["gpus"]

    def look():
        while not over.is_set():
            gpus = gpus_of()
            if gpus["free"] + sum(gpus["held"].values()) != gpus["total"]:
                wrong.append(gpus)

    with beside(look, over, switch_s=1e-5):
        for number in range(200):
            platform.submit(f"a{number}")
            platform.look()
            platform.backend.finish(f"a{number}")
            platform.look()
    assert wrong == []


def test_looking_at_a_curve_meanwhile_changes_no_decision(make_platform):
    """A curve is folded when its verdict is asked for: by one thread at a time."""
    platform = make_platform(rule="default")
    platform.look()
    watches, over, verdicts = LiveWatches(platform.controller), threading.Event(), {}

    def look():
        while not over.is_set():
            for watch in list(watches.values()):
                assert watch.verdict.best_step < max(1, len(watch.series))

    with beside(look, over, switch_s=1e-6):
        for number in range(40):
            rng, job = random.Random(number), f"j{number}"
            platform.submit(job)
            for step in range(30):
                score = 0.5 + 0.002 * step + rng.gauss(0.0, 0.01)
                platform.report(job, step, score, stderr=0.01)
            verdicts[job] = platform.controller.kernel.policy.watches[job].verdict
            platform.command("stop", job)
    rule = parse_rule("default").for_type("rlhf")
    for job, verdict in verdicts.items():
        points = [
            entry.event.point
            for entry in platform.store.read_job(job)
            if isinstance(entry.event, EvalReported)
        ]
        assert repr(verdict) == repr(History(rule, points).verdict), job
