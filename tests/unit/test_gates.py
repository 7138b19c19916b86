"""The gates of CI fail runs that pytest alone would call passed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gates import awaited_complaints

TESTS = Path(__file__).parents[1]


def run_pytest(folder: Path, body: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(body)
    return run_in(folder, "-p", "gates", "--rootdir", str(folder), *arguments)


def run_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


PASSES = "def test_passes(): pass\n"
SKIPS = "import pytest\ndef test_skips(): pytest.skip('not here')\n"


def test_what_was_left_out_fails_the_run(tmp_path):
    wanted = ["--no-skips", "--must-run", "test_it.py::test_skips", "--must-run", "test_other"]
    done = run_pytest(tmp_path, PASSES + SKIPS, *wanted)
    assert done.returncode == 1
    for complaint in (
        "skipped: test_it.py::test_skips",
        "must run, but was skipped: test_it.py::test_skips",
        "no test of test_other* has run and passed",
    ):
        assert complaint in done.stdout


@pytest.mark.parametrize(("status", "expected"), [("0", 0), ("127", 1)])
def test_a_run_is_as_good_as_those_beside_it(tmp_path, status, expected):
    (tmp_path / "trl").write_text(f"{status}\n")
    done = run_pytest(tmp_path, PASSES, "--await-run", "trl")
    assert done.returncode == expected, done.stdout
    assert ("the run beside this one failed with" in done.stdout) == (expected != 0)


def test_a_run_that_has_ended_already_is_not_taken_for_tests_to_run(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/conftest.py").write_text("from gates import *\n")
    (tmp_path / "tests/test_it.py").write_text(PASSES)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    (tmp_path / "trl").write_text("0\n")
    # Options of a conftest are known only once pytest has found out where the tests are.
    done = run_in(tmp_path, "--await-run=trl")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--await-run " not in (TESTS.parent / ".ci/run").read_text()


def test_the_gates_wait_for_a_run_that_has_not_ended(tmp_path):
    file = tmp_path / "ray"
    later = threading.Timer(0.3, file.write_text, ["3\n"])
    later.start()
    try:
        assert awaited_complaints([file], every_s=0.01) == [
            "the run beside this one failed with 3: ray"
        ]
    finally:
        later.join()


def test_a_run_that_never_ends_is_told(tmp_path):
    assert awaited_complaints([tmp_path / "ray"], within_s=0.0) == [
        "the run beside this one has not ended: ray"
    ]
