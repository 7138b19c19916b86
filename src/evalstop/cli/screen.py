"""Tables on a screen: as wide as it is, upright, turned, or cell by cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

__all__ = ["show_table"]

_LEAST_WORDS = 12  # a column of words below this is no use to anybody
_GAP, _ROOMY_GAP = 1, 3


def show_table(
    screen: Console, title: str, header: Sequence[str], rows: Sequence[Sequence[str]], sides: str
) -> None:
    """Print a table as a screen can hold it; see `evalstop.cli.output.print_table`."""
    if _print_ruled(screen, title, header, rows, sides):
        return
    turned = [[name, *(row[i] for row in rows)] for i, name in enumerate(header[1:], start=1)]
    top = [header[0], *(row[0] for row in rows)]
    if rows and _print_ruled(screen, title, top, turned, "w" + "r" * len(rows)):
        return
    _print_records(screen, title, header, rows)


def _print_ruled(
    screen: Console, title: str, header: Sequence[str], rows: Sequence[Sequence[str]], sides: str
) -> bool:
    """Print a table if the screen is wide enough for it."""
    widths = _widths(header, rows, sides, screen.width)
    if widths is None:
        return False
    roomy = sum(widths) + _roomy(header) <= screen.width
    table = _table(title, header, widths, sides, roomy=roomy)
    for row in rows:
        table.add_row(*map(Text, row))  # Text, not str: a run may be called "[red]"
    screen.print(table)
    if not roomy:
        screen.print()
    return True


def _roomy(header: Sequence[str]) -> int:
    return _ROOMY_GAP * len(header) + 1


def _widths(
    header: Sequence[str], rows: Sequence[Sequence[str]], sides: str, room: int
) -> list[int] | None:
    """Return the columns' widths, None if the screen is too narrow for a table.

    Figures are never cut; words and headers fold. Left to itself, rich takes the width that is
    lacking from the columns of words until nothing is left of them.
    """
    natural, least = [], []
    for index, name in enumerate(header):
        cells = max((cell_len(row[index]) for row in rows), default=0)
        word = max(map(cell_len, name.split()), default=0)
        natural.append(max(cell_len(name), cells))
        whole = sides[index : index + 1] in {"r", "w"}
        least.append(max(word, cells if whole else min(cells, _LEAST_WORDS)))
    if sum(natural) + _roomy(header) <= room:
        return natural
    spare = room - sum(least) - _GAP * (len(header) - 1)
    if spare < 0:
        return None
    widths = least
    # One column of long texts shall not starve the others: beyond half the screen all are long.
    wanted = [min(width, room // 2) for width in natural]
    for _ in range(spare):
        tightest = min(range(len(widths)), key=lambda i: widths[i] / max(wanted[i], 1))
        if widths[tightest] >= wanted[tightest]:
            wanted = natural
            tightest = min(range(len(widths)), key=lambda i: widths[i] / max(natural[i], 1))
        if widths[tightest] >= natural[tightest]:
            break
        widths[tightest] += 1
    return widths


def _table(
    title: str, header: Sequence[str], widths: Sequence[int], sides: str, *, roomy: bool
) -> Table:
    table = Table(
        title=Text(title),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=roomy,
        pad_edge=roomy,
        padding=(0, 1) if roomy else 0,
    )
    for index, (name, width) in enumerate(zip(header, widths, strict=True)):
        to_the_right = sides[index : index + 1] == "r"
        table.add_column(
            Text(name),
            justify="right" if to_the_right else "left",
            overflow="fold",
            width=width,
        )
    return table


def _print_records(
    screen: Console, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    """Print a line a cell: what is left where a table does not fit."""
    screen.print(Text(title), style="bold")
    for row in rows:
        screen.print()
        for name, cell in zip(header, row, strict=True):
            screen.print(Text(f"{name or '-'}: {cell}"), soft_wrap=True)
    screen.print()
