"""A real S3 server over HTTP on this machine, for s3fs to talk to: moto's."""

from __future__ import annotations

import secrets

import pytest
import s3fs
from moto.server import ThreadedMotoServer


@pytest.fixture(scope="session")
def s3():
    """Return the options of fsspec with which the server is reached."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield {"endpoint_url": f"http://{host}:{port}", "key": "testing", "secret": "testing"}
    server.stop()


@pytest.fixture
def bucket(s3):
    """Return the URL of an empty bucket."""
    name = f"b{secrets.token_hex(8)}"
    s3fs.S3FileSystem(skip_instance_cache=True, **s3).mkdir(name)
    return f"s3://{name}"
