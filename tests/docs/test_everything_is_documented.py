"""Every package, command, rule and scheduler stands in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evalstop.cli.commands import COMMANDS
from evalstop.config.rules import RULES
from evalstop.config.schedulers import SCHEDULERS

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.parent.name for path in (ROOT / "src" / "evalstop").glob("*/__init__.py"))
PAGES = {
    path: path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
# Options, parameters and docstrings are in pages made from the code (tools/reference.py), so that
# they cannot be forgotten. What is asked for here is that a person wrote when to use a thing.


def test_each_command_is_shown_on_some_page() -> None:
    text = "\n".join(PAGES.values())
    forgotten = [name for name in COMMANDS if not re.search(rf"evalstop {name}\b", text)]
    assert forgotten == [], "say in docs/ when to use each command"


@pytest.mark.parametrize("name", RULES)
def test_each_rule_is_explained_in_the_guide_to_rules(name: str) -> None:
    text = PAGES[ROOT / "docs" / "how-to" / "choose-a-rule.md"]
    assert re.search(rf"`{name}(:[^`]*)?`", text), f"docs/how-to/choose-a-rule.md lacks `{name}`"


@pytest.mark.parametrize("name", SCHEDULERS)
def test_each_scheduler_is_explained_in_the_guide_to_simulation(name: str) -> None:
    text = PAGES[ROOT / "docs" / "how-to" / "simulate-a-cluster.md"]
    assert f"`{name}`" in text, f"docs/how-to/simulate-a-cluster.md lacks `{name}`"


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_says_what_belongs_in_it_and_has_its_place_in_the_architecture(
    package: str,
) -> None:
    source = (ROOT / "src" / "evalstop" / package / "__init__.py").read_text()
    assert re.search(r"Belongs\s+here", source)
    assert re.search(r"Never\b", source)
    assert f"`{package}`" in (ROOT / "ARCHITECTURE.md").read_text()
