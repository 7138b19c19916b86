"""One real Slurm cluster for all tests of this folder, jobs cleared between them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))

from slurm_cluster import SlurmCluster, missing_programs


@pytest.fixture(scope="session")
def slurm_session():
    missing = missing_programs()
    if missing and not os.environ.get("CI"):
        pytest.skip(f"no Slurm here ({', '.join(missing)}): see .ci/slurm-packages")
    assert not missing, "CI must install the packages that .ci/slurm-packages lists"
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # short: holds a unix socket
    folder.chmod(0o755)
    with SlurmCluster(folder) as cluster:
        yield cluster
    shutil.rmtree(folder)


@pytest.fixture
def slurm(slurm_session):
    yield slurm_session
    slurm_session.cancel_all_jobs()
