"""R16: every setting of ``[policy]`` has a case in which it alone changes what happens.

The settings of rules themselves: tests/unit/detectors/test_other_rules.py and
tests/unit/detectors/test_simple_rules.py. R28: a stop is confirmed by default where it can be.
"""

from __future__ import annotations

import pytest
from rule_cluster import FALLING, RuleCluster

from evalstop.config.settings import FeedbackSettings, PolicySettings, Settings
from evalstop.core.actions import RequestEval
from evalstop.policies.modes import Mode

BASE = {
    "mode": Mode.ENFORCE,
    "rule": "consecutive:k=2",
    "warn_s": 0.0,
    "confirm_s": 0.0,
    "backed_s": 0.0,
}


def outcome(settings, **job):
    """What one falling run without a checkpoint leads to: who was stopped, when, what was asked."""
    cluster = RuleCluster(settings)
    cluster.submit(**job)
    cluster.report(*FALLING, 0.6, checkpoint=False)
    cluster.wait(5_000.0)
    return (
        [(stop.step, stop.rule) for stop in cluster.stops()],
        [advice.note for advice in cluster.advice()],
        cluster.requests(),
        cluster.now,
        [timer.token for timer in cluster.actions if hasattr(timer, "token")],
    )


CASES = {
    "mode": ({"mode": Mode.OBSERVE}, {}),
    "rule": ({"rule": "consecutive:k=3"}, {}),
    "warn_s": ({"warn_s": 60.0}, {}),
    "confirm_s": ({"confirm_s": 60.0}, {}),
    "backed_s": ({"backed_s": 60.0}, {}),
    "stops_per_tenant_hour": ({"stops_per_tenant_hour": 0}, {}),
    "protect_tenants": ({"protect_tenants": ("x",)}, {"tenant": "x"}),
    "opt_out": ({"opt_out": "keep=yes"}, {"labels": {"keep": "yes"}}),
    "kinds": ({"kinds": {"declining": Mode.ADVISE}}, {}),
    "job_may_choose": (
        {"job_may_choose": ("consecutive:k=3",)},
        {"labels": {"rule": "consecutive:k=3"}},
    ),
}

ELSEWHERE = {"save_s"}
"""Held by tests/unit/service/test_last_save.py: it takes a backend that can be asked."""


def test_there_is_a_case_for_every_setting():
    assert set(PolicySettings.__struct_fields__) == CASES.keys() | ELSEWHERE


@pytest.mark.parametrize("name", CASES)
def test_the_setting_alone_changes_what_happens(name):
    changed, job = CASES[name]
    with_it = Settings(policy=PolicySettings(**(BASE | changed)))
    without = Settings(policy=PolicySettings(**BASE))
    assert outcome(with_it, **job) != outcome(without, **job)


@pytest.mark.parametrize(
    ("evaluate", "confirm_s", "asked"),
    [
        ("", None, False),
        ("evaluate {checkpoint}", None, True),
        ("evaluate {checkpoint}", 0.0, False),
        ("", 60.0, True),
    ],
)
def test_a_stop_is_confirmed_by_default_where_an_evaluator_can_do_it(evaluate, confirm_s, asked):
    """R28: current and best are asked for, and a recovery in them withdraws the stop."""
    policy = PolicySettings(**(BASE | {"confirm_s": confirm_s}))
    feedback = FeedbackSettings(evaluate=evaluate)
    cluster = RuleCluster(Settings(policy=policy, feedback=feedback))
    cluster.submit()
    cluster.report(*FALLING)
    assert bool(cluster.stops()) != asked
    assert cluster.requests() == ([RequestEval(job="a", steps=(2, 4))] if asked else [])
    if asked:
        cluster.report(1.2, start=4, eval_id="again")
        cluster.wait(100_000.0)
        assert cluster.stops() == []
