"""Files of a repository for programs that read them: ranges, indexes, and lists for a collector of garbage.

Ranges and indexes are Arrow files of Millpond's own form, drawn in `docs/format/ranges.md`. The node collects garbage
itself, see `gc/collect`; the lists are for whoever does it elsewhere, or wants to look.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from starlette.responses import Response, StreamingResponse

from millpond.errors import NotFound
from millpond.ranges import index_name, range_name
from millpond.server.lakefs.errors import HEADERS, ApiError, json_answer
from millpond.server.lakefs.urls import Urls
from millpond.server.transfers import can_be_continued
from millpond.versions.collect import GRACE_MS
from millpond.versions.garbage_lists import COMMITS, STAGED, list_commits, list_staged, run_folder
from millpond.versions.objects.entries import Entry
from millpond.versions.objects.uploads import physical_address
from millpond.versions.repositories import METADATA_FOLDER

if TYPE_CHECKING:
    from millpond.server.lakefs.call import Call

__all__ = ("HANDLERS",)

_REPOSITORY = "/repositories/{repository}"
_ID = re.compile("[0-9a-f]{16,128}")
_RUN = re.compile("[0-9a-f]{12}-[0-9a-f]{16}")
_NAMES = {"meta_range": index_name, "range": range_name}
_CHUNK_BYTES = 1 << 20


# -- ranges and indexes -------------------------------------------------------------------------------


def _get_meta_range(call: Call) -> Response:
    return json_answer({"location": _location(call, _file(call, "meta_range", call.names["meta_range"]))})


def _get_range(call: Call) -> Response:
    return json_answer({"location": _location(call, _file(call, "range", call.names["range"]))})


def _get_object(call: Call) -> Response:
    """The bytes of a range or an index; with `presign` a URL that leads to them."""
    kind = call.names["type"]
    if kind not in _NAMES:
        raise ApiError(400, f"argument type: {kind}: one of {', '.join(_NAMES)}: validation error")
    name = _file(call, kind, call.names["object_id"])
    if call.query.flag("presign"):
        return Response(status_code=302, headers={"Location": _url(call, name)})
    objects = call.repository.site.ranges.inner
    size = objects.size(name)
    can_be_continued(call.request)
    headers = {**HEADERS, "Content-Type": "application/octet-stream", "Content-Length": str(size)}

    def chunks() -> Iterator[bytes]:
        for start in range(0, size, _CHUNK_BYTES):
            yield objects.get_range(name, start, min(size, start + _CHUNK_BYTES))

    return StreamingResponse(chunks(), headers=headers)


def _file(call: Call, kind: str, id_: str) -> str:
    """The name of a file of the repository, which is there.

    Raises: `NotFound`.
    """
    name = _NAMES[kind](id_)
    if not _ID.fullmatch(id_) or not call.repository.site.ranges.inner.exists(name):
        raise NotFound("not found", kind="range_not_found", id=id_)
    return name


def _location(call: Call, name: str) -> str:
    return physical_address(call.repository.site.namespace, f"{METADATA_FOLDER}/{name}")


def _url(call: Call, name: str) -> str:
    entry = Entry(name.rpartition("/")[2], f"{METADATA_FOLDER}/{name}")
    return Urls(call.request, call.repository.site).reading(entry)[0]


# -- lists for collectors -----------------------------------------------------------------------------


def _config(_call: Call) -> Response:
    return json_answer({"grace_period": GRACE_MS // 1000})


def _prepared(call: Call, run_id: str) -> dict[str, Any]:
    folder = run_folder(run_id)
    return {
        "run_id": run_id, "gc_commits_location": _location(call, f"{folder}/{COMMITS}"),
        "gc_addresses_location": _location(call, f"{folder}/addresses/"),
        "gc_commits_presigned_url": _url(call, f"{folder}/{COMMITS}"),
    }  # fmt: skip


def _prepare_commits(call: Call) -> Response:
    return json_answer(_prepared(call, list_commits(call.repository.site)), 201)


def _submit_commits(call: Call) -> Response:
    """A task that is done when the call is answered."""
    return json_answer({"id": list_commits(call.repository.site)}, 202)


def _status(call: Call) -> Response:
    id_ = call.query.needed("id")
    objects = call.repository.site.ranges.inner
    if not _RUN.fullmatch(id_) or not objects.exists(f"{run_folder(id_)}/{COMMITS}"):
        raise NotFound("not found", kind="task_not_found", id=id_)
    now = datetime.fromtimestamp(call.node.clock.now_ms() / 1000, UTC).isoformat(timespec="milliseconds")
    return json_answer({"task_id": id_, "completed": True, "update_time": now, "result": _prepared(call, id_)})


def _prepare_uncommitted(call: Call) -> Response:
    """All of it at once: there is no token to go on with."""
    run_id = list_staged(call.repository.site)
    location = _location(call, f"{run_folder(run_id)}/{STAGED}")
    return json_answer({"run_id": run_id, "gc_uncommitted_location": location}, 201)


HANDLERS = {
    ("GET", f"{_REPOSITORY}/metadata/meta_range/{{meta_range}}"): _get_meta_range,
    ("GET", f"{_REPOSITORY}/metadata/range/{{range}}"): _get_range,
    ("GET", f"{_REPOSITORY}/metadata/object/{{type}}/{{object_id}}"): _get_object,
    ("GET", "/config/garbage-collection"): _config,
    ("POST", f"{_REPOSITORY}/gc/prepare_commits"): _prepare_commits,
    ("POST", f"{_REPOSITORY}/gc/prepare_commits/async"): _submit_commits,
    ("GET", f"{_REPOSITORY}/gc/prepare_commits/status"): _status,
    ("POST", f"{_REPOSITORY}/gc/prepare_uncommited"): _prepare_uncommitted,
}
