"""A restart under other settings: the log stands, and the alarm is answered by the new ones.

The replay shows the new policy evaluations it would have answered otherwise. What it would have
done then was not done: no notice was given, no evaluation asked for, no timer set.
"""

from __future__ import annotations

import itertools

import pytest

from evalstop.config.settings import PolicySettings, Settings, make_policy
from evalstop.core.actions import Advise, RequestEval, RequestSave, Stop
from evalstop.policies.modes import Mode

WAIT_S = 100.0
COMMON = {"rule": "consecutive:k=2", "warn_s": 0.0, "backed_s": 0.0, "confirm_s": 0.0}


def _settings(**changed):
    return Settings(policy=PolicySettings(**(COMMON | changed)))


KINDS = {
    "observe": (_settings(mode=Mode.OBSERVE), Advise),
    "advise": (_settings(mode=Mode.ADVISE), Advise),
    "warn": (_settings(mode=Mode.ENFORCE, warn_s=WAIT_S), Advise),
    "warn longer": (_settings(mode=Mode.ENFORCE, warn_s=2 * WAIT_S), Advise),
    "confirm": (_settings(mode=Mode.ENFORCE, confirm_s=WAIT_S), RequestEval),
    "back": (_settings(mode=Mode.ENFORCE, backed_s=WAIT_S), RequestSave),
    "enforce": (_settings(mode=Mode.ENFORCE), Stop),
}
HOLDING = ["warn", "warn longer", "confirm", "back"]


@pytest.fixture
def under(make_platform):
    """A platform with a job in alarm under settings of one kind."""

    class Changing(make_platform):
        kind = "observe"

        def policy(self):
            return make_policy(
                Settings(
                    cluster=Settings().cluster.__class__(scheduler="fifo"),
                    policy=KINDS[self.kind][0].policy,
                )
            )

    platform = Changing()

    def begin(kind):
        platform.kind = kind
        platform.restart()
        platform.look()
        platform.submit("a")
        platform.look()
        for step in (1, 2, 3):
            platform.report("a", step, -0.1 * step)
        return platform

    return begin


def _answered(entries):
    return [
        type(action)
        for entry in entries
        for action in entry.actions
        if isinstance(action, (Advise, RequestEval, RequestSave, Stop))
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [pair for pair in itertools.permutations(KINDS, 2) if pair[0] != "enforce"],
)
def test_the_alarm_is_answered_anew_by_the_new_settings(under, before, after):
    platform = under(before)
    platform.kind = after
    platform.restart()
    assert platform.phase("a") == "running"
    assert KINDS[after][1] in _answered(platform.report("a", 4, -0.4))


@pytest.mark.parametrize(
    ("before", "after"),
    [(one, two) for one in KINDS for two in HOLDING if one not in {two, "enforce"}],
)
def test_a_stop_that_is_held_is_let_go_in_time(under, before, after):
    platform = under(before)
    platform.kind = after
    platform.restart()
    platform.report("a", 4, -0.4)
    platform.clock.advance(2 * WAIT_S - 1.0)
    platform.controller.settle()
    platform.look()
    platform.clock.advance(2.0)
    platform.controller.settle()
    platform.look()
    assert platform.phase("a") == "stopped_by_policy"


@pytest.mark.parametrize("kind", HOLDING)
def test_a_stop_that_is_held_is_let_go_in_time_after_a_restart_under_the_same_settings(under, kind):
    platform = under(kind)
    platform.restart()
    assert platform.controller.changed_decisions == 0
    platform.clock.advance(2 * WAIT_S + 1.0)
    platform.controller.settle()
    platform.look()
    assert platform.phase("a") == "stopped_by_policy"


def test_what_was_advised_before_can_still_be_approved(under):
    platform = under("advise")
    platform.kind = "observe"
    platform.restart()
    platform.command("approve", "a")
    platform.look()
    assert platform.phase("a") == "cancelled"


def test_a_budget_is_not_spent_by_a_replay(under):
    platform = under("observe")
    platform.kind = "enforce"
    platform.restart()
    platform.report("a", 4, -0.4)
    platform.look()
    assert platform.phase("a") == "stopped_by_policy"
