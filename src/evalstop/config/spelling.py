"""``NAME[:key=value[,key=value...]]``: how rules and schedulers are written everywhere."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from evalstop.core.errors import SpecError

__all__ = [
    "Entry",
    "Parameter",
    "build",
    "parameters_of",
    "require_text",
    "split_spec",
    "unknown_name",
]


class Parameter(Struct, frozen=True, kw_only=True):
    """One setting of a named thing."""

    name: str
    type: str
    default: Any
    unit: str = ""


class Entry(Struct, frozen=True, kw_only=True):
    """One name a user can write, and what it makes."""

    name: str
    make: Callable[..., Any]
    summary: str
    parameters: tuple[Parameter, ...] = ()
    false_alarms: str = ""


def parameters_of(struct: type[Struct], units: Mapping[str, str]) -> tuple[Parameter, ...]:
    """Read the settings of a rule off its fields; ``units`` says what they are measured in."""
    return tuple(
        Parameter(
            name=field.name,
            type=getattr(field.type, "__name__", str(field.type)),
            default=field.default,
            unit=units.get(field.name, ""),
        )
        for field in msgspec.structs.fields(struct)
    )


def require_text(spec: object, what: str) -> None:
    """Refuse what is no SPEC at all.

    Raises:
        SpecError: it is not text.
    """
    if not isinstance(spec, str):
        msg = f"a {what} is written as text, NAME[:key=value[,key=value...]], but got {spec!r}"
        raise SpecError(msg)


def split_spec(spec: str) -> tuple[str, dict[str, str]]:
    """Split a SPEC into its name and its settings, as strings.

    Raises:
        SpecError: if it is not written as NAME[:key=value[,key=value...]].
    """
    name, colon, tail = spec.strip().partition(":")
    settings: dict[str, str] = {}
    for part in tail.split(",") if colon else ():
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or not value.strip():
            msg = f"expected NAME[:key=value[,key=value...]], but got {spec!r} (at {part!r})"
            raise SpecError(msg)
        if key.strip() in settings:
            msg = f"{spec!r} sets {key.strip()!r} twice: keep one"
            raise SpecError(msg)
        settings[key.strip()] = value.strip()
    return name.strip(), settings


def build(spec: str, table: Mapping[str, Entry], what: str) -> Any:  # noqa: ANN401 -- the table decides
    """Make the object that a SPEC names.

    Raises:
        SpecError: on an unknown name or setting (the known ones are listed), or a bad value.
    """
    require_text(spec, what)
    name, settings = split_spec(spec)
    entry = table.get(name)
    if entry is None:
        raise unknown_name(what, name, table)
    known = {parameter.name: parameter for parameter in entry.parameters}
    for key in settings:
        if key not in known:
            listed = ", ".join(known) or "none"
            msg = f"{what} {name!r} has no setting {key!r}; it has: {listed}"
            raise SpecError(msg)
    values = {key: _read(name, known[key], text) for key, text in settings.items()}
    return entry.make(**values)


def unknown_name(what: str, name: str, known: Mapping[str, Any]) -> SpecError:
    """Return the error for a name that is in no table."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return SpecError(f"unknown {what} {name!r}; the known ones are: {', '.join(known)}{hint}")


def _read(name: str, parameter: Parameter, text: str) -> Any:  # noqa: ANN401 -- int, float or str
    if parameter.type not in {"int", "float"}:
        return text
    try:
        number = int(text) if parameter.type == "int" else float(text)
    except ValueError:
        number = float("nan")
    if number - number != 0:
        kind = "a whole number" if parameter.type == "int" else "a finite number"
        msg = f"{name}: {parameter.name} must be {kind}, but got {text!r}"
        raise SpecError(msg)
    return number
