"""What keeps answers quick: no delayed acknowledgement, no full collection of a large heap."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys

import pytest

from evalstop.service.pauses import keep_pauses_short, tcp_listener


def test_small_answers_are_sent_at_once():
    async def accepted():
        heard = asyncio.get_running_loop().create_future()

        async def hear(reader, writer):
            del reader
            heard.set_result(writer.get_extra_info("socket").getsockopt(*_NODELAY))
            writer.close()

        listener = tcp_listener()
        listener.bind(("127.0.0.1", 0))
        async with await asyncio.start_server(hear, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            nodelay = await heard
            writer.close()
            return nodelay

    assert asyncio.run(accepted()) == 1


_NODELAY = (socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.fixture
def as_it_was():
    callbacks, interval = list(gc.callbacks), sys.getswitchinterval()
    yield
    gc.callbacks[:] = callbacks
    sys.setswitchinterval(interval)
    gc.unfreeze()


@pytest.mark.usefixtures("as_it_was")
def test_what_lives_long_is_left_out_of_later_collections():
    keep_pauses_short()
    kept = [[] for _ in range(1000)]
    gc.collect()
    looked_at = gc.get_objects()
    assert all(one is not kept for one in looked_at)
    assert len(looked_at) < 1000


@pytest.mark.usefixtures("as_it_was")
def test_cycles_that_came_since_are_still_collected():
    keep_pauses_short()
    gone = []
    gone.append(gone)
    number = id(gone)
    del gone
    assert gc.collect() > 0
    assert all(id(one) != number for one in gc.get_objects())


@pytest.mark.usefixtures("as_it_was")
def test_doing_it_twice_is_doing_it_once():
    before = len(gc.callbacks)
    keep_pauses_short()
    keep_pauses_short()
    assert len(gc.callbacks) == before + 1
