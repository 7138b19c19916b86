"""One platform for tests that each use jobs of their own."""

from __future__ import annotations

import itertools

import pytest
from rule_platform import platform_in


@pytest.fixture(scope="session")
def platform(tmp_path_factory):
    with platform_in(tmp_path_factory.mktemp("platform")) as platform:
        yield platform


_NUMBERS = itertools.count()


@pytest.fixture
def job():
    """A job's name that no other test uses."""
    return f"job-{next(_NUMBERS)}"
