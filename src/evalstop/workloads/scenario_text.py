"""Scenarios written in TOML. Every error says the line, what was expected and what came.

base = "paper"          # start from a scenario that comes with evalstop
jobs = 500
[hacking]
rlhf = 0.3              # tables of shares replace those of the base
[noise]
sigma = 0.05            # other tables change the named keys only
"""

from __future__ import annotations

import json
import re
import tomllib
from difflib import get_close_matches
from typing import Any

import msgspec

from evalstop.core.errors import ReadError, SpecError
from evalstop.workloads.scenario import CLOCKS, DECLINING, FAMILIES, PROCESSES, REPORTED, Scenario
from evalstop.workloads.scenarios import NAMED

__all__ = ["check_scenario", "read_scenario", "scenario_toml", "write_scenario"]

_GROUPS = {
    field.name: field.default.__struct_fields__
    for field in msgspec.structs.fields(Scenario)
    if isinstance(field.default, msgspec.Struct)
}
"""Tables with fixed keys, and their keys."""

_CHOICES = {
    ("curves", "healthy"): FAMILIES,
    ("curves", "hacking"): DECLINING,
    ("curves", "clock"): CLOCKS,
    ("noise", "reported"): REPORTED,
    ("arrivals", "process"): PROCESSES,
}
"""What may stand where msgspec only says that a word may not."""


def read_scenario(text: str, *, source: str) -> Scenario:
    """Return the scenario that a TOML text describes; its name is that of the source by default.

    Raises:
        ReadError: if it is not TOML, names an unknown key, or a value is out of range.
    """
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = f"not TOML: {error}"
        raise ReadError(source, message) from None
    base = tree.pop("base", None)
    _refuse_unknown(tree, text=text, source=source)
    whole = {"name": _stem(source), **_merge(_base(base, text=text, source=source), tree)}
    try:
        return msgspec.convert(whole, Scenario, str_keys=True)
    except msgspec.ValidationError as error:
        raise ReadError(source, _explain(error, text=text, tree=whole)) from None


def check_scenario(scenario: Scenario) -> None:
    """Refuse a scenario made in Python that no file could describe: types are not checked there.

    Raises:
        SpecError: naming the field, what was expected and what came.
    """
    try:
        plain = write_scenario(scenario)
        msgspec.convert(plain, Scenario, str_keys=True)
    except msgspec.ValidationError as error:
        message = f"scenario {scenario.name!r}: {_explain(error, text='', tree=plain)}"
        raise SpecError(message) from None
    except TypeError as error:
        message = f"scenario {scenario.name!r}: expected numbers, words and tables, but {error}"
        raise SpecError(message) from None


def write_scenario(scenario: Scenario) -> dict[str, Any]:
    """Return the scenario as plain objects, as a TOML or JSON file would hold it."""
    plain: dict[str, Any] = msgspec.to_builtins(scenario, str_keys=True)
    return plain


def scenario_toml(scenario: Scenario) -> str:
    """Return the scenario as TOML text that reads back the same."""
    plain = write_scenario(scenario)
    lines = [f"{key} = {_toml(value)}" for key, value in plain.items() if key not in _GROUPS]
    for group in _GROUPS:
        lines += ["", f"[{group}]"]
        lines += [f"{key} = {_toml(v)}" for key, v in plain[group].items() if v is not None]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    """Return a value as TOML: numbers, words, pairs and tables of shares are all there are."""
    match value:
        case bool():
            return str(value).lower()
        case dict():
            entries = ", ".join(f"{_toml_key(key)} = {_toml(v)}" for key, v in value.items())
            return f"{{ {entries} }}" if entries else "{}"
        case list() | tuple():
            return f"[{', '.join(_toml(item) for item in value)}]"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return repr(value)


def _toml_key(key: str) -> str:
    """Return a key, in quotation marks where it needs them."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def _explain(error: msgspec.ValidationError, *, text: str, tree: object) -> str:
    """Return what is wrong, with its line, its path, what came and the choices there are."""
    words, _, path = str(error).partition(" - at ")
    keys = re.findall(r"[\w-]+", path.removeprefix("`key` in "))
    choices = _CHOICES.get(tuple(keys)) if words.startswith("Invalid enum value") else None
    named = f"{'.'.join(keys)}: " if keys else ""
    known = f"; known: {', '.join(choices)}" if choices else ""
    came = "" if ", got " in words or known else _came(tree, keys)
    return f"{_line(text, keys)}{named}{words}{came}{known}"


def _came(tree: object, keys: list[str]) -> str:
    """Return what stands at a path, where that is one value."""
    for key in keys:
        if isinstance(tree, dict):
            tree = tree.get(key)
        elif isinstance(tree, list | tuple) and key.isdecimal() and int(key) < len(tree):
            tree = tree[int(key)]
    return "" if tree is None or isinstance(tree, dict | list | tuple) else f", got {tree!r}"


def _base(name: object, *, text: str, source: str) -> dict[str, Any]:
    """Return the scenario to start from, without its name."""
    if name is None:
        return {}
    if name not in NAMED:
        message = (
            f"{_line(text, ['base'])}unknown base scenario {name!r}; known: {', '.join(NAMED)}"
        )
        raise ReadError(source, message)
    plain = write_scenario(NAMED[str(name)])
    del plain["name"]
    return plain


def _merge(base: dict[str, Any], tree: dict[str, Any]) -> dict[str, Any]:
    """Return the base with what the tree changes: fixed-key tables key by key, others whole."""
    merged = base | tree
    for group in _GROUPS.keys() & base.keys() & tree.keys():
        merged[group] = base[group] | tree[group]
    return merged


def _refuse_unknown(tree: dict[str, Any], *, text: str, source: str) -> None:
    """Refuse a key that no scenario has.

    Raises:
        ReadError: with the line, the known keys, and the nearest.
    """
    for key, value in tree.items():
        _check_key(key, (*Scenario.__struct_fields__, "base"), path=[key], at=(text, source))
        if key not in _GROUPS:
            continue
        if not isinstance(value, dict):
            message = f"{_line(text, [key])}{key} is a table: write [{key}] on a line of its own"
            raise ReadError(source, message)
        for name in value:
            _check_key(name, _GROUPS[key], path=[key, name], at=(text, source))


def _check_key(key: str, known: tuple[str, ...], *, path: list[str], at: tuple[str, str]) -> None:
    """Refuse one unknown key."""
    if key in known:
        return
    text, source = at
    near = get_close_matches(key, known, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    message = f"{_line(text, path)}unknown key {'.'.join(path)!r}{hint}; known: {', '.join(known)}"
    raise ReadError(source, message)


def _line(text: str, keys: list[str]) -> str:
    """Return "line N: " of the first of these keys that can be found, innermost first.

    tomllib keeps no positions, so the text is searched: good for pointing at, not for parsing.
    """
    table = ""
    places: dict[tuple[str, str], int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[\s*([\w.-]+)\s*\]", line)
        entry = re.match(r"\s*[\"']?([\w.-]+)[\"']?\s*=", line)
        if header:
            table = header[1]
        if header or entry:
            name = "" if header or entry is None else entry[1]
            outer, _, inner = f"{table}.{name}".strip(".").partition(".")
            places.setdefault((outer, inner.partition(".")[0]), number)
    for depth in (2, 1):
        if len(keys) >= depth:
            number = places.get((keys[0], keys[1] if depth == 2 else ""), 0)  # noqa: PLR2004 -- table and key
            if number:
                return f"line {number}: "
    return ""


def _stem(source: str) -> str:
    """Return the file's name without folders and ending."""
    return re.split(r"[/\\]", source)[-1].removesuffix(".toml")
