"""A thread of a request asks the event loop for something, also when the request's sender has gone."""

from __future__ import annotations

import asyncio
import threading

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint_if_cancelled

from millpond.server.thread_limits import on_loop


async def answer(value: int) -> int:
    async with asyncio.timeout(30):
        await checkpoint_if_cancelled()  # as locks, turns and threads of anyio do
    return value


@pytest.mark.parametrize("gone", [False, True], ids=["there", "gone"])
def test_a_thread_has_its_answer(gone: bool) -> None:
    goes_on = threading.Event()
    answers: list[int] = []

    def work() -> None:
        assert goes_on.wait(60)
        answers.append(on_loop(answer, 7))

    async def request() -> None:
        with anyio.CancelScope() as scope:
            loop = asyncio.get_running_loop()
            loop.call_later(0.1, scope.cancel if gone else bool)  # when the thread works
            loop.call_later(0.2, goes_on.set)
            await anyio.to_thread.run_sync(work)

    asyncio.run(request())
    assert answers == [7]


def test_a_failure_reaches_the_thread() -> None:
    async def fail() -> None:
        raise LookupError("nothing there")

    async def request() -> None:
        with pytest.raises(LookupError, match="nothing there"):
            await anyio.to_thread.run_sync(on_loop, fail)

    asyncio.run(request())
