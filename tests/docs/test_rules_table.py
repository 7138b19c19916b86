"""The table of rules cannot rot: every rule has a row, and every test it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs" / "rules.md").read_text()
ROWS = dict(re.findall(r"^\| (R\d\d) (.*)$", TABLE, flags=re.MULTILINE))
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", TABLE)))


def test_there_is_one_row_a_rule():
    rows = re.findall(r"^\| (R\d\d) ", TABLE, flags=re.MULTILINE)
    assert sorted(rows) == [f"R{number:02}" for number in range(1, 32)]


@pytest.mark.parametrize("rule", ROWS)
def test_a_rule_names_a_test_that_holds_it(rule):
    assert re.search(r"`tests/[\w/]+\.py::test_\w+`", ROWS[rule])


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_named_test_is_there(path, name):
    assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), flags=re.MULTILINE)
