"""TOML with line numbers in the errors."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, TypeVar

import msgspec

from evalstop.core.errors import InputError, ReadError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["line_of", "read_toml"]

T = TypeVar("T")

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\]]+?)\s*\]\]?")
_KEY = re.compile(r"^\s*([A-Za-z0-9_\"'.-]+)\s*=")
_AT = re.compile(r" - at `\$\.?(.*)`$")
_UNKNOWN = re.compile(r"unknown field `([^`]+)`")


def read_toml(path: Path, kind: type[T]) -> T:
    """Read a file of settings.

    Raises:
        ReadError: if it cannot be read, is no TOML, or does not fit, with the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ReadError(str(path), f"cannot be read: {error}") from error
    return parse_toml(text, kind, str(path))


def parse_toml(text: str, kind: type[T], source: str) -> T:
    """Read settings from text; see `read_toml`."""
    try:
        return msgspec.convert(tomllib.loads(text), kind)
    except tomllib.TOMLDecodeError as error:
        raise ReadError(source, f"not written as TOML: {error}") from error
    except msgspec.ValidationError as error:
        words = str(error)
        at = _AT.search(words)
        unknown = _UNKNOWN.search(words)
        trail = [part for part in re.split(r"[.\[\]]+", at.group(1)) if part] if at else []
        if unknown is not None:
            trail.append(unknown.group(1))
        line = line_of(text, trail)
        where = source if line is None else f"{source}, line {line}"
        raise ReadError(where, _AT.sub("", words) + _known(kind, trail, unknown)) from error
    except InputError as error:
        raise ReadError(source, str(error)) from error


def _known(kind: object, trail: list[str], unknown: re.Match[str] | None) -> str:
    """Return the settings there are, where one is unknown."""
    if unknown is None:
        return ""
    for part in trail[:-1]:
        if not part.isdigit():
            fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}  # type: ignore[arg-type] # settings are structs down to where they are not
            kind = fields[part]
            kind = getattr(kind, "__args__", (kind,))[0]
    names = [field.encode_name for field in msgspec.structs.fields(kind)]  # type: ignore[arg-type] # as above
    return f"; known here: {', '.join(sorted(names))}"


def line_of(text: str, trail: list[str]) -> int | None:
    """Return the line on which a setting stands, as ``["rules", "1", "rule"]`` names it.

    Goes up to the nearest heading where the setting itself is not there.
    """
    wanted = [part for part in trail if not part.isdigit()]
    index = next((int(part) for part in trail if part.isdigit()), 0)
    table: list[str] = []
    best, depth = None, 0
    seen: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        header = _HEADER.match(line)
        key = _KEY.match(line)
        if header is not None:
            name = header.group(2)
            seen[name] = seen.get(name, -1) + 1
            table = [part.strip("\"' ") for part in name.split(".")]
            here = table if header.group(1) == "[" or seen[name] == index else ["\0"]
            table = here
        elif key is not None:
            here = [*table, *(part.strip("\"'") for part in key.group(1).split("."))]
        else:
            continue
        if wanted[: len(here)] == here and len(here) > depth:
            best, depth = number, len(here)
    return best
