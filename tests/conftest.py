"""What every test run shares: hypothesis profiles, environments, and the gates of CI."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pathlib import Path

pytest_plugins = ["gates"]

settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile(
    "ci",
    max_examples=50,
    deadline=None,
    derandomize=True,  # a red run must mean a change, not luck
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],  # the machine is shared
)
settings.register_profile("deep", max_examples=2000, deadline=None)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if "CI" in os.environ else "dev")
)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Look for no examples in conftest files: all are named alike, and clash when collected."""
    return True if collection_path.name == "conftest.py" else None


# Tests in tests/extras/NAME need the environment .venv-NAME (CONTRIBUTING.md): each runs there,
# and is not collected anywhere else. CI runs every one of these environments.
MARKS = {"ray": "ray", "trackers": "inspect_ai", "trl": "trl"}
"""Extra environment: a package that only that one has."""

collect_ignore = [
    f"extras/{name}" for name, mark in MARKS.items() if importlib.util.find_spec(mark) is None
]
