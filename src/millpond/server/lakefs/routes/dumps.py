"""Dumps of refs, and restores: as lines that are streamed, and as lakeFS has them, stored among the ranges.

    GET  …/refs/dump, POST …/refs/restore      the lines, by clients of Millpond
    POST …/dump, GET …/dump?task_id=           the dump is stored; its id stands for commits, tags and branches
    POST …/restore, GET …/restore?task_id=     from such an id

What lakeFS does in the background is done when its call is answered, so that a task that fails says so at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial

import msgspec
from starlette.responses import Response, StreamingResponse

from millpond.errors import NotFound
from millpond.server.lakefs.addresses import check_namespace
from millpond.server.lakefs.call import Call
from millpond.server.lakefs.dialect import operations
from millpond.server.lakefs.errors import HEADERS, ApiError
from millpond.server.lakefs.models import Started, Text
from millpond.server.lakefs.needs import REPOSITORY, administer, change
from millpond.server.lakefs.streaming import BodyStream, read_to_its_end
from millpond.server.routes.table import On
from millpond.stores.objects.bringing import object_chunks
from millpond.versions.dumps import dump_name, store_dump
from millpond.versions.restores import Restored

__all__ = ("DumpTask", "RefsDump", "RefsRestore", "Task", "routes")

_LINES = "application/x-ndjson"
_ID = re.compile("[0-9a-f]{64}")


_STREAMED = {"content": {_LINES: {"schema": {"type": "string", "format": "binary"}}}}
routes = operations("dumps")


class RefsDump(msgspec.Struct):
    """The three ids of a dump: it is one object here."""

    commits_meta_range_id: str
    tags_meta_range_id: str
    branches_meta_range_id: str


class RefsRestore(RefsDump):
    """A dump to restore."""

    force: bool = False


class Task(msgspec.Struct):
    """A task, which is done."""

    id: str
    done: bool
    update_time: str


class DumpTask(Task):
    """A dump, which is stored."""

    refs: RefsDump


@routes.get(f"{REPOSITORY}/refs/dump", administer(large=True), responses={200: _STREAMED})
def _stream_dump(call: Call) -> Response:
    chunks = call.repository.dump()
    return StreamingResponse(chunks, headers={**HEADERS, "Content-Type": _LINES})


@routes.post(f"{REPOSITORY}/refs/restore", change("admin", On.REPOSITORY, None), status=201, body=_STREAMED["content"])
async def _take_dump(call: Call, *, force: bool = False) -> Restored:
    stream = BodyStream(call.request)
    whole = await stream.start()

    def take() -> Restored:
        chunks: Iterable[bytes] = stream.chunks() if whole is None else iter([whole])
        with read_to_its_end(chunks):
            return _restored(call, chunks, force=force)

    return await call.in_thread(take)


def _restored(call: Call, chunks: Iterable[bytes], *, force: bool) -> Restored:
    check = partial(check_namespace, call.node.settings.versions.namespaces)
    restored = call.node.pond.repositories.restore(call.names["repository"], chunks, force=force, check_namespace=check)
    call.note(commits=restored.commits, branches=restored.branches, tags=restored.tags)
    return restored


# -- as lakeFS has them -------------------------------------------------------------------------------


def _refs(id_: str) -> RefsDump:
    return RefsDump(id_, id_, id_)


@routes.put(f"{REPOSITORY}/refs/dump", change("admin", On.REPOSITORY, 0), status=201)
def _dump(call: Call) -> RefsDump:
    return _refs(store_dump(call.repository.context))


@routes.post(f"{REPOSITORY}/dump", change("admin", On.REPOSITORY, 0), status=202)
def _submit_dump(call: Call) -> Started:
    return Started(store_dump(call.repository.context))


@routes.get(f"{REPOSITORY}/dump", administer())
def _get_dump_status(call: Call, task_id: Text) -> DumpTask:
    id_ = _dump_id(call, task_id)
    return DumpTask(id_, done=True, update_time=_now(call), refs=_refs(id_))


@routes.put(f"{REPOSITORY}/refs/restore", change("admin", On.REPOSITORY))
def _restore(call: Call, refs: RefsRestore) -> Response:
    _restore_stored(call, refs)
    return Response(status_code=200)


@routes.post(f"{REPOSITORY}/restore", change("admin", On.REPOSITORY), status=202)
def _submit_restore(call: Call, refs: RefsRestore) -> Started:
    return Started(_restore_stored(call, refs))


@routes.get(f"{REPOSITORY}/restore", administer())
def _get_restore_status(call: Call, task_id: Text) -> Task:
    return Task(_dump_id(call, task_id), done=True, update_time=_now(call))


def _restore_stored(call: Call, refs: RefsRestore) -> str:
    ids = {refs.commits_meta_range_id, refs.tags_meta_range_id, refs.branches_meta_range_id}
    if len(ids) > 1:
        raise ApiError(400, "commits, tags and branches are not of one dump: validation error")
    id_ = _dump_id(call, ids.pop())
    lines = object_chunks(call.repository.context.ranges.inner, dump_name(id_))
    _restored(call, lines, force=refs.force)
    return id_


def _dump_id(call: Call, id_: str) -> str:
    """The id of a dump that is stored in the repository's namespace.

    Raises: `NotFound`.
    """
    if not _ID.fullmatch(id_) or not call.repository.context.ranges.inner.exists(dump_name(id_)):
        raise NotFound("not found", kind="dump_not_found", dump=id_, hint="copy it to the repository's namespace")
    return id_


def _now(call: Call) -> str:
    return datetime.fromtimestamp(call.node.clock.now_ms() / 1000, UTC).isoformat(timespec="milliseconds")
