"""The root package: what it offers, and how little it costs to import."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import evalstop

SOURCE = Path(evalstop.__file__)


def modules_after(statement: str) -> set[str]:
    code = f"import json, sys\nsys.path.insert(0, {str(SOURCE.parents[1])!r})\n{statement}\n"
    code += "print(json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-I", "-S", "-c", code]  # no site: nothing comes in by itself
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    return set(json.loads(done.stdout))


def test_importing_the_root_package_loads_nothing_but_the_standard_library() -> None:
    # Counted in modules: a wall time would depend on the machine.
    loaded = modules_after("import evalstop") - modules_after("")
    assert {name.split(".")[0] for name in loaded} <= {"evalstop", *sys.stdlib_module_names}
    assert [name for name in loaded if name.startswith("evalstop")] == ["evalstop"]
    assert len(loaded) <= 25, sorted(loaded)


@pytest.mark.parametrize("name", evalstop.__all__)
def test_each_public_name_resolves(name: str) -> None:
    assert getattr(evalstop, name) is not None


def test_type_checkers_are_told_the_same_names() -> None:
    # The table serves the interpreter, the imports under TYPE_CHECKING serve type checkers.
    tree = ast.parse(SOURCE.read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    told = {
        alias.asname: (node.module or "").removeprefix("evalstop").lstrip(".")
        for node in imports
        if (node.module or "").split(".")[0] == "evalstop"
        for alias in node.names
    }
    modules = {name: path.rpartition(".")[0] for name, path in evalstop._MODULES.items()}
    assert told == evalstop._HOME | modules


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Monitr'.*Monitor"):
        evalstop.Monitr  # noqa: B018 -- the access is the test


def test_a_star_import_and_dir_show_the_public_names() -> None:
    assert set(evalstop.__all__) <= set(dir(evalstop))
