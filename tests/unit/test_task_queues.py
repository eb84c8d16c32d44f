"""Queues of tasks: each is offered once and in order, to a worker that waits, whatever comes in between."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.workflows.tasks import queues as module
from millpond.workflows.tasks.queues import Place, QueuedTask, TaskQueues


class Rows:
    """The rows of one queue."""

    def __init__(self) -> None:
        self.places: dict[Place, str] = {}
        self.reads = 0

    async def read(
        self, tenant: str, definition: str, after: Place | None, limit: int
    ) -> list[tuple[Place, str, str]]:  # fmt: skip
        assert (tenant, definition) == ("acme", "greet")
        self.reads += 1
        found = [(place, "run", guid) for place, guid in sorted(self.places.items()) if after is None or place > after]
        await asyncio.sleep(0)
        return found[:limit]


steps = st.lists(st.sampled_from(("queue", "poll", "leave", "claim fails", "look")), max_size=60)


@given(steps)
def test_every_task_is_offered_once_and_in_order(steps: list[str]) -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr(module, "WINDOW", 2)
    try:
        asyncio.run(_steps(steps))
    finally:
        patch.undo()


async def _steps(steps: list[str]) -> None:
    rows = Rows()
    queues = TaskQueues(rows.read)
    offered: list[str] = []
    polls: list[asyncio.Task[QueuedTask]] = []
    number = 0

    def collect() -> None:
        for poll in [poll for poll in polls if poll.done()]:
            polls.remove(poll)
            offered.append(poll.result().guid)

    for step in steps:
        if step == "queue":
            number += 1
            rows.places[number, 0] = f"{number}"
            queues.queued("acme", "greet")
        elif step == "poll":
            polls.append(asyncio.create_task(queues.next("acme", "greet")))
        elif step == "leave" and polls:
            poll = polls.pop(0)
            poll.cancel()
            with suppress(asyncio.CancelledError):
                offered.append((await poll).guid)
        elif step == "claim fails" and offered:
            queues.give_back("acme", "greet", QueuedTask("run", offered.pop()))
        else:
            for _ in range(5):
                await asyncio.sleep(0)
        collect()
    for _ in range(20):
        await asyncio.sleep(0)
    collect()
    assert not polls or len(offered) == number, "nobody waits while a task is queued"
    while len(offered) < number:
        offered.append((await asyncio.wait_for(queues.next("acme", "greet"), 5)).guid)
    assert sorted(offered, key=int) == [str(own + 1) for own in range(number)]
    for poll in polls:
        poll.cancel()
    await asyncio.gather(*polls, return_exceptions=True)


def test_a_window_holds_a_few_of_many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def take_all() -> list[str]:
        rows = Rows()
        rows.places = {(number, 0): str(number) for number in range(1_000)}
        queues = TaskQueues(rows.read)
        found = [(await queues.next("acme", "greet")).guid for _ in range(1_000)]
        assert rows.reads == 100
        return found

    monkeypatch.setattr(module, "WINDOW", 10)
    assert asyncio.run(take_all()) == [str(number) for number in range(1_000)]
