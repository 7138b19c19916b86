"""Settings that change while it runs: the next decision is by the new ones, as after a restart."""

from __future__ import annotations

import msgspec
import pytest

from evalstop.config.settings import ClusterSettings, PolicySettings, Settings, make_policy
from evalstop.core.errors import InputError
from evalstop.policies.modes import Mode
from evalstop.service.live_watches import LiveWatches
from evalstop.service.reload import Reloader, differences

POLICY = PolicySettings(rule="consecutive:k=2", warn_s=0, backed_s=0)
OBSERVING = Settings(cluster=ClusterSettings(slots=2, scheduler="fifo"), policy=POLICY)
ENFORCING = msgspec.structs.replace(
    OBSERVING, policy=msgspec.structs.replace(POLICY, mode=Mode.ENFORCE)
)


@pytest.fixture
def observing(make_platform):
    class Observing(make_platform):
        settings = OBSERVING

        def policy(self):
            return make_policy(self.settings)

    return Observing()


def reloader(platform, new):
    """A reloader whose asks are answered at once, in this thread."""
    made = Reloader(
        platform.controller, platform.store, read=lambda: new, path=None, settings=OBSERVING
    )
    ask = platform.controller.ask

    def settled(build):
        future = ask(build)
        platform.controller.settle()
        return future

    platform.controller.ask = settled
    return made


def report(platform, *scores, first=1):
    for step, score in enumerate(scores, start=first):
        platform.report("a", step, score)


def test_in_observe_mode_nothing_touches_the_backend(observing):
    observing.look()
    observing.submit("a")
    observing.look()
    report(observing, 0.5, 0.6, 0.5, 0.4, 0.3, 0.2)
    for _ in range(3):
        observing.look()
    assert [verb for verb, _, _ in observing.backend.log] == ["start"]
    assert "observe" in observing.controller.ledger.jobs["a"].advice.note


def test_a_new_mode_takes_effect_at_the_next_report_and_survives_a_restart(observing):
    observing.look()
    observing.submit("a")
    observing.look()
    report(observing, 0.5, 0.6, 0.5, 0.4)
    watches = LiveWatches(observing.controller)
    assert watches["a"].verdict.alarm
    changed = reloader(observing, ENFORCING).reload()
    assert changed == ['policy.mode: "observe" -> "enforce"']
    assert list(watches) == ["a"]
    assert watches["a"].verdict.alarm, "the curve is remembered"
    assert observing.phase("a") == "running"
    report(observing, 0.3, first=5)
    observing.look()
    assert observing.phase("a") == "stopped_by_policy"
    before = observing.picture()
    notes = [
        e.event.note
        for e in observing.store.read()
        if type(e.event).__name__ == "OperatorCommanded"
    ]
    assert notes[0] == changed[0]
    observing.settings = ENFORCING
    observing.restart()
    assert observing.picture() == before


def test_a_new_rule_judges_the_whole_curve(observing):
    observing.look()
    observing.submit("a")
    observing.look()
    report(observing, 0.5, 0.6, 0.5)
    strict = msgspec.structs.replace(
        ENFORCING, policy=msgspec.structs.replace(ENFORCING.policy, rule="consecutive:k=1")
    )
    reloader(observing, strict).reload()
    assert LiveWatches(observing.controller)["a"].verdict.alarm
    report(observing, 0.4, first=4)
    assert observing.phase("a") == "releasing"


def test_settings_that_do_not_fit_leave_the_old_ones_in_force(observing):
    observing.look()
    policy = observing.controller.kernel.policy

    def broken():
        message = "evalstop.toml, line 3: no"
        raise InputError(message)

    made = reloader(observing, OBSERVING)
    made._read = broken
    assert made.reload() == []
    assert "line 3" in made.troubles()[0]
    assert observing.controller.kernel.policy is policy
    made._read = lambda: OBSERVING
    made.reload()
    assert made.troubles() == []
    assert observing.controller.kernel.policy is policy, "nothing that decides has changed"


def test_differences_are_lines():
    old = {"a": {"b": 1, "c": [1]}, "d": "x"}
    new = {"a": {"b": 2, "c": [1]}, "e": None, "f": True}
    assert differences(old, new) == ["a.b: 1 -> 2", 'd: "x" -> (unset)', "f: (unset) -> true"]
