"""Long polls: any number of requests wait without a thread each, and all hear of a change."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.clock import ManualClock
from millpond.errors import Unavailable
from millpond.server.long_polls import LongPolls
from millpond.testing.passing_time import while_time_passes
from tests.nodes.conftest import ClusterHere, Served

pytestmark = pytest.mark.sample(2, of="file")

MANY = 2_000
THREADS_MORE = 4


@given(st.lists(st.one_of(st.integers(1, 9), st.none()), max_size=30))
def test_those_wait_who_do_not_have_what_they_wait_for(story: list[int | None]) -> None:
    """A number waits for a height; None raises the height by one, in another thread."""
    height = 0

    async def scene() -> None:
        nonlocal height
        polls = LongPolls(ManualClock())
        polls.open()
        tasks: list[tuple[int, asyncio.Task[int]]] = []
        with ThreadPoolExecutor(1) as pool:
            for wanted in story:
                if wanted is None:
                    height += 1
                    await asyncio.get_running_loop().run_in_executor(pool, polls.ring)
                else:
                    look = polls.until(level, lambda seen, wanted=wanted: seen >= wanted, 3600)  # type: ignore[misc]
                    tasks.append((wanted, asyncio.ensure_future(look)))
                for _ in range(3):
                    await asyncio.sleep(0)
                assert [task.done() for _, task in tasks] == [wanted <= height for wanted, _ in tasks]
                assert polls.count == sum(wanted > height for wanted, _ in tasks)
        for wanted, task in tasks:
            assert not task.done() or task.result() >= wanted
            task.cancel()
        await asyncio.gather(*(task for _, task in tasks), return_exceptions=True)
        assert polls.count == 0
        polls.close()

    def level() -> int:
        return height

    asyncio.run(scene())


def test_who_waits_too_long_gets_what_there_is() -> None:
    clock = ManualClock()

    async def scene() -> int:
        polls = LongPolls(clock)
        polls.open()
        try:
            return await polls.until(lambda: 7, lambda _seen: False, 60)
        finally:
            polls.close()

    assert while_time_passes(clock, lambda: asyncio.run(scene())) == 7
    assert clock.monotonic() >= 60


def test_where_nobody_waits_a_change_gives_the_event_loop_nothing_to_do() -> None:
    class Loop(asyncio.SelectorEventLoop):
        woken = 0

        def call_soon_threadsafe(self, *args: Any, **options: Any) -> asyncio.Handle:  # type: ignore[override]
            self.woken += 1
            return super().call_soon_threadsafe(*args, **options)

    async def scene() -> None:
        polls, loop = LongPolls(ManualClock()), asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        polls.open()
        rings = polls.rings()
        polls.ring()
        assert loop.woken == 0
        assert polls.rings() != rings, "who looks at something in a thread hears of it all the same"
        poll = asyncio.ensure_future(polls.until(polls.rings, lambda seen: seen > polls_then, 60))
        polls_then = polls.rings()
        await asyncio.sleep(0)
        polls.ring()
        assert loop.woken == 1
        assert await poll > polls_then
        polls.close()

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(scene())


def test_a_fault_of_a_look_is_raised_to_those_who_look() -> None:
    async def scene() -> None:
        found: list[int] = [1]
        polls = LongPolls(ManualClock())
        polls.open()
        poll = asyncio.ensure_future(polls.until(lambda: found[0], lambda seen: seen > 1, 60))
        other = asyncio.ensure_future(polls.until(lambda: 2, lambda seen: seen > 2, 60))
        await asyncio.sleep(0)
        found.clear()
        polls.ring()
        with pytest.raises(IndexError):
            await poll
        assert not other.done()
        other.cancel()
        polls.close()

    asyncio.run(scene())


def test_no_more_wait_than_may() -> None:
    async def scene() -> None:
        polls = LongPolls(ManualClock(), polls_max=2)
        polls.open()
        tasks = [asyncio.ensure_future(polls.until(lambda: 0, bool, 60)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable) as raised:
            await polls.until(lambda: 0, bool, 60)
        assert raised.value.kind == "long_polls_full"
        assert await polls.until(lambda: 1, bool, 60) == 1, "who need not wait is answered"
        tasks[0].cancel()
        await asyncio.sleep(0)
        assert polls.count == 1
        tasks[1].cancel()
        polls.close()

    asyncio.run(scene())


@pytest.mark.full
def test_two_thousand_requests_wait_without_a_thread_and_hear_of_a_change(node: Served) -> None:
    made = node.pond.create_map("m", kind="state", value="long")
    position = node.pond.log.position()[0]
    place = urlsplit(node.url)
    before, most = 0, 0
    paths = [f"/v1/log?after={position}&wait=30"] * (MANY - 20) + ["/v1/jobs/verify?run=1&wait=30"] * 10
    paths += [f"/v1/maps/m/digest?position={position + 1}&timeout=30"] * 10

    async def ask(path: str) -> tuple[int, bytes]:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), body

    async def ask_all() -> list[tuple[int, bytes]]:
        nonlocal before, most
        before = threading.active_count()
        tasks = [asyncio.ensure_future(ask(path)) for path in paths]
        polls = node.service.app.state.long_polls
        while polls.count < MANY:
            await asyncio.sleep(0.01)
        most = threading.active_count()
        await asyncio.to_thread(made.load, [{"key": "k", "value": 1}])
        await asyncio.to_thread(node.node.scheduler.run, "verify")
        return await asyncio.gather(*tasks)

    assert node.get("/v1/log?wait=0").status == 200
    answers = asyncio.run(ask_all())
    assert {status for status, _ in answers} == {200}
    for path, (_, body) in zip(paths, answers, strict=True):
        if path.startswith("/v1/log"):
            assert [entry["position"] for entry in json.loads(body)["entries"]] == [position + 1]
    assert json.loads(answers[-1][1])["rows"] == 1
    assert most - before <= THREADS_MORE
    assert node.service.app.state.long_polls.count == 0


def test_a_wait_for_a_replica_holds_no_thread(cluster: ClusterHere) -> None:
    primary, replica = cluster[0], cluster[1]
    made = primary.pond.create_map("m", kind="state", value="long")
    position = primary.pond.log.position()[0]
    order = {"position": position + 1, "applied": True, "maps": ["m"], "timeout": 60}
    with ThreadPoolExecutor(8) as pool:
        responses = [pool.submit(replica.post, "/v1/log/replication", order) for _ in range(8)]
        replica.until(lambda: replica.service.app.state.long_polls.count >= 8)
        made.load([{"key": "k", "value": 1}])
        replica.until(lambda: all(one.done() for one in responses))
    assert [one.result().json() for one in responses] == [{"position": position + 1}] * 8
    assert replica.pond.map("m").get("k") == 1


def test_a_node_that_stops_answers_those_who_wait(node: Served) -> None:
    with ThreadPoolExecutor(2) as pool:
        log = pool.submit(node.get, "/v1/log?after=0&wait=30")
        job = pool.submit(node.get, "/v1/jobs/verify?run=1&wait=30")
        node.until(lambda: node.service.app.state.long_polls.count == 2)
        node.node.stop()
        assert log.result().json()["entries"] == []
        assert (job.result().status, job.result().json()["kind"]) == (503, "node_stopping")
