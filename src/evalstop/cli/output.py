"""Where words go: JSON alone on stdout; tables when people look; the rest on stderr."""

from __future__ import annotations

import math
import sys
from importlib import metadata
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console
    from rich.progress import Progress

__all__ = ["console", "fit", "number", "print_table", "progress", "tell", "version", "write_json"]

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
    sys.stdout.write(msgspec.json.format(data, indent=2).decode())
    sys.stdout.write("\n")


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
    from rich import box  # noqa: PLC0415 -- only terminals need it
    from rich.table import Table  # noqa: PLC0415 -- same
    from rich.text import Text  # noqa: PLC0415 -- same

    # Text, not str: a run may be called "[red]".
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD)
    for index, name in enumerate(header):
        to_the_right = right[index : index + 1] == "r"
        table.add_column(
            Text(name),
            justify="right" if to_the_right else "left",
            overflow="fold",
            no_wrap=to_the_right,
        )
    for row in rows:
        table.add_row(*map(Text, row))
    console().print(table)
