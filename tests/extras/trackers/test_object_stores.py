"""Custody against a real S3 server, through s3fs."""

from __future__ import annotations

import socket

import pytest
import s3fs
from s3_server import bucket, s3

from evalstop.core.errors import CustodyError
from evalstop.custody import ObjectCustody
from evalstop.custody.fsspec import FsspecObjects
from evalstop.testing.custody import write_checkpoint
from evalstop.testing.object_stores import ObjectContract

__all__ = ["bucket", "s3"]  # fixtures


class TestS3(ObjectContract):
    @pytest.fixture(autouse=True)
    def _base(self, s3, bucket, tmp_path):
        self.base, self.root, self._options = f"{bucket}/team", tmp_path, s3

    def options(self):
        return self._options

    def test_tags_pin_where_the_objects_lie(self, s3):
        source = self.source(write_checkpoint(self.folder(), 7))
        system = s3fs.S3FileSystem(skip_instance_cache=True, **s3)
        files = system.find(source)
        system.put_tags(files[0], {"evalstop": "candidate", "owner": "ada"})
        store = ObjectCustody(self.objects(), f"{self.base}/evalstop", how="tag")
        pin = store.pin("a", 7, source)
        assert (pin.path, store.verify(pin)) == (source, pin)
        assert system.get_tags(files[0]) == {"evalstop": "pinned", "owner": "ada"}
        assert [system.get_tags(one)["evalstop"] for one in files] == ["pinned"] * 3
        store.unpin(pin)
        assert [system.get_tags(one)["evalstop"] for one in files] == ["released"] * 3
        assert system.find(source) == files


def test_a_store_without_an_answer_is_told_as_such(s3):
    options = s3 | {"endpoint_url": "http://127.0.0.1:1"}
    with pytest.raises(CustodyError, match="does not answer, or refuses"):
        FsspecObjects("s3", options).files("s3://bucket/x")


def test_a_server_that_accepts_and_says_nothing_is_given_up_in_time(s3):
    """The bound is ours, whatever the client library would wait and try again."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = s3 | {"endpoint_url": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        with pytest.raises(CustodyError):
            FsspecObjects("s3", options, timeout_s=2.0).files("s3://bucket/x")
