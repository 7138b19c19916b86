"""Peers by name: ``LIBRARY:RULE[:key=value[,key=value...]]``.

A library is imported when one of its rules is asked for, in the module that is named for it.
"""

from __future__ import annotations

import importlib.util
import os
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from evalstop.config.spelling import Entry, Parameter, build, unknown_name
from evalstop.core.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable

    from evalstop.experiments.peers.field import Peer

__all__ = ["LIBRARIES", "Library", "NamedPeer", "installed", "parse_peer"]


class NamedPeer(Struct, frozen=True, kw_only=True):
    """A peer as it was asked for, and the library that answers."""

    spec: str
    library: str
    version: str
    peer: Any


class Library(Struct, frozen=True, kw_only=True):
    """A library: what to install for it, and its rules."""

    name: str
    extra: str
    rules: dict[str, Entry]


def _entry(library: str, name: str, made: str, summary: str, **settings: float) -> Entry:
    """Return an entry; the types of its settings are those of their defaults."""
    return Entry(
        name=name,
        make=_maker(library, made),
        summary=summary,
        parameters=tuple(
            Parameter(name=key, type=type(value).__name__, default=value)
            for key, value in settings.items()
        ),
    )


def _maker(library: str, made: str) -> Callable[..., Peer]:
    def make(**settings: float) -> Peer:
        if library == "keras":
            # Its own default, TensorFlow, would be a second tensor library for nothing.
            os.environ.setdefault("KERAS_BACKEND", "torch")
        module = import_module(f"evalstop.experiments.peers.{library}")
        peer: Peer = getattr(module, made)(**settings)
        return peer

    return make


def _library(name: str, extra: str, *entries: Entry) -> Library:
    return Library(name=name, extra=extra, rules={entry.name: entry for entry in entries})


_PATIENCE = "no new best for k evaluations"
_MEDIAN = "best so far below the median of the running means of others"

LIBRARIES: dict[str, Library] = {
    library.name: library
    for library in (
        _library(
            "transformers",
            "trl",
            _entry("transformers", "patience", "Patience", _PATIENCE, k=3, threshold=0.0),
        ),
        _library(
            "lightning",
            "lightning",
            _entry("lightning", "patience", "Patience", _PATIENCE, k=3, min_delta=0.0),
        ),
        _library(
            "keras",
            "keras",
            _entry("keras", "patience", "Patience", _PATIENCE, k=3, min_delta=0.0),
        ),
        _library(
            "optuna",
            "optuna",
            _entry("optuna", "median", "Median", "below the median trial", startup=5, warmup=0),
            _entry("optuna", "patient", "Patient", _PATIENCE, k=3, min_delta=0.0),
            _entry("optuna", "wilcoxon", "Wilcoxon", "item by item", p=0.1, startup=2),
        ),
        _library(
            "ray",
            "ray",
            _entry("ray", "median", "Median", _MEDIAN, grace=4, fewest=3),
        ),
    )
}
"""Every library that can be driven, by the name of its package."""


def installed() -> tuple[str, ...]:
    """Return every rule, with its defaults, of the libraries that are installed here."""
    return tuple(
        f"{library.name}:{rule}"
        for library in LIBRARIES.values()
        if importlib.util.find_spec(library.name) is not None
        for rule in library.rules
    )


def parse_peer(spec: str) -> NamedPeer:
    """Make the rule of a library that a SPEC names, ready to judge.

    Raises:
        SpecError: on an unknown library, rule or setting.
        MissingExtraError: the library is not installed.
    """
    name, _, rest = spec.strip().partition(":")
    library = LIBRARIES.get(name)
    if library is None:
        message = "library"
        raise unknown_name(message, name, LIBRARIES)
    try:
        peer = build(rest, library.rules, f"rule of {name}")
    except ImportError as error:
        raise MissingExtraError(name, library.extra) from error
    return NamedPeer(spec=spec.strip(), library=name, version=metadata.version(name), peer=peer)
