"""Waiting for loads, commits and ends of runs, without a thread: each is an iterator of a loop of events.

    load     the node's long poll of its log, with the entries about one map behind a position
    commit   the branch's stream of events wakes, and its head is looked at
    run      the stream of the run wakes, and the run is looked at

Invariants:
* a stream only wakes: what is told is what the log, the branch or the run says. So nothing is missed where events are
  turned off, or may not be read: then it is looked at every `LOOK_SECONDS`, as it is while a stream is silent;
* a node that cannot be reached is waited for; what it refuses is an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any, Final

import httpx

from millpond.airflow.location import NodeLocation
from millpond.airflow.runs import state_of
from millpond.client.wire_errors import from_wire
from millpond.errors import Invalid, NotFound, Unavailable
from millpond.events.names import OWN_QUEUE

__all__ = ("commits", "ended", "loads", "marks", "newest")

LOOK_SECONDS: Final = 15.0
"""The time after which something is looked at again of which no stream tells."""
_POLL_SECONDS, _PAUSE_SECONDS, _GATHER_SECONDS = 30.0, 1.0, 0.1
_BEYOND: Final = 1 << 62
"""A position behind the end of every log."""


def _client(location: NodeLocation) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {location.token}"} if location.token else {}
    return httpx.AsyncClient(
        base_url=location.url, headers=headers, verify=location.ca or True, timeout=httpx.Timeout(2 * _POLL_SECONDS)
    )


async def _log(client: httpx.AsyncClient, **query: Any) -> dict[str, Any]:
    """A page of the log."""
    try:
        response = await client.get("/v1/log", params=query)
    except httpx.HTTPError as error:
        raise Unavailable("the node cannot be reached", kind="node_unreachable", reason=repr(error)) from error
    if response.status_code != httpx.codes.OK:
        refusal = from_wire(str(client.base_url), response.status_code, response.content)
        raise refusal or Unavailable("the node cannot be reached", kind="node_unreachable")
    page: dict[str, Any] = response.json()
    return page


async def newest(location: NodeLocation, data: str) -> str:
    """The mark behind which somebody waits who begins now: a position of the log, or the head of a branch.

    Raises: as `_log`, and of a branch that is not there `NotFound`.
    """
    if "/" in data:
        return await asyncio.to_thread(_head, location, data)
    async with _client(location) as client:
        return str((await _log(client, after=_BEYOND, limit=1, map=data))["last"]["position"])


def marks(location: NodeLocation, data: str, after: str) -> AsyncGenerator[dict[str, Any], None]:
    """The loads of a map, or commits of REPOSITORY/BRANCH, behind a mark; each has its own `mark`.

    Raises: `Invalid` for what is no position; as `loads`.
    """
    if "/" not in data and not after.isdecimal():
        raise Invalid("not a position of the log", kind="airflow_sensor", map=data, after=after,
                      hint="give the position of a load, or nothing")  # fmt: skip
    return commits(location, data, after) if "/" in data else loads(location, data, int(after))


async def loads(location: NodeLocation, name: str, after: int) -> AsyncGenerator[dict[str, Any], None]:
    """The loads, and merges into `main`, that bring rows to a map behind a position.

    Raises: what the node answers, such as `NotFound` when it does not have so old entries any more.
    """
    async with _client(location) as client:
        while True:
            try:
                page = await _log(client, after=after, map=name, wait=_POLL_SECONDS)
            except Unavailable:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            for entry in page["entries"]:
                rows = entry["body"].get("rows", {}).get(name) if entry["kind"] == "load" else 0
                if rows:
                    yield {"mark": str(entry["position"]), "map": name, "rows": rows}
            after = page["next"]


async def commits(location: NodeLocation, branch: str, after: str) -> AsyncGenerator[dict[str, Any], None]:
    """The heads that a branch has after a commit; of commits that follow one another at once, the last."""
    async with aclosing(_wakes(location, OWN_QUEUE, f"repository/{branch}")) as wakes:
        async for _ in wakes:
            try:
                head = await asyncio.to_thread(_head, location, branch)
            except Unavailable:
                continue
            if head != after:
                after = head
                yield {"mark": head, "branch": branch}


async def ended(location: NodeLocation, run: str, *, is_begun: bool) -> dict[str, Any]:
    """The state of a run that has ended, see `state_of`; one that has not begun yet is waited for, unless `is_begun`.

    Raises: `NotFound` when a run that was begun is not there any more; what the server answers.
    """
    async with aclosing(_wakes(location, location.tenant, run)) as wakes:
        async for _ in wakes:
            try:
                state = await asyncio.to_thread(state_of, location, run)
            except Unavailable:
                continue
            if state is None and is_begun:
                raise NotFound("the run was deleted", kind="workflow_run", run=run)
            if state is not None and state["ended"]:
                return state
    raise AssertionError("wakes do not end")


def _head(location: NodeLocation, branch: str) -> str:
    repository, _, name = branch.partition("/")
    with location.open() as pond:
        return str(pond.repositories.get(repository).branch(name).head().id)


async def _wakes(location: NodeLocation, queue: str, job_set: str) -> AsyncGenerator[None, None]:
    """One now, and one whenever something may have happened: many events at once are one."""
    rung = asyncio.Event()
    listening = asyncio.create_task(_listen(location, {"queue": queue, "job_set": job_set}, rung))
    try:
        while True:
            yield
            with suppress(TimeoutError):
                await asyncio.wait_for(rung.wait(), LOOK_SECONDS)
                await asyncio.sleep(_GATHER_SECONDS)
            rung.clear()
    finally:
        listening.cancel()


async def _listen(location: NodeLocation, stream: dict[str, str], rung: asyncio.Event) -> None:
    """Ring with each line that a stream has from now on; that it has begun is one."""
    query = {**stream, "after": "newest", "follow": "true"}
    async with _client(location) as client:
        while True:
            with suppress(httpx.HTTPError):
                async with client.stream("GET", "/v1/events", params=query) as response:
                    if response.status_code != httpx.codes.OK:
                        return  # it may not be read
                    async for _ in response.aiter_lines():
                        rung.set()
            await asyncio.sleep(_PAUSE_SECONDS)
