"""What a look at ten thousand jobs leaves to the deciding thread: those that are not at rest."""

from __future__ import annotations

from evalstop.core.events import JobEnded
from evalstop.service.reconcile import Reconciler


def _glance(platform):
    controller = platform.controller
    listing = platform.backend.listing()
    return Reconciler().glance(listing, controller.kernel.state.view, controller.ledger)


def test_jobs_that_run_and_are_listed_as_running_are_left_out(make_platform):
    platform = make_platform(gpus=4)
    for name in ("a", "b", "c"):
        platform.submit(name)
    platform.look()
    platform.look()
    assert {platform.phase(name) for name in "abc"} == {"running"}
    glance = _glance(platform)
    assert not glance.listed
    assert not glance.absent


def test_jobs_that_ended_started_or_are_missing_are_not(make_platform):
    platform = make_platform(gpus=4)
    for name in ("ends", "stays", "vanishes"):
        platform.submit(name)
    platform.look()
    platform.look()
    platform.submit("starts")
    platform.backend.finish("ends")
    del platform.backend._runs["vanishes"]
    glance = _glance(platform)
    assert set(glance.listed) == {"ends", "starts"}
    assert glance.absent == ("vanishes",)


def test_a_job_that_comes_back_into_the_listing_is_no_longer_counted_as_absent(platform):
    platform.submit("a")
    platform.look()
    for _ in range(3):
        run = platform.backend._runs.pop("a")
        platform.look()
        platform.look()
        platform.backend._runs["a"] = run
        platform.look()
    assert platform.phase("a") == "running"
    assert not any(isinstance(entry.event, JobEnded) for entry in platform.store.read())
