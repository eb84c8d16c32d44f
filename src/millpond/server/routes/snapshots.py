"""Snapshots, for readers on other machines: the manifest that counts, and the files it names.

| route | answers |
|---|---|
| `GET /v1/maps/{m}/snapshot` | the manifest, its id as `ETag`; 304 to who has it |
| `GET /v1/maps/{m}/objects/{file}` | a file of a snapshot, or a range of it; it never changes |

`key_from, key_to, since, until` narrow the snapshot (lower bounds are held, upper ones are not), `fresh=1` freezes what
was applied up to now, `pin` keeps the files for so many seconds. What is pinned whole comes with `Snapshot-Entry`, the
last entry of the log that shaped it, where it is known: with `entry` another node can be asked for the same rows.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Annotated

from anyio.to_thread import run_sync
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from millpond.client.snapshots.fetch import ENTRY_HEADER, POND_HEADER
from millpond.maps.snapshots.manifest import SnapshotManifest
from millpond.nodes.node import Node
from millpond.nodes.snapshots import PIN_MS_MAX, Publisher
from millpond.refs.layers import ref_unsupported
from millpond.server.byte_ranges import file_chunks, ranged
from millpond.server.dispatch import Routes
from millpond.server.long_polls import map_reached
from millpond.server.map_refs import Branch, Ref, files_of, map_of
from millpond.server.routes.table import DIGEST_BYTES, FILE_BYTES, On, read
from millpond.server.thread_limits import in_thread

__all__ = ("routes",)

ENTRY_SECONDS = 5.0
"""The time a node that is behind may take to reach an entry that another one has applied."""

FOR_EVER = "private, max-age=31536000, immutable"

_LOWER = Meta(description="only keys (numbers, for ranged maps) from here on")
_UPPER = Meta(description="only keys (numbers) before this")
_Incarnation = Annotated[
    str, Meta(pattern="^[0-9a-f]{16}$", description="of a map that commits and branches name, for a backup")
]
_SINCE = Meta(description="only instants from here on: UTC milliseconds, or ISO 8601 with a zone")
_UNTIL = Meta(description="only instants before this")


def routes(node: Node) -> Routes:
    """The routes of a node's snapshots."""
    router = Routes(prefix="/v1/maps/{name}", tag="snapshots")
    keep_ms = node.settings.client.min_time_to_keep_snapshots
    publisher = Publisher(node.clock, keep_ms, node.local_peer.shaped)

    def same_rows(name: str, entry: int, pin_ms: int, seconds: float) -> SnapshotManifest:
        node.local_peer.wait_applied(name, entry, seconds)
        return publisher.same_rows(node.pond.map(name), entry, pin_ms=pin_ms)

    def shaped_by(name: str, chosen: SnapshotManifest) -> int:
        return publisher.entry(node.pond.map(name), chosen)

    @router.get(
        "/snapshot", read(On.MAP, memory_bytes=DIGEST_BYTES, when_ready=True), summary="The manifest of the snapshot",
        responses={304: {"description": "it is still the same"}},
    )  # fmt: skip
    async def manifest(
        request: Request, name: str,
        key_from: Annotated[str | None, _LOWER] = None, key_to: Annotated[str | None, _UPPER] = None,
        since: Annotated[str | None, _SINCE] = None, until: Annotated[str | None, _UNTIL] = None,
        fresh: Annotated[bool, Meta(description="with all that is applied now")] = False,
        pin: Annotated[int, Meta(ge=0, le=PIN_MS_MAX // 1000, description="keep it for so many seconds")] = 0,
        entry: Annotated[int, Meta(ge=0, description="of the whole map, as this entry of the log left it")] = 0,
        branch: Branch = None, ref: Ref = None,
    ) -> Response:  # fmt: skip
        """The manifest of the snapshot that counts; docs/format/snapshot.md says how to read it."""
        window = (_instant(since), _instant(until))
        on_main = branch is None and ref is None
        if entry and not on_main:
            raise ref_unsupported(name, "entry")
        if entry:
            left = await map_reached(request, node, name, entry, ENTRY_SECONDS)
            chosen = await in_thread(request, same_rows, name, entry, pin * 1000, left)
        else:
            chosen = await in_thread(
                request, lambda: publisher.manifest(
                    map_of(request, name, branch, ref), keys=(key_from, key_to), window=window, fresh=fresh,
                    pin_ms=pin * 1000,
                )
            )  # fmt: skip
        headers = {"ETag": f'"{chosen.id}"', "Cache-Control": "private, no-cache", POND_HEADER: node.pond.log.pond_id}
        if pin and on_main and (shaped := await run_sync(shaped_by, name, chosen)):
            headers[ENTRY_HEADER] = str(shaped)
        if _has(request, chosen.id):
            return Response(status_code=304, headers=headers)
        return Response(chosen.to_bytes(), media_type="application/json", headers=headers)

    _add_files(router, node, publisher)
    return router


def _add_files(router: Routes, node: Node, publisher: Publisher) -> None:
    @router.head("/objects/{file:path}", read(On.MAP, when_ready=True), hidden=True)
    @router.get(
        "/objects/{file:path}", read(On.MAP, memory_bytes=FILE_BYTES, when_ready=True), summary="A file of a snapshot"
    )  # fmt: skip
    async def file(
        request: Request, name: str, file: str, branch: Branch = None, ref: Ref = None,
        incarnation: _Incarnation | None = None,
    ) -> Response:  # fmt: skip
        """A file of a snapshot. It is named by its content, so it may be kept for ever."""
        tag = PurePosixPath(file).stem

        def find() -> Path:
            return publisher.file(files_of(request, name, branch, ref, incarnation), file)

        path = await run_sync(find)
        headers = {"Cache-Control": FOR_EVER, POND_HEADER: node.pond.log.pond_id}
        if _has(request, tag):
            return Response(status_code=304, headers={**headers, "ETag": f'"{tag}"'})
        try:
            size, chunks = await run_sync(lambda: (path.stat().st_size, file_chunks(path)))
        except FileNotFoundError:
            size, chunks = 0, None
        if chunks is None:
            await run_sync(find)  # collected in between: says so
            raise AssertionError("names of content are not given twice")
        return ranged(request, size=size, tag=tag, chunks=chunks, headers=headers)


def _instant(text: str | None) -> str | int | None:
    return int(text) if text is not None and text.lstrip("-").isdecimal() else text


def _has(request: Request, tag: str) -> bool:
    """True when `If-None-Match` matches the ETag."""
    tags = request.headers.get("if-none-match", "")
    return any(tag_.strip().removeprefix("W/").strip('"') in (tag, "*") for tag_ in tags.split(",") if tag_.strip())
