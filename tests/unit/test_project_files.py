"""The pins: complete, hashed, and free of any package index."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PIN_FILES = sorted(ROOT.glob("constraints*.txt"))
EXTRAS_IN_MAIN_FILE = ("server", "postgres", "tensorboard", "mlflow", "test", "dev", "docs")


def pins(path: Path) -> dict[str, Version]:
    lines = path.read_text().splitlines()
    found = [re.match(r"([A-Za-z0-9_.-]+)==([^ ;\\]+)", line) for line in lines]
    return {match[1].lower(): Version(match[2]) for match in found if match}


@pytest.mark.parametrize("path", PIN_FILES, ids=lambda path: path.name)
def test_each_pin_carries_hashes(path: Path) -> None:
    blocks = re.split(r"\n(?=[A-Za-z0-9])", path.read_text())
    requirements = [block for block in blocks if re.match(r"[A-Za-z0-9]", block)]
    assert requirements
    assert [b.split()[0] for b in requirements if "--hash=sha256:" not in b] == []


@pytest.mark.parametrize("path", PIN_FILES, ids=lambda path: path.name)
def test_no_pin_file_names_a_host(path: Path) -> None:
    assert not re.search(r"https?://|file:|--(extra-)?index-url|--find-links|@ ", path.read_text())


@pytest.mark.parametrize(
    ("extra", "file"),
    [
        ("", "constraints.txt"),
        *((extra, "constraints.txt") for extra in EXTRAS_IN_MAIN_FILE),
        ("ray", "constraints-ray.txt"),
        ("trl", "constraints-trl.txt"),
        ("lab", "constraints-trl.txt"),
    ],
)
def test_what_the_package_asks_for_is_pinned(extra: str, file: str) -> None:
    pinned = pins(ROOT / file)
    asked = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    requirements = [Requirement(line) for line in asked]
    requirements = [r for r in requirements if r.name not in {"evalstop", "torch"}]
    stale = [
        str(requirement)
        for requirement in requirements
        if requirement.name.lower() not in pinned
        or pinned[requirement.name.lower()] not in requirement.specifier
    ]
    assert stale == [], "run `make lock`"


def test_the_version_is_stated_once_more_in_the_package_and_is_the_same() -> None:
    import evalstop

    assert evalstop.__version__ == PROJECT["version"]


def test_folders_with_a_conftest_each_can_be_named_on_one_line() -> None:
    folders = ["tests/integration/slurm", "tests/unit/metrics"]
    assert all((ROOT / folder / "conftest.py").exists() for folder in folders)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *folders]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # they take seconds to load
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
