"""kill -9 between any two steps: the next controller finishes what the last one began."""

from __future__ import annotations

import random

import pytest

from evalstop.core.job import Outcome
from evalstop.service.recover import _differ

KILL_POINTS = 400


class Killed(BaseException):
    """Goes through every ``except Exception``, as a kill does."""


class Killer:
    """Counts the steps that reach the outside world and kills at one of them."""

    def __init__(self, at):
        self.at = at
        self.count = 0

    def wrap(self, owner, name):
        inner = getattr(owner, name)

        def step(*args):
            self._tick()  # before it has happened
            result = inner(*args)
            self._tick()  # after it has happened, before anybody knows
            return result

        setattr(owner, name, step)

    def _tick(self):
        self.count += 1
        if self.count == self.at:
            raise Killed


def script(seed):
    """Return what the world does: jobs come, report and end by themselves."""
    rng = random.Random(seed)
    jobs = {f"j{n}": rng.choice(["healthy", "declines", "crashes", "vain"]) for n in range(7)}
    return jobs, rng


class World:
    """Lets jobs come, report and end; restarts the controller whenever it is killed."""

    def __init__(self, platform, seed, killer):
        self.platform = platform
        self.jobs, self.rng = script(seed)
        self.gpus = {job: self.rng.choice([1, 1, 2]) for job in self.jobs}
        self.steps = dict.fromkeys(self.jobs, 0)
        self.kills = 0
        for name in ("append", "put"):
            killer.wrap(platform.store, name)
        for name in ("start", "stop", "listing", "forget"):
            killer.wrap(platform.backend, name)

    def persistently(self, act, *arguments, **fields):
        while True:
            try:
                return act(*arguments, **fields)
            except Killed:
                self.kills += 1
                self._restart()

    def _restart(self):
        while True:
            try:
                return self.platform.restart()
            except Killed:
                self.kills += 1

    def play(self):
        platform = self.platform
        self.persistently(platform.look)
        for job in self.jobs:
            self.persistently(platform.submit, job, gpus=self.gpus[job])
        for _ in range(200):
            self.persistently(platform.look)
            if not platform.controller.ledger.live():
                break
            for job, kind in self.jobs.items():
                self.advance(job, kind)
        self.persistently(platform.look)
        self.persistently(platform.look)
        return self.jobs, self.kills

    def advance(self, job, kind):
        platform = self.platform
        if platform.phase(job) != "running":
            return
        self.steps[job] += 1
        step = self.steps[job]
        score = 0.5 - 0.1 * step if kind == "declines" else 0.5 + 0.01 * step
        self.persistently(platform.report, job, step, score)
        if platform.phase(job) == "running" and step == 5:
            platform.backend.finish(job, 1 if kind == "crashes" else 0)


def play(platform, seed, killer):
    return World(platform, seed, killer).play()


def expected(kind):
    return {
        "declines": Outcome.STOPPED_BY_POLICY,
        "crashes": Outcome.FAILED,
    }.get(kind, Outcome.COMPLETED)


def steps_of(make_platform, seed):
    killer = Killer(at=-1)
    play(make_platform(), seed, killer)
    return killer.count


@pytest.mark.parametrize("seed", range(4))
def test_a_kill_between_any_two_steps_loses_nothing(make_platform, seed):
    steps = steps_of(make_platform, seed)
    points = random.Random(seed).sample(range(1, steps), min(steps - 1, KILL_POINTS // 4))
    for at in points:
        platform = make_platform()
        jobs, kills = play(platform, seed, Killer(at=at))
        assert kills == 1
        check(platform, jobs)


def check(platform, jobs):
    ledger = platform.controller.ledger
    assert {job: ledger.jobs[job].outcome for job in jobs} == {
        job: expected(kind) for job, kind in jobs.items()
    }
    effects = [(verb, job) for verb, job, _ in platform.backend.log]
    assert len(effects) == len(set(effects)), "a job was started or stopped twice"
    stopped = {job for verb, job in effects if verb == "stop"}
    assert stopped == {job for job, kind in jobs.items() if kind == "declines"}
    assert platform.backend.listing().jobs == (), "something was left behind"
    platform.controller.kernel.state.check()
    assert platform.controller.kernel.state.view.free_gpus == 2
    before = platform.picture()
    platform.restart()
    assert platform.picture() == before
    assert platform.controller.changed_decisions == 0


def test_kills_again_and_again_while_recovering(make_platform):
    for seed in range(10):
        platform = make_platform()
        rng = random.Random(seed)
        killer = Killer(at=rng.randrange(1, 30))
        tick = killer._tick

        def again(tick=tick, killer=killer, rng=rng):
            try:
                tick()
            except Killed:
                killer.at = killer.count + rng.randrange(5, 40)
                raise

        killer._tick = again
        jobs, kills = play(platform, seed, killer)
        killer.at = -1
        assert kills > 3
        check(platform, jobs)


def test_every_prefix_of_the_log_and_the_rest_is_the_whole(make_platform):
    platform = make_platform()
    play(platform, 1, Killer(at=-1))
    whole = platform.picture()
    entries = list(platform.store.read())
    for cut in range(0, len(entries), 3):
        part = make_platform()
        part.store.append(entries[:cut])
        part.restart()
        state, policy = part.controller.kernel.state, part.controller.kernel.policy
        for entry in entries[cut:]:
            state.apply(entry.event)
            assert not _differ(policy.decide(entry.event, state.view), entry.actions)
            for action in entry.actions:
                state.promise(action)
        rest = make_platform()
        rest.store.append(entries)
        rest.restart()
        assert rest.picture() == whole
