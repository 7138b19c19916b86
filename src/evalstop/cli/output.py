"""Where words go: JSON alone on stdout; tables when people look; the rest on stderr."""

from __future__ import annotations

import io
import json
import math
import re
import sys
from importlib import metadata
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TextIO

    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

__all__ = [
    "console",
    "fit",
    "number",
    "print_table",
    "progress",
    "spare_words",
    "tell",
    "version",
    "write_json",
]

_PLAIN_WIDTH = 10_000  # a pipe has no width: never wrap or cut what another program reads
_PLAIN_FROM, _PLAIN_UNTIL = 1e4, 1e9  # whole numbers, rather than powers of ten


def version() -> str:
    """Return the installed version of evalstop."""
    try:
        return metadata.version("evalstop")
    except metadata.PackageNotFoundError:
        return "0.0.0+source"


def write_json(value: object) -> None:
    """Write ``value`` to stdout as one JSON document; NaN and infinities become null."""
    data = msgspec.json.encode(msgspec.to_builtins(value))
    text = msgspec.json.format(data, indent=2).decode()
    if not _is_unicode(sys.stdout):
        text = re.sub(r"[^\x00-\x7f]", lambda found: json.dumps(found[0])[1:-1], text)
    sys.stdout.write(text)
    sys.stdout.write("\n")


def spare_words() -> None:
    """Have characters that a terminal or pipe cannot show written as escapes, not raise."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not _is_unicode(stream):
            stream.reconfigure(errors="backslashreplace")


def _is_unicode(stream: TextIO) -> bool:
    return (stream.encoding or "utf-8").lower().replace("-", "").startswith("utf")


def tell(message: str) -> None:
    """Write a line for people to stderr."""
    print(message, file=sys.stderr)  # noqa: T201 -- this is where lines for people are written


def console() -> Console:
    """Return a console on stdout: rich in a terminal, plain and unwrapped when piped."""
    from rich.console import Console  # noqa: PLC0415 -- `--json` runs do not need it

    if sys.stdout.isatty():
        return Console()
    return Console(width=_PLAIN_WIDTH, color_system=None, highlight=False)


def progress() -> Progress:
    """Return a progress display on stderr, silent unless that is a terminal."""
    from rich.console import Console  # noqa: PLC0415 -- `--json` runs do not need it
    from rich.progress import Progress  # noqa: PLC0415 -- same

    return Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())


def number(value: float | None, digits: int = 4) -> str:
    """Return a figure with ``digits`` significant digits; a dash for none, NaN or infinity."""
    if value is None or not math.isfinite(value):
        return "-"
    if _PLAIN_FROM <= abs(value) < _PLAIN_UNTIL:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def fit(text: str, width: int = 48) -> str:
    """Return ``text``, its middle left out if it is longer than ``width``."""
    if len(text) <= width:
        return text
    tail = (width - 3) * 2 // 3
    return f"{text[: width - 3 - tail]}...{text[-tail:]}"


def print_table(
    title: str, header: Sequence[str], rows: Iterable[Sequence[str]], *, right: str = ""
) -> None:
    """Print a table on stdout: ruled in a terminal, tab-separated when piped.

    On a screen that is too narrow for it, every row becomes a list of its cells.

    Args:
        title: a line above the table.
        header: names of the columns.
        rows: cells, as text.
        right: one character a column, ``r`` for columns aligned to the right.
    """
    if not sys.stdout.isatty():
        lines = [title, "\t".join(header), *("\t".join(row) for row in rows)]
        sys.stdout.write("\n".join(lines) + "\n\n")
        return
    from rich.text import Text  # noqa: PLC0415 -- only terminals need it

    # Text, not str: a run may be called "[red]".
    lines_ = [list(row) for row in rows]
    screen = console()
    widths = _widths(header, lines_, right, screen.width)
    if widths is None:
        _print_records(screen, title, header, lines_)
        return
    roomy = sum(widths) + _roomy(header) <= screen.width
    table = _table(title, header, widths, right, roomy=roomy)
    for row in lines_:
        table.add_row(*map(Text, row))
    screen.print(table)
    if not roomy:
        screen.print()


_LEAST_WORDS = 12  # a column of words below this is no use to anybody
_GAP, _ROOMY_GAP = 1, 3


def _roomy(header: Sequence[str]) -> int:
    return _ROOMY_GAP * len(header) + 1


def _widths(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: str, room: int
) -> list[int] | None:
    """Return the columns' widths, None if the screen is too narrow for a table.

    Figures are never cut; words and headers fold. Left to itself, rich takes the width that is
    lacking from the columns of words until nothing is left of them.
    """
    from rich.cells import cell_len  # noqa: PLC0415 -- only terminals need it

    natural, least = [], []
    for index, name in enumerate(header):
        cells = max((cell_len(row[index]) for row in rows), default=0)
        word = max(map(cell_len, name.split()), default=0)
        natural.append(max(cell_len(name), cells))
        figures = right[index : index + 1] == "r"
        least.append(max(word, cells if figures else min(cells, _LEAST_WORDS)))
    if sum(natural) + _roomy(header) <= room:
        return natural
    spare = room - sum(least) - _GAP * (len(header) - 1)
    if spare < 0:
        return None
    widths = least
    for _ in range(spare):
        tightest = min(range(len(widths)), key=lambda i: widths[i] / max(natural[i], 1))
        if widths[tightest] >= natural[tightest]:
            break
        widths[tightest] += 1
    return widths


def _table(
    title: str, header: Sequence[str], widths: Sequence[int], right: str, *, roomy: bool
) -> Table:
    from rich import box  # noqa: PLC0415 -- only terminals need it
    from rich.table import Table  # noqa: PLC0415 -- same
    from rich.text import Text  # noqa: PLC0415 -- same

    table = Table(
        title=Text(title),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=roomy,
        pad_edge=roomy,
        padding=(0, 1) if roomy else 0,
    )
    for index, (name, width) in enumerate(zip(header, widths, strict=True)):
        to_the_right = right[index : index + 1] == "r"
        table.add_column(
            Text(name),
            justify="right" if to_the_right else "left",
            overflow="fold",
            width=width,
        )
    return table


def _print_records(
    screen: Console, title: str, header: Sequence[str], rows: Iterable[Sequence[str]]
) -> None:
    """Print a line a cell: what is left where a table does not fit."""
    from rich.text import Text  # noqa: PLC0415 -- only terminals need it

    screen.print(Text(title), style="bold")
    for row in rows:
        screen.print()
        for name, cell in zip(header, row, strict=True):
            screen.print(Text(f"{name or '-'}: {cell}"), soft_wrap=True)
    screen.print()
