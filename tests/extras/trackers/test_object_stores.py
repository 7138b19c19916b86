"""Custody against a real S3 server, through s3fs."""

from __future__ import annotations

import pytest
from s3_server import bucket, s3

from evalstop.testing.object_stores import ObjectContract

__all__ = ["bucket", "s3"]  # fixtures


class TestS3(ObjectContract):
    @pytest.fixture(autouse=True)
    def _base(self, s3, bucket, tmp_path):
        self.base, self.root, self._options = f"{bucket}/team", tmp_path, s3

    def options(self):
        return self._options
