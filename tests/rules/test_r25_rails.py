"""R25: the rails. What policy may do, and whose word counts, at any moment of a stop's way.

The other half, that observe mode touches no backend, is shown by a spy in
tests/unit/service/test_reload.py and tests/property/test_parity.py.
"""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rule_cluster import FALLING, RuleCluster

from evalstop.config.settings import ChoiceSettings, Exemption, PolicySettings, Settings
from evalstop.core.actions import Preempt, RequestEval, RequestSave, Stop
from evalstop.core.job import Outcome
from evalstop.policies.modes import Mode

PLAIN = {
    "mode": Mode.ENFORCE,
    "rule": "consecutive:k=2",
    "warn_s": 0.0,
    "confirm_s": 0.0,
    "backed_s": 0.0,
}
WAITS = st.fixed_dictionaries(
    {
        "warn_s": st.sampled_from([0.0, 60.0, 600.0]),
        "confirm_s": st.sampled_from([0.0, 60.0, 600.0]),
        "backed_s": st.sampled_from([0.0, 60.0, 600.0]),
    }
)


def cluster_of(**policy):
    return RuleCluster(Settings(policy=PolicySettings(**(PLAIN | policy))))


@given(WAITS, st.booleans(), st.sampled_from(["freeze", "snooze"]), st.floats(0.0, 700.0))
def test_a_freeze_or_snooze_at_any_moment_before_the_stop_holds_it(
    waits, checkpoint, command, after_s
):
    """The window before a stop is there to be used: what is held must not come after all."""
    cluster = cluster_of(**waits)
    cluster.submit()
    cluster.report(*FALLING[:-1], checkpoint=checkpoint)
    if not any(waits.values()):  # nothing holds it: people must have spoken before the alarm
        cluster.order(command, job="" if command == "freeze" else "a")
    cluster.report(FALLING[-1], start=4, checkpoint=checkpoint)
    cluster.wait(after_s)
    if cluster.stops():
        return  # too late
    cluster.order(command, job="" if command == "freeze" else "a")
    cluster.wait(10_000.0)
    cluster.report(0.6, 0.5, 0.4, start=5, checkpoint=checkpoint, after=700.0)
    cluster.wait(10_000.0)
    assert cluster.stops() == []


@given(WAITS, st.booleans())
def test_when_the_freeze_ends_an_alarm_that_lasts_stops_after_all(waits, checkpoint):
    cluster = cluster_of(**waits)
    cluster.submit()
    cluster.order("freeze", job="")
    cluster.report(*FALLING, checkpoint=checkpoint)
    cluster.wait(5_000.0)
    assert cluster.stops() == []
    cluster.order("unfreeze", job="")
    cluster.report(0.6, start=5, checkpoint=checkpoint)
    cluster.wait(5_000.0)
    assert [stop.job for stop in cluster.stops()] == ["a"]


@given(WAITS, st.floats(1.0, 3_000.0))
def test_a_snooze_with_an_end_holds_until_then_and_no_longer(waits, for_s):
    cluster = cluster_of(**waits)
    cluster.submit()
    cluster.report(*FALLING[:-1])
    until = cluster.now + for_s
    cluster.order("snooze", until=until)
    cluster.report(FALLING[-1], start=4, after=min(10.0, for_s / 2.0))
    step = 5
    while cluster.now < until + 5_000.0 and not cluster.stops():
        cluster.report(0.6 - 0.01 * step, start=step, after=200.0)
        step += 1
    (stop,) = cluster.stops()
    assert stop.author == "policy"
    assert cluster.now >= until


@given(
    st.sampled_from([60.0, 600.0]),
    st.sampled_from([60.0, 600.0]),
    st.integers(0, 12),
    st.booleans(),
)
def test_one_alarm_is_confirmed_once_and_one_save_is_asked_for(confirm_s, backed_s, more, recovers):
    """R28, R04: while the stop is announced its job goes on reporting; nothing is asked again."""
    cluster = cluster_of(confirm_s=confirm_s, backed_s=backed_s, warn_s=3_000.0)
    cluster.submit()
    cluster.report(*FALLING, checkpoint=False)
    cluster.report(*[0.6 - 0.03 * n for n in range(more)], start=5, checkpoint=False, after=100.0)
    asked = [type(action) for action in cluster.requests()]
    assert asked.count(RequestEval) == 1
    assert asked.count(RequestSave) <= 1
    if recovers:  # the alarm is over: the next one is a new one
        cluster.report(2.0, 1.9, 1.8, start=50, checkpoint=False)
        asked = [type(action) for action in cluster.requests()]
        assert asked.count(RequestEval) == 2
    cluster.wait(20_000.0)
    assert len(cluster.stops()) == 1


@given(WAITS, st.sampled_from(["approve", "stop"]))
def test_a_persons_order_passes_every_wait_budget_and_protection(waits, command):
    settings = Settings(
        policy=PolicySettings(
            **(PLAIN | waits | {"stops_per_tenant_hour": 0, "protect_tenants": ("x",)})
        )
    )
    cluster = RuleCluster(settings)
    cluster.submit(tenant="x")
    cluster.order("freeze", job="")
    cluster.report(*FALLING)
    assert cluster.stops() == []
    cluster.order(command)
    (stop,) = cluster.stops()
    assert (stop.author, stop.best_step, stop.best_checkpoint) == ("ann", 2, "c2")


@given(
    WAITS,
    st.sampled_from([Mode.OBSERVE, Mode.ADVISE]),
    st.lists(st.floats(0.0, 1.0), min_size=5, max_size=15),
    st.booleans(),
)
def test_observe_and_advise_ask_nothing_of_trainer_or_backend(waits, mode, scores, checkpoint):
    cluster = cluster_of(**waits, mode=mode)
    cluster.submit()
    cluster.report(*scores, checkpoint=checkpoint)
    cluster.wait(10_000.0)
    asked = (Stop, Preempt, RequestEval, RequestSave)
    assert not [action for action in cluster.actions if isinstance(action, asked)]


def test_observe_is_the_default():
    assert PolicySettings().mode is Mode.OBSERVE


@pytest.mark.parametrize(
    ("settings", "job"),
    [
        (PolicySettings(**PLAIN), {"labels": {"evalstop": "off"}}),
        (PolicySettings(**PLAIN, opt_out="keep=yes"), {"labels": {"keep": "yes"}}),
        (PolicySettings(**PLAIN, protect_tenants=("vip",)), {"tenant": "vip"}),
    ],
)
def test_opted_out_and_protected_jobs_are_never_stopped_by_policy(settings, job):
    cluster = RuleCluster(Settings(policy=settings))
    cluster.submit(**job)
    cluster.report(*FALLING, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
    assert cluster.stops() == []
    cluster.submit("b")
    cluster.report(*FALLING, name="b")
    assert [stop.job for stop in cluster.stops()] == ["b"], "only the named ones are protected"


@given(st.integers(1, 40), WAITS)
def test_an_exemption_ends_on_its_date(minutes, waits):
    until = dt.datetime.fromtimestamp(60.0 * minutes, tz=dt.UTC)
    exempt = (Exemption(name="a", until=until),)
    cluster = RuleCluster(Settings(policy=PolicySettings(**(PLAIN | waits)), exempt=exempt))
    cluster.submit()
    scores = [0.9, *(0.8 - 0.005 * step for step in range(80))]
    cluster.report(*scores, after=60.0)
    cluster.wait(2_000.0)
    (stop,) = cluster.stops()
    assert stop.job == "a"
    first = next(action for action in cluster.actions if action is stop)
    assert first.step * 60.0 >= 60.0 * minutes


@given(st.integers(0, 4), st.integers(1, 8), st.integers(1, 3))
def test_at_most_so_many_stops_a_tenant_and_hour(stops, jobs, tenants):
    cluster = cluster_of(stops_per_tenant_hour=stops)
    for tenant in range(tenants):
        for job in range(jobs):
            name = f"{tenant}-{job}"
            cluster.submit(name, tenant=str(tenant))
            cluster.report(*FALLING, name=name, after=0.1)
            if cluster.stops() and cluster.stops()[-1].job == name:
                cluster.end(name, outcome=Outcome.STOPPED_BY_POLICY)
    by_tenant = [stop.job.partition("-")[0] for stop in cluster.stops()]
    assert [by_tenant.count(str(tenant)) for tenant in range(tenants)] == [
        min(stops, jobs)
    ] * tenants


@given(st.integers(10, 5_000), st.integers(0, 6))
def test_a_stop_is_announced_first_and_comes_when_the_window_closes(window_s, more):
    cluster = cluster_of(warn_s=window_s)
    cluster.submit()
    cluster.report(*FALLING)
    (notice,) = cluster.advice()
    assert notice.action.job == "a"
    announced = cluster.now
    cluster.report(*[0.6 - 0.05 * n for n in range(more)], start=5, after=window_s // 10)
    assert cluster.stops() == []
    cluster.wait(announced + window_s - cluster.now)
    (stop,) = cluster.stops()
    assert stop.step == 4 + more, "the newest verdict goes with it"


@pytest.mark.parametrize(
    ("selector", "job", "stopped"),
    [
        ({"job_type": "dpo"}, {"job_type": "dpo"}, True),
        ({"tenant": "lab"}, {"tenant": "lab"}, True),
        ({"queue": "spot"}, {"labels": {"queue": "spot"}}, True),
        ({"labels": {"team": "x"}}, {"labels": {"team": "x"}}, True),
        ({"tenant": "lab", "queue": "spot"}, {"tenant": "lab"}, False),
    ],
)
def test_enforcement_can_begin_with_some_jobs(selector, job, stopped):
    settings = Settings(
        policy=PolicySettings(**(PLAIN | {"mode": Mode.OBSERVE})),
        rules=(ChoiceSettings(mode=Mode.ENFORCE, **selector),),
    )
    cluster = RuleCluster(settings)
    cluster.submit(**job)
    cluster.submit("other")
    cluster.report(*FALLING)
    cluster.report(*FALLING, name="other")
    assert [stop.job for stop in cluster.stops()] == (["a"] if stopped else [])
