"""Counts for Prometheus: right, and with labels that cannot grow."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from evalstop.custody import FileCustody
from evalstop.service.custodian import Custodian
from evalstop.service.platform import Parts
from evalstop.service.platform import Platform as Facade
from evalstop.service.prometheus import add_metrics
from evalstop.service.tokens import Tokens


@pytest.fixture
def scrape(platform, tmp_path):
    custodian = Custodian(FileCustody(tmp_path), platform.documents)
    custodian.attach(platform.controller)
    facade = Facade(
        Parts(
            controller=platform.controller,
            carry_out=platform.carry_out,
            backend=platform.backend,
            store=platform.store,
            documents=platform.documents,
            custodian=custodian,
            tokens=Tokens(platform.documents),
            watches={},
        )
    )
    app = FastAPI()
    add_metrics(app, facade)

    async def get():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.get("/metrics")

    def read():
        answer = asyncio.run(get())
        assert answer.status_code == 200
        return {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }

    return read


def stop_one(platform, job):
    platform.submit(job, tenant=f"tenant of {job}")
    platform.look()
    platform.look()
    for step, score in enumerate([0.5, 0.6, 0.55, 0.5]):
        platform.report(job, step, score)
    platform.look()


def test_what_happened_is_counted(platform, scrape):
    stop_one(platform, "a")
    found = scrape()
    assert found["evalstop_gpus", "free"] == 2
    assert found["evalstop_gpus", "running"] == 0
    assert found["evalstop_jobs", "ended"] == 1
    assert found["evalstop_evals_total",] == 4
    assert found["evalstop_ends_total", "stopped_by_policy"] == 1
    assert found["evalstop_actions_total", "Stop", "policy"] == 1
    assert found["evalstop_log_sequence",] == platform.controller.sequence
    assert found["evalstop_ready",] == 1


def test_no_label_grows_with_jobs_or_tenants(platform, scrape):
    before = scrape().keys()
    for name in "abc":
        stop_one(platform, name)
    assert scrape().keys() == before
