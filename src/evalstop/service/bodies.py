"""What requests carry: bodies, how they are read within bounds, and how OpenAPI tells of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec

from evalstop.core.errors import InputError
from evalstop.service.requests import EvalIn, LossIn

if TYPE_CHECKING:
    from fastapi import Request

__all__ = [
    "MOST_BYTES",
    "CheckpointIn",
    "EndIn",
    "EvalBatch",
    "LossBatch",
    "OrderIn",
    "TooLargeError",
    "body_of",
    "read_body",
]

T = TypeVar("T")

MOST_BYTES = 8 * 1024 * 1024
"""A body beyond this is refused."""

MOST_EVALS = 10_000


class EvalBatch(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Evaluations of one job."""

    evals: Annotated[list[EvalIn], msgspec.Meta(min_length=1, max_length=MOST_EVALS)]


class LossBatch(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Training losses of one job."""

    losses: Annotated[list[LossIn], msgspec.Meta(min_length=1, max_length=MOST_EVALS)]


class CheckpointIn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A complete checkpoint that evalstop does not see itself."""

    step: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    checkpoint: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]


class EndIn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The end of a job that somebody else runs; no exit code where none is known."""

    exit_code: Annotated[int, msgspec.Meta(ge=-255, le=255)] | None = None


class OrderIn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A person's order; ``for_s`` bounds a snooze, ``start`` is where an undone job goes on."""

    for_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    note: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    start: Literal["best", "last"] = "best"


class TooLargeError(InputError):
    """The body is larger than what is taken in."""


async def read_body(request: Request, kind: type[T]) -> T:
    """Read the body, within bounds.

    Raises:
        TooLargeError, InputError: as they say.
    """
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BYTES:
            message = f"the body is larger than {MOST_BYTES} bytes: send smaller batches"
            raise TooLargeError(message)
    try:
        return msgspec.json.decode(bytes(body), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"the body does not fit: {error}"
        raise InputError(message) from error


def body_of(kind: type) -> dict[str, Any]:
    """Return the OpenAPI description of a body."""
    schema = msgspec.json.schema(kind)
    definitions = schema.pop("$defs", {})

    def inline(node: Any) -> Any:  # noqa: ANN401 -- a JSON tree
        if isinstance(node, dict):
            if "$ref" in node:
                return inline(definitions[node["$ref"].rpartition("/")[2]])
            return {name: inline(value) for name, value in node.items()}
        return [inline(value) for value in node] if isinstance(node, list) else node

    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": inline(schema)}},
        }
    }
