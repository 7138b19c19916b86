"""``[custody]`` of an object store: what would touch what is not ours is refused at the start."""

from __future__ import annotations

import sys

import pytest

from evalstop.config.object_store import check_object_store, open_objects
from evalstop.config.settings import CustodySettings, read_settings
from evalstop.core.errors import InputError, MissingExtraError, ReadError, SpecError

STORE = "s3://bucket/evalstop/"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"store": "", "allow": ("s3://bucket/runs/",)}, "needs custody.store"),
        ({"allow": ("gs://bucket/runs/",)}, "copied inside one store"),
        ({"allow": ("file:///etc/",)}, "copied inside one store"),
        ({"allow": ("s3://bucket/",)}, "within each other"),
        ({"allow": ("s3://bucket/evalstop/runs",)}, "within each other"),
        ({"allow": ("s3://bucket/evalstop",)}, "within each other"),
        ({"allow": ("s3://bucket/{tenant}/",)}, "within each other"),
        ({"allow": ("s3://{tenant}/runs/",)}, "after the bucket"),
        ({"allow": ("s3://bucket/../x",)}, "'..'"),
        ({"allow": ("runs/",)}, "expected a URL"),
        ({"store": "s3://bucket"}, "needs a prefix"),
        ({"store": "http://bucket/evalstop"}, "plain prefix"),
        ({"store": "simplecache::s3://bucket/evalstop"}, "expected a URL"),
        ({"store": "s3://bucket/{tenant}/evalstop"}, "plain prefix"),
        ({"options": {"secret": "hunter2"}}, "leave credentials"),
        ({"options": {"aws_access_key_id": "x"}}, "leave credentials"),
        ({"options": {"session_token": "x"}}, "leave credentials"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_write(fields, words):
    with pytest.raises(SpecError, match=words) as caught:
        check_object_store(CustodySettings(**({"store": STORE} | fields)))
    assert "hunter2" not in str(caught.value)


def test_what_can_be_is_taken(tmp_path):
    path = tmp_path / "evalstop.toml"
    path.write_text(
        '[custody]\nstore = "s3://bucket/evalstop/"\n'
        'allow = ["s3://bucket/runs/{tenant}/", "s3://bucket/shared/"]\n'
        'pin = "tag"\noptions = {endpoint_url = "http://127.0.0.1:9000"}\n'
    )
    custody = read_settings(path).custody
    assert custody.allow == ("s3://bucket/runs/{tenant}/", "s3://bucket/shared/")
    assert custody.options == {"endpoint_url": "http://127.0.0.1:9000"}


def test_a_mistake_is_told_when_settings_are_read(tmp_path):
    path = tmp_path / "evalstop.toml"
    path.write_text('[custody]\nallow = ["s3://bucket/runs/"]\n')
    with pytest.raises((SpecError, ReadError), match=r"custody\.store"):
        read_settings(path)


def test_a_store_whose_package_is_missing_is_told_what_to_install(monkeypatch):
    for package in ("s3fs", "gcsfs"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"'s3fs'.*evalstop\[object-store\]"):
        open_objects(CustodySettings(store="s3://bucket/evalstop"))
    with pytest.raises(InputError, match="gcsfs"):
        open_objects(CustodySettings(store="gs://bucket/evalstop"))


def test_without_fsspec_itself_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.delitem(sys.modules, "evalstop.custody.fsspec", raising=False)
    with pytest.raises(MissingExtraError, match=r"'fsspec'.*evalstop\[object-store\]"):
        open_objects(CustodySettings(store="memory://evalstop"))


@pytest.mark.parametrize("store", ["nosuch://bucket/evalstop"])
def test_an_unknown_protocol_is_told(store):
    with pytest.raises(InputError, match="nosuch"):
        open_objects(CustodySettings(store=store))
