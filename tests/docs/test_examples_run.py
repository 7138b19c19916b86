"""README, docs and examples: what they show can be done as shown.

A block fenced as ``python`` is executed (one namespace a page), one fenced as ``bash`` is run in a
folder of the page's own and must succeed. Blocks fenced otherwise are only shown.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sybil.document import Document
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

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


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """An environment in which `evalstop` is the code under test, installed or not."""
    command = tmp_path / "bin" / "evalstop"
    command.parent.mkdir()
    command.write_text(
        f"#!{sys.executable}\nimport sys\nfrom evalstop.cli import main\nsys.exit(main())\n"
    )
    command.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{command.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "MPLBACKEND": "agg",
    }


def run(command: list[str], cwd: Path, env: dict[str, str]) -> None:
    cwd.mkdir(exist_ok=True)
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_of_a_page_run(
    page: Path, tmp_path: Path, shell: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def evaluate(example: object) -> None:
        run(["bash", "-euo", "pipefail", "-c", str(example.parsed)], folder, shell)  # type: ignore[attr-defined]

    parsers = [PythonCodeBlockParser(), CodeBlockParser("bash", evaluate)]
    for example in Document.parse(str(page), *parsers).examples():
        example.evaluate()


@pytest.mark.parametrize(
    ("script", "arguments"), SCRIPTS, ids=lambda value: getattr(value, "name", value)
)
def test_an_example_script_runs(
    script: Path, arguments: str, tmp_path: Path, shell: dict[str, str]
) -> None:
    command = [sys.executable, "-W", "error", str(script), *arguments.split()]
    run(command, tmp_path / "work", shell)
