"""Objects as JSON and back: what a snapshot is made of.

Takes plain data, enums, and objects of evalstop's own classes, shared references included; makes
nothing but those again, so that a snapshot can be wrong but not dangerous (it is no pickle). A
policy that holds anything else (a function, a random generator) cannot be written: it is
rebuilt by replay.

A node is a plain value, or a list whose first item says its kind. Containers and objects are
numbered in the order in which they are met, by writer and reader alike; ``["#", n]`` is one that
was met before. Lists of evaluations, by far the most of it, are written as the codec's structs.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections import deque
from enum import Enum
from importlib import import_module
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec

from evalstop.core.points import EvalPoint

__all__ = ["GraphError", "from_node", "to_node"]

Node: TypeAlias = Any
Value: TypeAlias = Any

_OURS = "evalstop."
_SEQUENCES = {list: "l", tuple: "t", set: "s", frozenset: "z", deque: "q"}
_MAKERS = {"t": tuple, "s": set, "z": frozenset, "q": deque}


class GraphError(TypeError):
    """Something in the graph cannot be written, or a node cannot be read."""


def _slots(cls: type) -> list[str]:
    """Return the attributes that a class keeps in slots, its bases' included."""
    names: list[str] = []
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    return [name for name in names if name not in {"__dict__", "__weakref__"}]


class _Writer:
    def __init__(self) -> None:
        self.met: dict[int, int] = {}
        self.alive: list[object] = []
        self.points: list[EvalPoint] = []

    def node(self, value: Value) -> Node:
        kind = type(value)
        if value is None or kind in {bool, int, str}:
            return value
        if kind is float:
            return value if math.isfinite(value) else ["f", repr(value)]
        if kind is bytes:
            return ["b", b64encode(value).decode()]
        if isinstance(value, Enum):
            return ["e", _name_of(kind), value.value]
        if id(value) in self.met:
            return ["#", self.met[id(value)]]
        self.met[id(value)] = len(self.met)
        self.alive.append(value)  # an id is one's own only as long as one lives
        return self.container(value, kind)

    def container(self, value: Value, kind: type) -> Node:
        if kind is list and value and type(value[0]) is EvalPoint:
            return self.evaluations(value)
        if kind in _SEQUENCES:
            return [_SEQUENCES[kind], *map(self.node, value)]
        if kind is dict:
            return ["d", *(self.node(part) for pair in value.items() for part in pair)]
        if kind is MappingProxyType:
            return ["m", *(self.node(part) for pair in value.items() for part in pair)]
        if not kind.__module__.startswith(_OURS):
            message = f"a snapshot cannot hold a {kind.__module__}.{kind.__qualname__}"
            raise GraphError(message)
        node = ["o", _name_of(kind)]
        for name in self.names(value, kind):
            if hasattr(value, name):
                node += [name, self.node(getattr(value, name))]
        return node

    def evaluations(self, value: list[EvalPoint]) -> Node:
        """Write a list of evaluations; one with the same items as the last is written once."""
        last = self.points
        if len(last) == len(value) and all(map(_is, last, value)):
            return ["="]
        if any(type(point) is not EvalPoint or point.score != point.score for point in value):
            return ["l", *map(self.node, value)]
        self.points = value
        return ["E", value]

    def names(self, value: Value, kind: type) -> list[str]:
        """Return the names of an object's attributes."""
        if issubclass(kind, msgspec.Struct):
            return list(kind.__struct_fields__)
        return [*_slots(kind), *getattr(value, "__dict__", ())]


def _is(one: object, other: object) -> bool:
    return one is other


def _name_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


class _Reader:
    def __init__(self) -> None:
        self.met: list[Any] = []
        self.points: list[EvalPoint] = []
        self.classes: dict[str, type] = {}

    def value(self, node: Node) -> Value:  # noqa: PLR0911 -- one return a kind of node
        if type(node) is not list:
            return node
        kind = node[0]
        if kind == "f":
            return float(node[1])
        if kind == "b":
            return b64decode(node[1])
        if kind == "e":
            return self.class_(node[1])(node[2])
        if kind == "#":
            return self.met[node[1]]
        place = len(self.met)
        self.met.append(None)
        if kind == "o":
            return self.object(node, place)
        if kind in {"d", "m"}:
            return self.mapping(node, place)
        if kind in {"E", "="}:
            if kind == "E":
                self.points = msgspec.convert(node[1], list[EvalPoint])
            self.met[place] = made = list(self.points)
            return made
        return self.sequence(node, place)

    def sequence(self, node: Node, place: int) -> Value:
        if node[0] == "l":
            made: list[Any] = []
            self.met[place] = made
            made.extend(map(self.value, node[1:]))
            return made
        self.met[place] = sequence = _MAKERS[node[0]](map(self.value, node[1:]))
        return sequence

    def mapping(self, node: Node, place: int) -> Value:
        made: dict[Any, Any] = {}
        self.met[place] = made if node[0] == "d" else MappingProxyType(made)
        parts = map(self.value, node[1:])
        for key in parts:
            made[key] = next(parts)
        return self.met[place]

    def object(self, node: Node, place: int) -> Value:
        kind = self.class_(node[1])
        if issubclass(kind, msgspec.Struct):
            fields = {node[n]: self.value(node[n + 1]) for n in range(2, len(node), 2)}
            self.met[place] = made = kind(**fields)
            return made
        made = kind.__new__(kind)
        self.met[place] = made
        for index in range(2, len(node), 2):
            object.__setattr__(made, node[index], self.value(node[index + 1]))
        return made

    def class_(self, name: str) -> Value:
        kind = self.classes.get(name)
        if kind is None:
            module, _, path = name.partition(":")
            if not module.startswith(_OURS):
                message = f"a snapshot may not name {name!r}"
                raise GraphError(message)
            found: Any = import_module(module)
            for part in path.split("."):
                found = getattr(found, part)
            if not isinstance(found, type):
                message = f"{name!r} is no class"
                raise GraphError(message)
            kind = self.classes[name] = found
        return kind


def to_node(value: object) -> Node:
    """Return ``value`` as plain data for `msgspec.json.encode`.

    Raises:
        GraphError: if it holds something that cannot be written.
    """
    return _Writer().node(value)


def from_node(node: Node) -> Value:
    """Return the value that a node was made of.

    Raises:
        GraphError: if it names a class that is not ours.
    """
    return _Reader().value(node)
