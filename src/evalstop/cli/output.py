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

__all__ = [
    "console",
    "fit",
    "harmless",
    "number",
    "print_table",
    "progress",
    "spare_words",
    "tell",
    "version",
    "write_json",
]

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters, and those that turn the direction of writing."""
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
    plain = msgspec.to_builtins(value)
    try:
        data = msgspec.json.encode(plain)
    except UnicodeEncodeError:  # half a character, or a file's name that is not in UTF-8
        data = msgspec.json.encode(_whole(plain))
    text = msgspec.json.format(data, indent=2).decode()
    if not _is_unicode(sys.stdout):
        text = re.sub(r"[^\x00-\x7f]", lambda found: json.dumps(found[0])[1:-1], text)
    sys.stdout.write(text)
    sys.stdout.write("\n")


def _whole(value: object) -> object:
    """Return plain objects with text that UTF-8 cannot hold written as escapes."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    return [_whole(item) for item in value] if isinstance(value, list | tuple) else value


def spare_words() -> None:
    """Have characters that a terminal or pipe cannot show written as escapes, not raise."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def harmless(text: str, *, keep: str = "") -> str:
    """Return text with control characters as escapes: names from files may hold any.

    They would break a table's lines, or tell a terminal what to do.

    Args:
        text: what is to be shown.
        keep: control characters that may stay.
    """
    if text.isprintable():
        return text
    return _CONTROL.sub(lambda found: found[0] if found[0] in keep else repr(found[0])[1:-1], text)


def _is_unicode(stream: TextIO) -> bool:
    return (stream.encoding or "utf-8").lower().replace("-", "").startswith("utf")


def tell(message: str) -> None:
    """Write a line for people to stderr."""
    print(harmless(message, keep="\n"), file=sys.stderr)  # noqa: T201 -- this is where lines for people are written


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

    On a screen that is too narrow for it, rows and columns change places; if that does not fit
    either, every row becomes a list of its cells.

    Args:
        title: a line above the table.
        header: names of the columns.
        rows: cells, as text.
        right: one character a column: ``r`` for figures, aligned to the right, ``w`` for words
            that are never cut, such as names to be typed.
    """
    rows = [[harmless(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        lines = [title, "\t".join(header), *("\t".join(row) for row in rows)]
        sys.stdout.write("\n".join(lines) + "\n\n")
        return
    from evalstop.cli.screen import show_table  # noqa: PLC0415 -- rich: only terminals need it

    show_table(console(), title, header, rows, right)
