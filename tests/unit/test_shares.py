"""Limits that tokens share: each finds something, those who wait take turns, and those who have gone wait no more."""

from __future__ import annotations

import asyncio
import doctest
from collections.abc import Awaitable, Callable
from threading import Event, Semaphore
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect, Request

from millpond.clock import ManualClock
from millpond.errors import Unavailable
from millpond.kernel.patience import check_patience, patient
from millpond.nodes.limits import NodeLimits
from millpond.nodes.tokens import ANYBODY
from millpond.server import shares
from millpond.server.access import put_caller
from millpond.server.connections import BODY_BYTES_PER_SECOND_MIN, ConnectionLimits, Connections, LimitedConnection
from millpond.server.memory import MemoryBudget
from millpond.server.presence import Presence, put_presence
from millpond.server.rpc.threads import SHARE, CallThreads
from millpond.server.shares import Shares, Turns
from millpond.server.thread_limits import FairThreads, in_large_thread

MIB = 1 << 20


def test_what_the_documentation_shows_is_so() -> None:
    assert not doctest.testmod(shares).failed


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.booleans())), st.integers(1, 40))
def test_no_token_takes_all_from_the_others(acts: list[tuple[str, int, bool]], total: int) -> None:
    limit = Shares(total)
    held: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for name, units, gives in acts:
        if gives and held[name]:
            limit.give(name, held[name].pop())
        elif limit.take(name, units):
            held[name].append(units)
            others = sum(sum(pieces) for other, pieces in held.items() if other != name)
            assert len(held[name]) == 1 or sum(held[name]) <= (total - others) * shares.SHARE
        assert limit.taken == sum(map(sum, held.values())) <= total


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_those_who_wait_are_served_by_token_in_turns() -> None:
    async def story() -> list[str]:
        turns, served = Turns(Shares(1)), []

        async def work(name: str, number: int) -> None:
            await turns.take(name)
            served.append(f"{name}{number}")

        tasks = [asyncio.ensure_future(work("a", number)) for number in range(4)]
        await settle()
        tasks += [asyncio.ensure_future(work(name, 0)) for name in "bc"]
        for _ in range(6):
            await settle()
            turns.give(served[-1][0])
        await asyncio.gather(*tasks)
        return served

    assert asyncio.run(story()) == ["a0", "a1", "b0", "c0", "a2", "a3"]


def test_one_token_with_32_scans_is_not_another_ones_refusal() -> None:
    async def story() -> None:
        budget = MemoryBudget(512 * MIB, queued_max=256, queue_seconds=3600)
        many = [budget.room("many") for _ in range(32)]
        tasks = [asyncio.ensure_future(room.queue(24 * MIB)) for room in many]
        await settle()
        assert sum(room.held > 0 for room in many) == 12, "the others wait"
        other = budget.room("other")
        await asyncio.wait_for(other.queue(24 * MIB), 1)
        assert other.held == 24 * MIB
        with pytest.raises(Unavailable):
            budget.room("many").need(400 * MIB)
        other.need(200 * MIB)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for room in (*many, other):
            room.keep(0)
        assert (budget.taken, budget.queued) == (0, 0)

    asyncio.run(story())


def test_one_token_leaves_places_in_the_queue() -> None:
    async def story() -> None:
        budget = MemoryBudget(4 * MIB, queued_max=8, queue_seconds=3600)
        rooms = [budget.room("many") for _ in range(12)]
        tasks = [asyncio.ensure_future(room.queue(2 * MIB)) for room in rooms]
        await settle()
        refused = [task for task in tasks if task.done() and isinstance(task.exception(), Unavailable)]
        assert (budget.queued, len(refused)) == (6, 5)
        other = asyncio.ensure_future(budget.room("other").queue(2 * MIB))
        await settle()
        assert budget.queued == 7, "there is a place for it"
        for task in (*tasks, other):
            task.cancel()
        await asyncio.gather(*tasks, other, return_exceptions=True)

    asyncio.run(story())


def test_a_sender_that_goes_gives_up_its_place() -> None:
    async def story() -> None:
        budget, presence = MemoryBudget(4 * MIB, queued_max=8, queue_seconds=3600), Presence()
        held, queued = budget.room(), budget.room()
        await held.queue(3 * MIB)
        wait: Awaitable[None] = asyncio.ensure_future(presence.during(queued.queue(3 * MIB)))
        await settle()
        assert budget.queued == 1
        presence.leave()
        with pytest.raises(ClientDisconnect):
            await wait
        assert (budget.queued, queued.held) == (0, 0)
        with pytest.raises(ClientDisconnect):
            await presence.during(queued.queue(3 * MIB))

    asyncio.run(story())


def test_a_step_of_large_work_ends_when_nobody_waits_for_it() -> None:
    clock, presence = ManualClock(0), Presence()

    async def story() -> None:
        node = SimpleNamespace(clock=clock, limits=NodeLimits())
        state = SimpleNamespace(node=node, large_threads=FairThreads(1))
        request = Request({"type": "http", "app": SimpleNamespace(state=state)})
        put_caller(request, ANYBODY)
        put_presence(request.scope, presence)

        def work(step: Callable[[], None]) -> int:
            check_patience()
            step()
            check_patience()
            return 7

        assert await in_large_thread(request, work, lambda: clock.advance(59_000)) == 7
        with pytest.raises(Unavailable) as caught:
            await in_large_thread(request, work, lambda: clock.advance(60_000))
        assert (caught.value.kind, caught.value.values["seconds"]) == ("question_slow", 60)
        loop = asyncio.get_running_loop()
        with pytest.raises(ClientDisconnect):
            await in_large_thread(request, work, lambda: waited(loop, presence.leave))
        with pytest.raises(ClientDisconnect):
            await in_large_thread(request, work, lambda: None)

    asyncio.run(story())


def test_calls_share_threads_and_one_that_is_given_up_keeps_its_own() -> None:
    entered, go_on = Semaphore(0), Event()

    def question() -> None:
        entered.release()
        assert go_on.wait(30)
        check_patience()

    async def story() -> list[BaseException | None]:
        node: Any = SimpleNamespace(clock=ManualClock(0), limits=NodeLimits())
        threads = CallThreads(node)

        def ask(name: str, act: Callable[[], None]) -> asyncio.Task[None]:
            SHARE.set(name)
            return asyncio.ensure_future(threads.ask(act))

        async def begun() -> bool:
            return await asyncio.to_thread(entered.acquire, timeout=0.1)

        first = [ask("many", question) for _ in range(8)]
        assert [await begun() for _ in range(4)] == [True, True, True, False]
        await ask("other", lambda: None)
        for given_up in first:
            given_up.cancel()
        again = [ask("many", question) for _ in range(8)]
        assert not await begun(), "three threads still work for those who have gone"
        await ask("other", lambda: None)
        go_on.set()
        return await asyncio.gather(*first, *again, return_exceptions=True)

    ends = asyncio.run(story())
    assert all(isinstance(end, asyncio.CancelledError) for end in ends[:8]) and ends[8:] == [None] * 8


def waited(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
    """Do something in an event loop, and wait until it is done."""
    done = Event()
    loop.call_soon_threadsafe(lambda: (act(), done.set()))
    assert done.wait(30)


class Transport:
    """A transport to a client that takes nothing."""

    left, aborted = 100_000, False

    def get_write_buffer_size(self) -> int:
        return self.left

    def abort(self) -> None:
        self.aborted = True


class Loop:
    """An event loop whose time passes by calls of what comes next."""

    def __init__(self) -> None:
        self.now, self.due = 0.0, [(0.0, lambda: None)]

    def call_later(self, seconds: float, act: Callable[..., None], *args: Any) -> SimpleNamespace:
        self.due = [(self.now + seconds, lambda: act(*args))]
        return SimpleNamespace(cancel=self.due.clear)

    def until(self, seconds: float) -> None:
        while self.due and self.due[0][0] <= seconds:
            self.now, act = self.due.pop()
            act()


LIMITS = ConnectionLimits(9, 9, 9, 60, 60, 60, 60)


def connected() -> tuple[LimitedConnection, Loop, Transport]:
    connection = object.__new__(LimitedConnection)
    loop, transport, flow = Loop(), Transport(), SimpleNamespace(read_paused=False)
    counted = Connections(LIMITS, lambda _kind: None)
    given = {"_counted": counted, "_limits": LIMITS, "_write_timer": None, "loop": loop, "transport": transport}
    vars(connection).update(given | {"flow": flow})
    return connection, loop, transport


def test_a_body_has_a_deadline_that_grows_with_what_came() -> None:
    connection, loop, transport = connected()
    connection._begin_body()
    loop.until(59)
    connection._body_bytes = 100 * BODY_BYTES_PER_SECOND_MIN
    loop.until(159)
    assert not transport.aborted
    connection.flow.read_paused = True
    loop.until(160)
    connection.flow.read_paused = False
    loop.until(219)
    assert not transport.aborted, "the node itself did not read"
    loop.until(220)
    assert transport.aborted


def test_a_reader_that_stalls_holds_memory_for_seconds_when_others_wait_for_it() -> None:
    connection, loop, transport = connected()
    connection._expect_taken(transport.left)
    loop.until(59)
    assert not transport.aborted
    loop.until(60)
    assert transport.aborted
    connection, loop, transport = connected()
    connection._expect_taken(transport.left)
    loop.until(12)
    connection._counted.busy = lambda: True
    transport.left -= 1
    loop.until(15)
    assert not transport.aborted, "it took something"
    loop.until(20)
    assert transport.aborted


def test_a_loop_ends_when_there_is_no_patience() -> None:
    left = iter(range(3))

    def check() -> None:
        if next(left, None) is None:
            raise Unavailable("nobody waits", kind="question_slow")

    done = 0
    check_patience()
    with pytest.raises(Unavailable), patient(check):
        while True:
            check_patience()
            done += 1
    assert done == 3
    check_patience()
