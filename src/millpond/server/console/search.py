"""The box that finds things by what people have of them: a name, a key, a path, a commit, the id of a run.

| text | thing |
|---|---|
| `weather`, `flights` | a map, a repository |
| `weather/JFK`, `JFK` | the key of a map; a key alone is looked up in the first maps |
| `made`, `made/JFK` | a map that `main` has not: at the first branches and tags with it, and where `main` had it last |
| `fix/made`, `main~3/made/JFK` | a map at a ref, its key there |
| `flights/data/a.csv` | an object on the default branch; where that has none, at the first branches and tags with it |
| `etl/nightly`, `nightly` | a job set; alone it is looked up in the first queues |
| `3f09ab12` | a commit, by eight digits or more |
| `nightly-1`, `nightly` | a run, a workflow: of the default tenant, and of the first others |

Invariant: a thing that the caller may not see is not there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from millpond.console import link, segment
from millpond.errors import MillpondError
from millpond.events.names import StreamName
from millpond.events.protocol import StreamStore
from millpond.nodes.node import Node
from millpond.nodes.tokens import Caller
from millpond.refs.face import MAIN, POND
from millpond.refs.map_entries import map_path
from millpond.server.console.pages import PAGE_ROWS, SIGNED_IN, answered, pages
from millpond.server.console.runs import TENANT, calling, tenants_of
from millpond.server.dispatch import Routes
from millpond.server.lakefs.access import may as may_repository
from millpond.server.stream_rights import may_stream
from millpond.versions.graph.history import Window
from millpond.versions.repository import Repository
from millpond.workflows.deferred import engine, pipeline_starts, protocol

__all__ = ("routes",)

_HITS_MAX = 20
_REFS_MAX = 1_000
"""The branches, and the tags, that a map is looked for at."""
_COMMITS_MAX = 100
_OBJECT_REFS_MAX = 100
"""The branches, and the tags, that an object is looked for at."""
_TENANTS_MAX = 100
_BEHIND = chr(sys.maxunicode)
"""A job set behind all others of its queue."""
_COMMIT = re.compile(r"[0-9a-f]{8,64}")
Hit = tuple[str, str]
"""The words about a thing, and its page."""


def routes(node: Node) -> Routes:
    """The route of the box."""
    router = pages("/console")

    @router.get("/find", SIGNED_IN, summary="The pages of what a text may mean")
    def find(request: Request, caller: Caller, q: str = "") -> Response:
        """Goes to the page of the one thing; of several, a list."""
        text = q.strip()
        hits = list(islice(_hits(node, request, caller, text), _HITS_MAX)) if text else []
        if len(hits) == 1:
            return RedirectResponse(hits[0][1], 303)
        listed = [{"what": what, "path": path} for what, path in hits]
        return answered(request, "find", {"query": q, "places": listed}, status=200 if hits else 404)

    return router


def _hits(node: Node, request: Request, caller: Caller, text: str) -> Iterator[Hit]:
    for kind in (_maps, _maps_at_refs, _keys, _repositories, _commits, _streams):
        yield from kind(node, caller, text)
    yield from _runs(request, caller, text)


def _there(look: Callable[[], object]) -> bool:
    """True when a look finds something; a text that cannot be the name of such a thing is not there."""
    with suppress(MillpondError):
        return look() is not None
    return False


def _maps(node: Node, caller: Caller, text: str) -> Iterator[Hit]:
    if caller.may("read", text) and _there(lambda: node.pond.map(text)):
        yield f"the map {text}", f"/console/maps/{segment(text)}"


def _maps_at_refs(node: Node, caller: Caller, text: str) -> Iterator[Hit]:
    if not may_repository(caller, "read", POND) or not _there(lambda: node.pond.repository(POND)):
        return
    ref, _, rest = text.partition("/")
    name, _, key = rest.partition("/")
    if name and caller.may("read", name) and _there(lambda: node.at_refs.at(ref).map(name)):
        yield f"the map {name} at {ref}", link(f"/console/maps/{segment(name)}", ref=ref, key=key)
    name, _, key = text.partition("/")
    if not caller.may("read", name) or _there(lambda: node.pond.map(name)):
        return
    repository = node.pond.repository(POND)

    def first_there(refs: Iterable[str], amount: int) -> Iterator[Hit]:
        there = (ref for ref in refs if _there(lambda ref=ref: repository.ref(ref).stat(map_path(name))))  # type: ignore[misc]
        for ref in islice(there, amount):
            yield f"the map {name} at {ref}", link(f"/console/maps/{segment(name)}", ref=ref, key=key)

    for page in (repository.branches(amount=_REFS_MAX), repository.tags(amount=_REFS_MAX)):
        yield from first_there((item.name for item in page.items), _HITS_MAX)
    history = repository.ref(MAIN).log(Window(first_parent=True), limit=_COMMITS_MAX)
    yield from first_there((commit.id for commit in history), 1)


def _keys(node: Node, caller: Caller, text: str) -> Iterator[Hit]:
    name, slash, key = text.partition("/")
    if slash and key and caller.may("read", name) and _there(lambda: node.pond.map(name)):
        yield f"the key {key} of {name}", link(f"/console/maps/{segment(name)}", key=key)
    readable = (entry.name for entry in node.pond.catalogue.list() if caller.may("read", entry.name))
    for map in islice(readable, PAGE_ROWS):
        if _there(lambda map=map: node.lookups.get(node.pond.map(map), text, None, None)["found"] or None):  # type: ignore[misc]
            yield f"the key {text} of {map}", link(f"/console/maps/{segment(map)}", key=text)


def _repositories(node: Node, caller: Caller, text: str) -> Iterator[Hit]:
    name, slash, path = text.partition("/")
    if not may_repository(caller, "read", name) or not _there(lambda: node.pond.repository(name)):
        return
    page = f"/console/versions/{segment(name)}"
    if not slash:
        yield f"the repository {name}", page
        return
    repository = node.pond.repository(name)
    if path:
        for ref in islice(_refs_with(repository, path), _HITS_MAX):
            at = "" if ref == repository.record.default_branch else f" at {ref}"
            yield f"objects of {name}{at}", link(f"{page}/objects", ref=ref, prefix=path)


def _refs_with(repository: Repository, path: str) -> Iterator[str]:
    """The default branch when it has objects under a path, else the first branches and tags that have."""

    def has(ref: str) -> bool:
        return _there(lambda: repository.ref(ref).list(path, amount=1).results or None)

    default = repository.record.default_branch
    if has(default):
        yield default
        return
    for page in (repository.branches(amount=_OBJECT_REFS_MAX), repository.tags(amount=_OBJECT_REFS_MAX)):
        yield from filter(has, (item.name for item in page.items))


def _commits(node: Node, caller: Caller, text: str) -> Iterator[Hit]:
    if not _COMMIT.fullmatch(text):
        return
    for name in (listed.name for listed in node.pond.repositories.list(amount=PAGE_ROWS).items):
        if may_repository(caller, "read", name) and _there(lambda: node.pond.repository(name).ref(text).head()):  # noqa: B023
            yield f"a commit of {name}", link(f"/console/versions/{segment(name)}", ref=text)


def _streams(node: Node, caller: Caller, text: str) -> Iterator[Hit]:
    queue, slash, job_set = text.partition("/")
    named = [StreamName(queue, job_set)] if slash else []
    alone = [StreamName(first, text) for first in _first_queues(node.events.store)]
    for stream in dict.fromkeys(named + alone):
        if may_stream(caller, "read", stream) and _there(lambda stream=stream: node.events.store.index(stream)):  # type: ignore[misc]
            page = link("/console/events/stream", queue=stream.queue, job_set=stream.job_set)
            yield f"the job set {stream.job_set} of {stream.queue}", page


def _first_queues(store: StreamStore) -> Iterator[str]:
    position: StreamName | None = None
    for _ in range(PAGE_ROWS):
        following = store.streams(None, position, limit=1)
        if not following:
            return
        stream = following[0]
        # Long job sets of a queue come behind that place, too: they are passed one by one.
        position = stream if position and position.queue == stream.queue else StreamName(stream.queue, _BEHIND)
        yield stream.queue


def _runs(request: Request, caller: Caller, text: str) -> Iterator[Hit]:
    calls = calling(request, caller, TENANT)
    if calls is None:
        return

    spec = protocol.GetLatestWfSpecRequest(name=pipeline_starts.spec_name(text))
    for tenant in islice(tenants_of(calls), _TENANTS_MAX):
        call = replace(calls, tenant=tenant)
        of, own = ("", {}) if tenant == TENANT else (f" of the tenant {tenant}", {"tenant": tenant})
        if _there(lambda call=call: call("GetWfRun", engine.run_id(text))):  # type: ignore[misc]
            yield f"the run {text}{of}", link("/console/runs/run", id=text, **own)
        if _there(lambda call=call: call("GetLatestWfSpec", spec)):  # type: ignore[misc]
            yield f"the workflow {text}{of}", link("/console/workflows/workflow", name=spec.name, **own)
