"""The log as server-sent events, for pages and programs that follow it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import msgspec

from evalstop.core.codec import encode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from evalstop.ports import Entry
    from evalstop.service.platform import Platform

__all__ = ["event_stream", "sse"]

_QUEUED_EVENTS = 10_000
_KEEP_ALIVE_S = 15.0


async def event_stream(platform: Platform) -> AsyncIterator[bytes]:
    """Yield every entry from now on; a reader that falls behind misses some, and is told."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[Entry | None] = asyncio.Queue(_QUEUED_EVENTS)

    def put(entry: Entry) -> None:
        if not waiting.full():
            waiting.put_nowait(entry)

    def heard(entry: Entry) -> None:
        loop.call_soon_threadsafe(put, entry)

    end = platform.controller.listen(heard)
    try:
        yield b": the log from now on\n\n"
        while True:
            try:
                entry = await asyncio.wait_for(waiting.get(), _KEEP_ALIVE_S)
            except TimeoutError:
                yield b": still here\n\n"
                continue
            if entry is not None:
                yield sse(entry)
    finally:
        end()


def sse(entry: Entry) -> bytes:
    """Return an entry as one server-sent event."""
    actions = [json.loads(encode(action)) for action in entry.actions]
    data = {
        "sequence": entry.sequence,
        "event": json.loads(encode(entry.event)),
        "actions": actions,
    }
    return b"id: %d\ndata: %s\n\n" % (entry.sequence, msgspec.json.encode(data))
