"""kill -9 of a real PostgreSQL while the controller writes: what was answered is there, once.

Each kill takes all processes of the server, at a random moment of a write, and starts it again;
every few kills the controller dies with it. A soak of some minutes:

    EVALSTOP_DATABASE_KILLS=400 python -m pytest -s tests/unit/service/test_database_killed.py
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from pathlib import Path

import pytest
from test_kill_points import Killed, World, check

from evalstop.core.errors import StoreError
from evalstop.service.controller import BusyError
from evalstop.store.postgres import PostgresStore

sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))
from postgres_server import PostgresServer

KILLS = int(os.environ.get("EVALSTOP_DATABASE_KILLS", "16"))
KILLS_A_RUN = 8
LONGEST_S = 0.006
"""A write takes 1 to 5 ms: the kill comes before, in or after it."""


@pytest.fixture(scope="module")
def server():
    with PostgresServer.temporary() as server:
        yield server


class Assassin:
    """Kills the server at random moments of what is written, and starts it again."""

    def __init__(self, server, rng):
        self.server, self.rng = server, rng
        self.kills = self.controllers = 0
        self.pause = self._next_pause()
        self.thread = None

    def _next_pause(self):
        return self.rng.randrange(1, 12)

    def wrap(self, owner, name):
        inner = getattr(owner, name)

        def step(*arguments):
            fires = self.kills < KILLS_A_RUN and self.is_time()
            if fires:
                self.strike(self.rng.uniform(0.0, LONGEST_S))
            try:
                return inner(*arguments)
            finally:
                if fires and self.rng.random() < 0.25:
                    self.join()
                    self.controllers += 1
                    raise Killed  # the controller goes, too: nobody hears whether it was written

        setattr(owner, name, step)

    def is_time(self):
        self.pause -= 1
        if self.pause > 0:
            return False
        self.pause = self._next_pause()
        return True

    def strike(self, delay_s):
        self.join()
        self.kills += 1

        def act():
            time.sleep(delay_s)
            self.server.kill()
            self.server.start()

        self.thread = threading.Thread(target=act)
        self.thread.start()

    def join(self):
        if self.thread is not None:
            self.thread.join()


def until_it_is_there(get):
    """Errands read what to launch; live, one that fails is tried again in a thread of its own."""

    def patient(*arguments):
        deadline = time.monotonic() + 300.0
        while True:
            try:
                return get(*arguments)
            except StoreError:
                assert time.monotonic() < deadline
                time.sleep(0.02)

    return patient


class PatientWorld(World):
    """Whoever is told that nothing could be written asks again."""

    refusals = 0

    def persistently(self, act, *arguments, **fields):
        deadline = time.monotonic() + 300.0
        while True:
            try:
                return super().persistently(act, *arguments, **fields)
            except (StoreError, BusyError):
                self.refusals += 1
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def _restart(self):
        self.persistently(super()._restart)


@pytest.mark.parametrize("seed", range(max(1, KILLS // KILLS_A_RUN)))
def test_what_was_answered_survives_kills_of_the_database(make_platform, server, seed):
    server.run("createdb", "-h", server.folder, "-U", "postgres", f"run{seed}")
    store = PostgresStore(server.address(f"run{seed}"))
    platform = make_platform()
    platform.store = platform.documents = store
    store.get = until_it_is_there(store.get)
    platform.restart()
    assassin = Assassin(server, random.Random(seed))
    world = PatientWorld(platform, seed, assassin)
    try:
        jobs, _ = world.play()
        assassin.join()
        assert assassin.kills == KILLS_A_RUN
        check(platform, jobs)
        numbers = [entry.sequence for entry in store.read()]
    finally:
        assassin.join()
        store.close()
    assert numbers == list(range(1, len(numbers) + 1))
    sys.stdout.write(
        f"\nseed {seed}: {assassin.kills} kills of the database, {assassin.controllers} of the "
        f"controller with it, {world.refusals} refusals that were asked again\n"
    )
