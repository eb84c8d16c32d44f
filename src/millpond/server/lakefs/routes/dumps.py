"""Dumps of refs, and restores: as lines that are streamed, and as lakeFS has them, stored among the ranges.

    GET  …/refs/dump, POST …/refs/restore      the lines, by clients of Millpond
    POST …/dump, GET …/dump?task_id=           the dump is stored; its id stands for commits, tags and branches
    POST …/restore, GET …/restore?task_id=     from such an id

What lakeFS does in the background is done when its call is answered, so that a task that fails says so at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.responses import Response, StreamingResponse

from millpond.errors import NotFound
from millpond.server.lakefs.addresses import check_namespace
from millpond.server.lakefs.bodies import takes
from millpond.server.lakefs.errors import HEADERS, ApiError, json_answer
from millpond.server.lakefs.streaming import BodyStream, read_to_its_end
from millpond.versions.dumps import dump_name, store_dump

if TYPE_CHECKING:
    from millpond.server.lakefs.call import Call
    from millpond.versions.restores import Restored

__all__ = ("HANDLERS",)

_REPOSITORY = "/repositories/{repository}"
_LINES = "application/x-ndjson"
_ID = re.compile("[0-9a-f]{64}")
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _RefsRestore:
    commits_meta_range_id: str
    tags_meta_range_id: str
    branches_meta_range_id: str
    force: bool = False


def _stream(call: Call) -> Response:
    chunks = call.repository.dump()
    return StreamingResponse(chunks, headers={**HEADERS, "Content-Type": _LINES})


async def _take(call: Call) -> Response:
    stream = BodyStream(call.request)
    whole = await stream.start()

    def take() -> Response:
        chunks: Iterable[bytes] = stream.chunks() if whole is None else iter([whole])
        with read_to_its_end(chunks):
            return json_answer(_restored(call, chunks, force=call.query.flag("force")), 201)

    return await call.in_thread(take)


def _restored(call: Call, chunks: Iterable[bytes], *, force: bool) -> Restored:
    check = partial(check_namespace, call.node.settings.versions.namespaces)
    restored = call.node.pond.repositories.restore(call.names["repository"], chunks, force=force, check_namespace=check)
    call.note(commits=restored.commits, branches=restored.branches, tags=restored.tags)
    return restored


# -- as lakeFS has them -------------------------------------------------------------------------------


def _refs(id_: str) -> dict[str, str]:
    """The three ids of a dump: it is one object here."""
    return {"commits_meta_range_id": id_, "tags_meta_range_id": id_, "branches_meta_range_id": id_}


def _dump(call: Call) -> Response:
    return json_answer(_refs(store_dump(call.repository.site)), 201)


def _submit_dump(call: Call) -> Response:
    return json_answer({"id": store_dump(call.repository.site)}, 202)


def _dump_status(call: Call) -> Response:
    id_ = _known(call, call.query.needed("task_id"))
    return json_answer({**_done(call, id_), "refs": _refs(id_)})


@takes(_RefsRestore)
def _restore(call: Call) -> Response:
    _restore_stored(call)
    return Response(status_code=200)


@takes(_RefsRestore)
def _submit_restore(call: Call) -> Response:
    return json_answer({"id": _restore_stored(call)}, 202)


def _restore_status(call: Call) -> Response:
    return json_answer(_done(call, _known(call, call.query.needed("task_id"))))


def _restore_stored(call: Call) -> str:
    restore = call.json(_RefsRestore)
    ids = {restore.commits_meta_range_id, restore.tags_meta_range_id, restore.branches_meta_range_id}
    if len(ids) > 1:
        raise ApiError(400, "commits, tags and branches are not of one dump: validation error")
    id_ = _known(call, ids.pop())
    _restored(call, _stored(call, id_), force=restore.force)
    return id_


def _known(call: Call, id_: str) -> str:
    """The id of a dump that is stored in the repository's namespace.

    Raises: `NotFound`.
    """
    if not _ID.fullmatch(id_) or not call.repository.site.ranges.inner.exists(dump_name(id_)):
        raise NotFound("not found", kind="dump_not_found", dump=id_, hint="copy it to the repository's namespace")
    return id_


def _stored(call: Call, id_: str) -> Iterator[bytes]:
    objects, name = call.repository.site.ranges.inner, dump_name(id_)
    size = objects.size(name)
    for start in range(0, size, _CHUNK_BYTES):
        yield objects.get_range(name, start, min(size, start + _CHUNK_BYTES))


def _done(call: Call, id_: str) -> dict[str, Any]:
    now = datetime.fromtimestamp(call.node.clock.now_ms() / 1000, UTC)
    return {"id": id_, "done": True, "update_time": now.isoformat(timespec="milliseconds")}


HANDLERS = {
    ("GET", f"{_REPOSITORY}/refs/dump"): _stream,
    ("POST", f"{_REPOSITORY}/refs/restore"): _take,
    ("PUT", f"{_REPOSITORY}/refs/dump"): _dump,
    ("PUT", f"{_REPOSITORY}/refs/restore"): _restore,
    ("POST", f"{_REPOSITORY}/dump"): _submit_dump,
    ("GET", f"{_REPOSITORY}/dump"): _dump_status,
    ("POST", f"{_REPOSITORY}/restore"): _submit_restore,
    ("GET", f"{_REPOSITORY}/restore"): _restore_status,
}
