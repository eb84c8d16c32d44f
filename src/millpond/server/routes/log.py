"""Routes of a node's own work: jobs, maintenance of a map, quarantined parts.

| route | answers |
|---|---|
| `GET /v1/log?after&limit&wait` | entries after a position; waits up to 30 s for one |
| `GET /v1/log?…&map=m` | those about one map, with nothing of others in them |
| `POST /v1/log/replication` | when this node has entered (and applied) what others have |
| `POST /v1/log/acknowledgement` | when a load may be acknowledged without some nodes |
| `GET /v1/log/state`, `/v1/log/quarantine` | what a clone takes of the space |
| `GET /v1/log/own`, `/v1/log/layers`, `/v1/log/objects`, `/v1/log/objects/{name}` | what a backup takes beside it |
| `GET /v1/maps/{m}/digest` | rows and content digest, at a position |
| `GET /v1/maps/{m}/shard` | a compact copy of the shard |
| `GET /v1/parts/{id}/stream` | the part, its files one after another |
| `POST /v1/verify` | every invariant, checked on the data |
| `POST /v1/repair`, `GET /v1/repair?wait` | begins a repair; what became of it |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from operator import ne
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from millpond.client.transfer import CHECKSUM
from millpond.errors import Corrupt, NotFound, Unavailable
from millpond.json_forms import plain
from millpond.maps.log.log import Entry, entry_at, first_position
from millpond.maps.parts.stream import MEDIA_TYPE, PartStream
from millpond.nodes.acknowledgement import LOOK_SECONDS, begin_acknowledgement
from millpond.nodes.folder_content import objects_folder, own_objects
from millpond.nodes.node import Node
from millpond.nodes.replication.copies import Copy
from millpond.nodes.replication.source import SpaceFile
from millpond.nodes.tokens import Caller
from millpond.server.access import caller_in
from millpond.server.byte_ranges import file_chunks, ranged, tag_wanted
from millpond.server.dispatch import Routes
from millpond.server.long_polls import map_reached, polls_of, until
from millpond.server.routes.table import (
    DIGEST_BYTES,
    FILE_BYTES,
    JSON_BYTES_MAX,
    OPERATOR,
    ORDER_BYTES_MAX,
    On,
    RouteNeeds,
    Work,
    order,
    read,
)
from millpond.server.thread_limits import in_thread
from millpond.server.wire import RequestBody, relative
from millpond.stores.files import checksum_file
from millpond.stores.objects.protocol import check_name, not_found

__all__ = ("Acknowledgement", "Repair", "Replication", "Verification", "routes")

WAIT_SECONDS_MAX = 30.0
WORK_SECONDS_MAX = 600.0
PAGE_MAX = 10_000
_MOVES_MAX = 5

Answer = TypeVar("Answer")


class Replication(RequestBody):
    """The body of `POST /v1/log/replication`."""

    position: Annotated[int, Meta(ge=0)]
    applied: Annotated[bool, Meta(description="wait until it is merged, too")] = False
    maps: Annotated[list[str] | None, Meta(description="into these maps; into all by default")] = None
    timeout: Annotated[float, Meta(ge=0, le=WORK_SECONDS_MAX, description="seconds")] = 60.0
    chain: Annotated[str | None, Meta(description="the hash that the log must have up to that position")] = None


class Acknowledgement(RequestBody):
    """The body of `POST /v1/log/acknowledgement`."""

    position: Annotated[int, Meta(ge=0, description="of the load")]
    without: Annotated[list[str], Meta(description="the nodes that do not have it")]


class Verification(RequestBody):
    """The body of `POST /v1/verify`."""

    full: Annotated[bool, Meta(description="decode every row, not only a sample of each map")] = False


class Repair(RequestBody):
    """The body of `POST /v1/repair`."""

    source: Annotated[str | None, Meta(description="the node to repair from; the primary by default")] = None
    over: Annotated[bool, Meta(description="whether a log of its own may be thrown away for it")] = False


def routes(node: Node) -> Routes:
    """The routes of one node."""
    router = Routes(prefix="/v1")
    _add_log(router, node)
    _add_acknowledgement(router, node)
    _add_copies(router, node)
    _add_own(router, node)
    _add_checks(router, node)
    return router


# -- the log ------------------------------------------------------------------------------------------


def _add_log(router: Routes, node: Node) -> None:
    @router.get(
        "/log", RouteNeeds("read", On.QUERY_MAP_OR_POND, Work.ADMINISTRATION),
        tag="nodes", summary="Entries after a position",
    )  # fmt: skip
    async def log(
        request: Request,
        after: Annotated[int, Meta(ge=0)] = 0,
        limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 1000,
        wait: Annotated[float, Meta(ge=0, le=WAIT_SECONDS_MAX, description="seconds, for the first entry")] = 0,
        map: Annotated[str | None, Meta(description="only entries about this map")] = None,
    ) -> dict[str, Any]:
        """`next` is the position to go on after; `last` is where the log ends, `first` the oldest entry that is kept.

        With `map`, the right to read that map is enough, and `applied` says up to where it is merged here.
        """
        if map is not None and not node.answers:
            await in_thread(request, node.need_ready)
        if wait:
            await until(request, node.pond.log.position, lambda last: last[0] > after or node.stopping, wait)
        return await in_thread(request, _log, node, caller_in(request), after, limit, map)

    @router.post(
        "/log/replication", RouteNeeds("write", On.BODY_MAPS, Work.ADMINISTRATION, JSON_BYTES_MAX),
        tag="nodes", summary="Wait until this node has caught up",
    )  # fmt: skip
    async def replicate(
        caller: Caller,
        request: Request,
        replication: Replication,
    ) -> dict[str, int]:
        """Answers with where the node is; 503 `node_behind` or `merge_slow` when it does not get there in time.

        503 `merge_failed`, at once, when merging fails.
        """
        maps = replication.maps
        caller.need_all("write", maps or ())
        if maps is None and replication.applied and not caller.may("write"):
            maps = [pond_map.name for pond_map in node.pond.maps() if caller.may("write", pond_map.name)]
        due = node.clock.monotonic() + replication.timeout
        position = await _pulled(request, node, replication.position, replication.timeout)
        if replication.chain is not None:
            await in_thread(request, _need_chain, node, replication.position, replication.chain)
        if replication.applied:
            await _applied(request, node, replication.position, maps, due)
        return {"position": position}


def _add_acknowledgement(router: Routes, node: Node) -> None:
    @router.post(
        "/log/acknowledgement", RouteNeeds("write", On.ANY_MAP, Work.ADMINISTRATION, ORDER_BYTES_MAX),
        tag="nodes", summary="Wait until a load may be acknowledged without nodes",
    )  # fmt: skip
    async def acknowledgement(
        request: Request,
        acknowledged: Acknowledgement,
    ) -> dict[str, int]:
        """With `nodes.write_to = "majority"`: answers when those nodes answer no question, or have the load. Primary
        only."""
        polls = polls_of(request)
        wait = await in_thread(request, begin_acknowledgement, node, acknowledged.position, acknowledged.without)
        while (seconds := wait.left_seconds()) > 0:
            await until(request, polls.rings, partial(ne, polls.rings()), min(seconds, LOOK_SECONDS))
        await in_thread(request, node.need_primary)  # it may have ceased to be it meanwhile
        return {"position": acknowledged.position}


def _log(node: Node, caller: Caller, after: int, limit: int, name: str | None) -> dict[str, Any]:
    nodes = node.follower.members.current  # before the entries: they may show a later list, never an earlier one
    page = _page(node, caller, after, limit, name)
    position, chain = node.pond.log.position()
    page |= {
        "last": {"position": position, "chain": chain}, "first": _first(node), "epoch": nodes.epoch,
        "nodes": list(nodes.nodes),
    }  # fmt: skip
    return page if name is None else page | {"applied": node.pond.log.applied(name)}


async def _pulled(request: Request, node: Node, position: int, seconds: float) -> int:
    """The position of this node, when it has entered everything up to one.

    Raises: as `PositionWaits.wait`.
    """
    waits = node.follower.waits
    wait = waits.begin(position, seconds)
    while not wait.arrived():
        await until(request, waits.progress, partial(ne, wait.seen), wait.look_again - node.clock.monotonic())
    return wait.seen.position


async def _applied(request: Request, node: Node, position: int, maps: Sequence[str] | None, due: float) -> None:
    """Wait until everything up to a position is applied, at most until a monotonic time.

    Raises: as `PondLog.wait_applied`.
    """
    polls = polls_of(request)
    wait = await in_thread(request, node.pond.log.begin_wait, position, maps)
    rings = polls.rings()
    while not await in_thread(request, wait.ended) and node.clock.monotonic() < due and not node.stopping:
        await until(request, polls.rings, partial(ne, rings), due - node.clock.monotonic())
        rings = polls.rings()
    await in_thread(request, wait.conclude)


def _need_chain(node: Node, position: int, chain: str) -> None:
    """Insist that the log up to a position is the caller's: a node that follows another primary may have another.

    Raises: `Unavailable`, kind `load_elsewhere`.
    """
    with node.pond.space.read() as tx:
        entry = entry_at(tx, position)
    if entry is not None and entry.chain != chain:
        raise Unavailable(
            "the node has another entry in the place of the load", kind="load_elsewhere", position=position,
            node=node.url, hint="another node is the primary now: load the same data again",
        )  # fmt: skip


def _first(node: Node) -> int:
    with node.pond.space.read() as tx:
        return first_position(tx)


def _page(node: Node, caller: Caller, after: int, limit: int, name: str | None) -> dict[str, Any]:
    entries: list[Entry] = []
    while page := node.pond.log.entries(after, limit):
        about = page if name is None else [entry for entry in page if name.lower() in entry.maps]
        room = limit - len(entries)
        entries += about[:room]
        # What did not fit is asked for again: the caller goes on after the last entry it was given.
        after = page[-1].position if len(about) <= room else entries[-1].position
        if len(entries) >= limit or len(page) < limit or name is None:
            break
    entries_ = [entry.to_dict() if name is None else _only(entry, name.lower(), caller) for entry in entries]
    return {"entries": entries_, "next": after}


def _only(entry: Entry, name: str, caller: Caller) -> dict[str, Any]:
    """An entry with nothing of other maps in it: a reader of one map learns of none that it may not read."""
    origins = {part for part in ("copied_from", "renamed_from") if not caller.may("read", entry.body.get(part, name))}
    body = {part: value for part, value in entry.body.items() if part not in origins}
    for part in ("rows", "maps"):
        if part in body:
            body[part] = {other: value for other, value in body[part].items() if other == name}
    if "stream" in body:
        body["stream"] = None  # its id is for its writers
    for contents in ("parts", "layers"):
        if contents in body:
            body[contents] = [content for content in body[contents] if content["map"] == name]
    return {**entry.to_dict(), "maps": [name], "body": body}


# -- copies and parts ---------------------------------------------------------------------------------


def _add_copies(router: Routes, node: Node) -> None:
    @router.get("/log/state", OPERATOR, tag="nodes", summary="What a clone takes of the space")
    def state(request: Request) -> Response:
        """Rows of the space as an Arrow stream. Headers: `State-Position`, `Millpond-Pond`."""
        return _space_sent(node, request, SpaceFile.STATE)

    @router.get("/log/quarantine", OPERATOR, tag="nodes", summary="Which parts were quarantined")
    def quarantine(request: Request) -> Response:
        """Rows of the space as an Arrow stream."""
        return _space_sent(node, request, SpaceFile.QUARANTINE)

    @router.get("/maps/{name}/shard", OPERATOR, tag="nodes", summary="A compact copy of a shard")
    async def shard(
        request: Request,
        name: str,
        position: Annotated[int, Meta(ge=0, description="at least up to there")] = 0,
        incarnation: str | None = None,
        timeout: Annotated[float, Meta(ge=0, le=WORK_SECONDS_MAX)] = WAIT_SECONDS_MAX,
    ) -> Response:
        """The LMDB file. Headers: `Shard-Position`, `Shard-Rows`, `Content-Checksum` (xxh3_128)."""
        copy = _resumed(node, request, position)
        if copy is None:
            left = await map_reached(request, node, name, position, timeout)
            copy = await in_thread(request, _shard, node, name, position, incarnation, left)
        return _sent(request, copy)

    @router.get(
        "/parts/{part_id}/stream", read(On.OWN_PART, memory_bytes=FILE_BYTES),
        tag="parts", summary="A part as nodes send it",
    )  # fmt: skip
    def stream(caller: Caller, request: Request, part_id: str) -> Response:
        """The head and the rest of the part; the tag is the xxh3_128 of its manifest."""
        head = _where_it_lies(node, part_id, PartStream).head
        if not caller.may("read", head.manifest.map):
            raise _no_part(part_id)  # that it is here is for its readers
        return ranged(
            request, size=head.total, tag=head.checksum, headers={}, media_type=MEDIA_TYPE,
            chunks=lambda start, stop: _where_it_lies(node, part_id, partial(_begun, start=start, stop=stop)),
        )  # fmt: skip


def _add_own(router: Routes, node: Node) -> None:
    @router.get("/log/own", OPERATOR, tag="nodes", summary="The rows that only this folder has")
    def own(request: Request) -> Response:
        """Repositories, streams of events, runs of workflows, as an Arrow stream of rows of the space."""
        return _space_sent(node, request, SpaceFile.OWN)

    @router.get("/log/layers", OPERATOR, tag="nodes", summary="The heads of layered maps")
    def layers(request: Request) -> Response:
        """Rows as an Arrow stream: what a backup copies their layers by. Header: `State-Position`."""
        return _space_sent(node, request, SpaceFile.LAYERS)

    @router.get("/log/objects", OPERATOR, tag="nodes", summary="The objects of repositories in this folder")
    def objects(after: Annotated[str, Meta(max_length=4096)] = "") -> dict[str, Any]:
        """A page of `objects`, each with `name` and `bytes`, in the order of names; an empty one is the end."""
        page = own_objects(node.pond.folder, after)
        return {"objects": [{"name": info.name, "bytes": info.size} for info in page]}

    @router.get("/log/objects/{name:path}", OPERATOR, tag="nodes", summary="An object of a repository")
    def own_object(request: Request, name: str) -> Response:
        """Its bytes. They never change under this name."""
        file = objects_folder(node.pond.folder) / check_name(name)
        if not file.is_file():
            raise not_found(name, "repositories")
        return _sent(request, Copy(file, checksum_file(file), file.stat().st_size))


def _shard(node: Node, name: str, position: int, incarnation: str | None, timeout: float) -> Copy:
    definition = node.pond.map(name).definition
    if incarnation not in (None, definition.incarnation):
        raise NotFound("the map is another one now", kind="map_incarnation", map=name)
    node.local_peer.wait_applied(definition.name, position, timeout)
    return node.copies.shard(definition.name)


def _no_part(part_id: str) -> NotFound:
    return NotFound("the part is not here, or not any more", kind="part_not_found", part=part_id,
                    hint="parts are kept for maps.part_retention after they were merged")  # fmt: skip


def _where_it_lies(node: Node, part_id: str, act: Callable[[Path], Answer]) -> Answer:
    """The result of `act` on the file of a part, which may move meanwhile: to be merged, to be retained."""
    for last in (*[False] * _MOVES_MAX, True):
        file = node.pond.parts.file(part_id)
        if file is None:
            break
        try:
            return act(file)
        except (FileNotFoundError, Corrupt):
            if last and file.exists():
                raise
    raise _no_part(part_id)


def _begun(file: Path, start: int, stop: int) -> Iterator[bytes]:
    """The bytes of a part's stream, of which the first are read: its file is open, wherever it moves."""
    chunks = PartStream(file).chunks(start, stop)
    return chain([next(chunks, b"")], chunks)


def _resumed(node: Node, request: Request, position: int) -> Copy | None:
    """The copy that somebody has a part of already, when it reaches far enough."""
    tag = tag_wanted(request)
    copy = node.copies.find(tag) if tag else None
    return copy if copy is not None and copy.position >= position else None


def _space_sent(node: Node, request: Request, file: SpaceFile) -> Response:
    return _sent(request, _resumed(node, request, 0) or node.copies.space(file))


def _sent(request: Request, copy: Copy) -> Response:
    try:
        chunks = file_chunks(copy.file)
    except FileNotFoundError:
        raise Unavailable("the copy was removed meanwhile", kind="copy_gone", hint="ask again") from None
    return ranged(
        request, size=copy.bytes, tag=copy.checksum, chunks=chunks, headers={**copy.headers, CHECKSUM: copy.checksum}
    )


# -- checks and repairs -------------------------------------------------------------------------------


def _add_checks(router: Routes, node: Node) -> None:
    @router.get(
        "/maps/{name}/digest", read(On.MAP, memory_bytes=DIGEST_BYTES),
        tag="nodes", summary="Rows and content digest of a map",
    )  # fmt: skip
    async def digest(
        request: Request,
        name: str,
        position: Annotated[int, Meta(ge=0, description="when everything up to there is applied")] = 0,
        timeout: Annotated[float, Meta(ge=0, le=WORK_SECONDS_MAX, description="seconds")] = WAIT_SECONDS_MAX,
    ) -> dict[str, Any]:
        """`position`: all entries up to it are applied; `entry`: the last that shaped the rows; 503 `merge_slow`."""
        left = await map_reached(request, node, name, position, timeout)
        return await in_thread(request, node.local_peer.digest, name, position, left)

    @router.post("/verify", order(audited=False), tag="nodes", summary="Check every invariant on the data")
    async def verify(
        request: Request,
        verification: Verification | None = None,
    ) -> dict[str, Any]:
        """Counts of the check, and the problems found."""
        report = plain(await in_thread(request, node.pond.verify, full=verification is not None and verification.full))
        return dict(relative(report, node.pond.folder))

    @router.post("/repair", order(), tag="nodes", summary="Begin a repair", status=202)
    def repair(
        repairs: Repair | None = None,
    ) -> dict[str, Any]:
        """Pull, fetch parts that were quarantined, clone maps that differ; `GET` says what became of it."""
        source, over = (None, False) if repairs is None else (repairs.source, repairs.over)
        return dict(relative(node.repairs.begin(source, over=over), node.pond.folder))

    @router.get("/repair", OPERATOR, tag="nodes", summary="What became of the last repair")
    async def repaired(request: Request, wait: Annotated[float, Meta(ge=0, le=WAIT_SECONDS_MAX)] = 0) -> dict[str, Any]:
        """`state` is never, running, done or failed; with `wait`, it is running after so many seconds alone."""
        status = await until(request, node.repairs.status, lambda seen: seen["state"] != "running", wait)
        return dict(relative(status, node.pond.folder))
