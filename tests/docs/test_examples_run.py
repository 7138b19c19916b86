"""README, docs and examples: what they show can be done as shown.

A block fenced as ``python`` is executed (one namespace a page), one fenced as ``bash`` is run in a
folder of the page's own and must succeed. Blocks fenced otherwise are only shown.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from free_ports import free_port
from sybil.document import Document
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sybil.example import Example

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
SCRIPTS = [
    (script, arguments)
    for script in sorted((ROOT / "examples").glob("*.py"))
    # as the docstring says: a script without arguments, or "python examples/NAME.py ARGUMENTS"
    for arguments in re.findall(
        rf"python examples/{script.name} ?(.*?) *(?:#.*)?\n", script.read_text()
    )
    or [""]
]


# A server's port in a page; when the page is run, a free one stands in for it.
PORT = re.compile(r"\b879\d\b")


class Shell:
    """Runs commands in one folder, in an environment where `evalstop` is the code under test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        self.sessions: list[int] = []
        command = folder / "bin" / "evalstop"
        command.parent.mkdir()
        command.write_text(
            f"#!{sys.executable}\nimport sys\nfrom evalstop.cli import main\nsys.exit(main())\n"
        )
        command.chmod(0o755)
        self.env = {
            **os.environ,
            "PATH": f"{command.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "MPLBACKEND": "agg",
        }

    def run(self, command: list[str]) -> None:
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            self.sessions.append(process.pid)
            try:
                output, _ = process.communicate(timeout=900)
            except subprocess.TimeoutExpired:
                self.end()
                raise
        assert process.returncode == 0, f"{command[-1]}\n{output}"

    def end(self) -> None:
        """End what a page has left running in the background."""
        for session in self.sessions:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(session, signal.SIGKILL)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_of_a_page_run(page: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shell.folder)

    ports: dict[str, str] = defaultdict(lambda: str(free_port()))

    def evaluate(example: Example) -> None:
        command = PORT.sub(lambda port: ports[port[0]], example.parsed)
        shell.run(["bash", "-euo", "pipefail", "-c", command])

    parsers = [PythonCodeBlockParser(), CodeBlockParser("bash", evaluate)]
    for example in Document.parse(str(page), *parsers).examples():
        example.evaluate()


@pytest.mark.parametrize(
    ("script", "arguments"), SCRIPTS, ids=lambda value: getattr(value, "name", value)
)
def test_an_example_script_runs(script: Path, arguments: str, shell: Shell) -> None:
    shell.run([sys.executable, "-W", "error", str(script), *arguments.split()])
