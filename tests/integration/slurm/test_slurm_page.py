"""docs/how-to/slurm.md, command by command, on a real Slurm."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from free_ports import free_port

from evalstop.backends.slurm.optin import KEYS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/how-to/slurm.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("key", KEYS)
def test_every_key_of_the_comment_is_explained(key):
    assert f"| `{key}` |" in PAGE


def test_the_page_can_be_followed(slurm, tmp_path):
    command = tmp_path / "bin/evalstop"
    command.parent.mkdir()
    command.write_text(
        f"#!{sys.executable}\nimport sys\nfrom evalstop.cli import main\nsys.exit(main())\n"
    )
    command.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    shutil.copy(ROOT / "examples/overoptimise.py", work)
    environment = slurm.environment | {
        "PATH": os.pathsep.join(
            [str(command.parent), str(Path(sys.executable).parent), slurm.environment["PATH"]]
        ),
        "PYTHONPATH": str(ROOT / "src"),
    }
    output = tmp_path / "output"
    script = "set -xeu\n" + "\n".join(BLOCKS).replace("8795", str(free_port()))
    with output.open("wb") as file:
        page = subprocess.Popen(
            ["bash", "-c", script],
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        code = page.wait(timeout=1800)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(page.pid, signal.SIGKILL)
    said = output.read_text()
    assert code == 0, said
    assert "AdminComment=evalstop: stopped: alarm" in said
    assert "requeued in held state" in said
