"""docs/peers.md says what the cells that ship beside it say."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "benchmarks"))

import peers_page  # noqa: E402 -- lies with the scripts
import peers_tables  # noqa: E402 -- same


@pytest.fixture(scope="module")
def cells():
    return peers_page.in_order(peers_page.load(peers_page.CELLS))


def test_every_table_of_the_page_follows_from_the_cells(cells):
    page = peers_page.PAGE.read_text()
    sections = peers_tables.tables(cells, [])
    assert len(sections) > 10
    for name, body in sections.items():
        found = re.search(rf"<!-- {re.escape(name)} -->\n\n(.*?)\n<!-- end -->", page, re.DOTALL)
        assert found, name
        assert found[1] == body, name


def test_counts_are_whole_again_when_cells_are_pooled(cells):
    two = [cell for cell in cells if cell.rule == "consecutive:k=2" and cell.base_rate == 0.6]
    sums = peers_tables.pooled(two)
    assert sums.bad == sum(round(0.6 * cell.n) for cell in two)
    assert sums.found == pytest.approx(sum(cell.recall * round(0.6 * cell.n) for cell in two))
    assert sums.false == pytest.approx(
        sum(cell.fpr * (cell.n - round(0.6 * cell.n)) for cell in two)
    )
    assert 0 < sums.early < sums.found < sums.bad


def test_cells_survive_being_saved(cells, tmp_path):
    some = cells[::500]
    peers_page.save(some, tmp_path / "cells.parquet")
    again = peers_page.load(tmp_path / "cells.parquet")
    assert [repr(cell) for cell in again] == [repr(cell) for cell in some]
