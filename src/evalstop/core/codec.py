"""Events and actions as versioned JSON, one line each.

A line is ``{"v": 1, "type": "EvalReported", ...}``. A reader keeps what it does not know: an
unknown type, or a line of a newer version, comes back as `Unknown` with its bytes, so that an
older program neither crashes on a newer log nor loses a line of it.
"""

from __future__ import annotations

import math
import sys
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from evalstop.core.actions import Action, Advise, Stop
from evalstop.core.errors import InputError
from evalstop.core.events import EvalReported, Event
from evalstop.core.points import NOT_FINITE, Verdict

__all__ = ["VERSION", "Unknown", "decode_action", "decode_event", "encode", "require_writable"]

VERSION = 1
"""Version of the wire form; raised when a field changes its meaning."""

T = TypeVar("T")


class Unknown(Struct, frozen=True):
    """A line this version cannot read, kept as it came."""

    type: str
    version: int
    raw: bytes


class _Head(Struct):
    type: str = ""
    v: int = VERSION


_encoder = msgspec.json.Encoder()
_head_decoder = msgspec.json.Decoder(_Head)
_event_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_action_decoder: msgspec.json.Decoder[Action] = msgspec.json.Decoder(Action)


def encode(item: Event | Action | Unknown) -> bytes:
    """Return one line of JSON, without the line end; an `Unknown` as it came."""
    if isinstance(item, Unknown):
        return item.raw
    if isinstance(item, EvalReported) and not math.isfinite(item.point.score):
        # Absent on the wire: the default is left out only if it is this very object.
        point = msgspec.structs.replace(item.point, score=NOT_FINITE)
        item = msgspec.structs.replace(item, point=point)
    elif isinstance(item, Stop):
        item = _with_finite_verdict(item)
    elif isinstance(item, Advise):
        item = msgspec.structs.replace(item, action=_with_finite_verdict(item.action))
    body = _encoder.encode(item)
    return b'{"v":%d,' % VERSION + body[1:]


def _with_finite_verdict(stop: Stop) -> Stop:
    """Return a stop that can be read again, whatever its rule computed: JSON has no infinity."""
    verdict = stop.verdict
    known = math.isfinite(verdict.best_score)
    if math.isfinite(verdict.statistic) and math.isfinite(verdict.threshold) and known:
        return stop
    finite: Verdict = msgspec.structs.replace(
        verdict,
        statistic=_finite(verdict.statistic),
        threshold=_finite(verdict.threshold),
        best_score=verdict.best_score if known else NOT_FINITE,
    )
    return msgspec.structs.replace(stop, verdict=finite)


def _finite(number: float) -> float:
    """Return the nearest number that JSON has; 0 for none at all."""
    if math.isnan(number):
        return 0.0
    return max(-sys.float_info.max, min(sys.float_info.max, number))


def require_writable(event: Event) -> None:
    """Refuse a fact that no line can hold: half a surrogate, a loss or a time that is NaN.

    Raises:
        InputError: it is one.
    """
    try:
        _event_decoder.decode(encode(event))
    except (UnicodeError, OverflowError, TypeError, ValueError) as error:
        msg = f"the log cannot hold {type(event).__name__} as it came: {error}"
        raise InputError(msg) from error


def decode_event(line: bytes) -> Event | Unknown:
    """Read one event.

    Raises:
        InputError: if the line is not JSON, or an event of a known type lacks what it needs.
    """
    return _decode(line, _event_decoder, _EVENT_TYPES)


def decode_action(line: bytes) -> Action | Unknown:
    """Read one action.

    Raises:
        InputError: as for `decode_event`.
    """
    return _decode(line, _action_decoder, _ACTION_TYPES)


_EVENT_TYPES = frozenset(kind.__name__ for kind in Event.__args__)
_ACTION_TYPES = frozenset(kind.__name__ for kind in Action.__args__)


def _decode(line: bytes, decoder: msgspec.json.Decoder[T], known: frozenset[str]) -> T | Unknown:
    try:
        head = _head_decoder.decode(line)
        if head.v > VERSION or head.type not in known:
            return Unknown(head.type, head.v, bytes(Raw(line)))
        return decoder.decode(line)
    except msgspec.MsgspecError as error:
        msg = f"expected one event or action as a line of JSON, but got {line[:200]!r}: {error}"
        raise InputError(msg) from error
