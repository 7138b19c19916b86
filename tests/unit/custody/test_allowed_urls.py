"""A job's report may name any URL; nothing is touched but what the operator allowed."""

from __future__ import annotations

import pytest

from evalstop.core.errors import InputError
from evalstop.custody import Allowed, locate

PREFIXES = ["s3://bucket/runs/{tenant}/", "s3://bucket/shared/{job}", "s3://other/all"]

ALLOWED = [
    "s3://bucket/runs/ada/checkpoint-20",
    "s3://bucket/runs/ada/a/b/epoch=3-step=600.ckpt",
    "s3://bucket/runs/ada/深い/état",
    "s3://bucket/runs/ada/",
    "s3://bucket/shared/job-7/checkpoint-20/",
    "s3://other/all/x",
]

REFUSED = [
    "s3://bucket/runs/ben/checkpoint-20",  # another tenant's
    "s3://bucket/runs/adam/checkpoint-20",  # a name that only begins alike
    "s3://bucket/runs",
    "s3://bucket/shared/job-8/x",
    "s3://bucket/evalstop/data/x",
    "s3://bucke/runs/ada/x",
    "s3://bucket.evil/runs/ada/x",
    "s3://Bucket/runs/ada/x",
    "S3://bucket/runs/ada/x",
    "s3a://bucket/runs/ada/x",
    "s3:/bucket/runs/ada/x",
    "s3://bucket/Runs/ada/x",
    "s3://bucket/runs/ada/../ben/x",
    "s3://bucket/runs/ada/./x",
    "s3://bucket/runs/ada/..",
    "s3://bucket//runs/ada/x",
    "s3://bucket/runs/ada//x",
    "s3://bucket/runs/ada/%2e%2e/ben/x",
    "s3://bucket/runs/%61da/x",
    "s3://bucket/runs/ada/..%2fben/x",
    "s3://bucket/runs/ada\\..\\ben/x",
    "s3://bucket/runs/ada/x?versionId=1",
    "s3://bucket/runs/ada/x#y",
    "s3://bucket/runs/ada/*",
    "s3://bucket/runs/ada/x\n",
    "s3://bucket/runs/ada/x\x00",
    "s3://user@bucket/runs/ada/x",
    "file:///etc/passwd",
    "file://bucket/runs/ada/x",
    "local:///etc/passwd",
    "http://169.254.169.254/latest/meta-data/",
    "https://bucket/runs/ada/x",
    "memory://bucket/runs/ada/x",
    "gs://bucket/runs/ada/x",
    "simplecache::s3://bucket/runs/ada/x",
    "zip://x::s3://bucket/runs/ada/x.zip",
    "s3://bucket/runs/ada/x::file:///etc/passwd",
    "s3://",
    "s3:///runs/ada/x",
    "://bucket/runs/ada/x",
    " s3://bucket/runs/ada/x",
    "s3://bucket/runs/ada/" + "x" * 3000,
    "\u017f3://bucket/runs/ada/x",
    "s3://bucket/runs/ADA/x",
]


@pytest.mark.parametrize("url", ALLOWED)
def test_what_lies_under_an_allowed_prefix_may_be_touched(url):
    assert Allowed(PREFIXES).why_not(url, tenant="ada", job="job-7") == ""


@pytest.mark.parametrize("url", REFUSED)
def test_everything_else_is_refused_in_a_sentence(url):
    assert Allowed(PREFIXES).why_not(url, tenant="ada", job="job-7") != ""


@pytest.mark.parametrize("url", ALLOWED + REFUSED)
def test_without_a_word_of_the_operator_nothing_may_be_touched(url):
    assert "operator allows no URL" in Allowed().why_not(url, tenant="ada", job="job-7")


@pytest.mark.parametrize("tenant", ["", ".", "..", "a/b", "../ben", "*", "%61da", "{job}", "a b"])
def test_a_tenant_whose_name_could_lead_elsewhere_has_no_prefix(tenant):
    allowed = Allowed(["s3://bucket/runs/{tenant}/"])
    for name in (tenant, "ben", "job-7", ""):
        url = f"s3://bucket/runs/{name}/x"
        assert allowed.why_not(url, tenant=tenant, job="job-7") != ""


@pytest.mark.parametrize("prefix", ["/runs", "runs", "s3://", "s3://b/../c", "zip://x::s3://b/c"])
def test_a_prefix_must_be_a_plain_url(prefix):
    with pytest.raises(InputError):
        Allowed([prefix])


def test_a_url_is_taken_apart_and_put_together():
    location = locate("s3://bucket/runs/ada/")
    assert (location.protocol, location.place, location.segments) == (
        "s3",
        "bucket",
        ("runs", "ada"),
    )
    assert location.url == "s3://bucket/runs/ada"
    assert locate("file:///shared/runs").url == "file:///shared/runs"
