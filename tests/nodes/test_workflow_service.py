"""The service of workflows of a node, without its callers: begun once, whoever goes away."""

from __future__ import annotations

import asyncio
from threading import Event
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import PutTaskDefRequest, TaskDef

from millpond.errors import Unavailable
from millpond.server.rpc.threads import CallThreads
from millpond.server.workflows.service import WorkflowService

if TYPE_CHECKING:
    from tests.nodes.conftest import Served


def test_a_first_caller_that_goes_away_lets_partitions_be_opened_once(
    node: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, go_on = [], Event()

    async def story() -> None:
        service = WorkflowService(node.node, CallThreads(node.node))
        opening = service.partitions.open

        def open_slowly() -> None:
            opened.append(1)
            assert go_on.wait(30)
            opening()

        monkeypatch.setattr(service.partitions, "open", open_slowly)
        first = asyncio.ensure_future(service.begin())
        while not opened:
            await asyncio.sleep(0.01)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.ensure_future(service.submit("default", PutTaskDefRequest(name="work")))
        await asyncio.sleep(0.05)
        go_on.set()
        reply = await second
        assert isinstance(reply, TaskDef)
        assert reply == await service.get("default", lambda rows: rows.get(TaskDef, ("work",)))
        await service.leave()
        await service.end()
        with pytest.raises(Unavailable):
            await service.begin()

    asyncio.run(story())
    assert len(opened) == 1
