"""Files of a repository for programs that read them: ranges, indexes, and lists for a collector of garbage.

Ranges and indexes are Arrow files of Millpond's own form, drawn in `docs/format/ranges.md`. The node collects garbage
itself, see `gc/collect`; the lists are for whoever does it elsewhere, or wants to look.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

import msgspec
from starlette.responses import Response

from millpond.errors import NotFound
from millpond.ranges import index_name, range_name
from millpond.server.lakefs.call import Call
from millpond.server.lakefs.dialect import operations
from millpond.server.lakefs.downloads import download, piece_bytes
from millpond.server.lakefs.errors import HEADERS, ApiError, json_answer
from millpond.server.lakefs.models import Started, Text
from millpond.server.lakefs.needs import PAIR, REPOSITORY, administer, change, read
from millpond.server.lakefs.routes.objects import BYTES
from millpond.server.lakefs.urls import Urls
from millpond.server.routes.table import On
from millpond.versions.collect import GRACE_MS
from millpond.versions.garbage_lists import COMMITS, STAGED, list_commits, list_staged, run_folder
from millpond.versions.objects.entries import Entry
from millpond.versions.objects.uploads import physical_address, read_bytes
from millpond.versions.repositories import METADATA_FOLDER

__all__ = (
    "CollectionConfig", "FileLocation", "PreparedCommits", "PreparedCommitsStatus", "PreparedUncommitted", "routes",
)  # fmt: skip

_ID = re.compile("[0-9a-f]{16,128}")
_RUN = re.compile("[0-9a-f]{12}-[0-9a-f]{16}")
_NAMES = {"meta_range": index_name, "range": range_name}
routes = operations("plumbing")


class FileLocation(msgspec.Struct):
    """The address of a file."""

    location: str


class CollectionConfig(msgspec.Struct):
    """The seconds for which nothing is collected."""

    grace_period: int


class PreparedCommits(msgspec.Struct):
    """A list of commits for a collector."""

    run_id: str
    gc_commits_location: str
    gc_addresses_location: str
    gc_commits_presigned_url: str


class PreparedCommitsStatus(msgspec.Struct):
    """A list of commits that is done."""

    task_id: str
    completed: bool
    update_time: str
    result: PreparedCommits


class PreparedUncommitted(msgspec.Struct):
    """A list of what is staged for a collector; an empty one has no location."""

    run_id: str
    gc_uncommitted_location: str


# -- ranges and indexes -------------------------------------------------------------------------------


@routes.get(f"{REPOSITORY}/metadata/meta_range/{{meta_range}}", read(), answer=FileLocation)
def _get_meta_range(call: Call) -> Response:
    return _located(call, _file(call, "meta_range", call.names["meta_range"]))


@routes.get(f"{REPOSITORY}/metadata/range/{{range}}", read(), answer=FileLocation)
def _get_range(call: Call) -> Response:
    return _located(call, _file(call, "range", call.names["range"]))


def _located(call: Call, name: str) -> Response:
    location = _location(call, name)
    return json_answer(FileLocation(location), headers={"Location": location})


@routes.get(f"{REPOSITORY}/metadata/object/{{type}}/{{object_id}}", read(large=True), responses=BYTES)
def _get_metadata_object(call: Call, *, presign: bool = False) -> Response:
    """The bytes of a range or an index; with `presign` a URL that leads to them."""
    kind = call.names["type"]
    if kind not in _NAMES:
        raise ApiError(400, f"argument type: {kind}: one of {', '.join(_NAMES)}: validation error")
    name = _file(call, kind, call.names["object_id"])
    if presign:
        return Response(status_code=302, headers={"Location": _url(call, name)})
    objects = call.repository.context.ranges.inner
    size = objects.size(name)
    headers = {**HEADERS, "Content-Type": "application/octet-stream", "Content-Length": str(size)}
    return download(call.request, read_bytes(objects, name, 0, size, piece_bytes(call.request)), 200, headers)


def _file(call: Call, kind: str, id_: str) -> str:
    """The name of a file of the repository, which is there.

    Raises: `NotFound`.
    """
    name = _NAMES[kind](id_)
    if not _ID.fullmatch(id_) or not call.repository.context.ranges.inner.exists(name):
        raise NotFound("not found", kind="range_not_found", id=id_)
    return name


def _location(call: Call, name: str) -> str:
    return physical_address(call.repository.context.namespace, f"{METADATA_FOLDER}/{name}")


def _url(call: Call, name: str) -> str:
    entry = Entry(name.rpartition("/")[2], f"{METADATA_FOLDER}/{name}")
    return Urls(call.request, call.repository.context).reading(entry)[0]


# -- lists for collectors -----------------------------------------------------------------------------


@routes.get("/config/garbage-collection", PAIR)
def _get_collection_config() -> CollectionConfig:
    return CollectionConfig(GRACE_MS // 1000)


def _prepared(call: Call, run_id: str) -> PreparedCommits:
    folder = run_folder(run_id)
    return PreparedCommits(
        run_id, _location(call, f"{folder}/{COMMITS}"), _location(call, f"{folder}/addresses/"),
        _url(call, f"{folder}/{COMMITS}"),
    )  # fmt: skip


@routes.post(f"{REPOSITORY}/gc/prepare_commits", change("admin", On.REPOSITORY), status=201)
def _prepare_commits(call: Call) -> PreparedCommits:
    call.check_writable()
    return _prepared(call, list_commits(call.repository.context))


@routes.post(f"{REPOSITORY}/gc/prepare_commits/async", change("admin", On.REPOSITORY), status=202)
def _submit_commits(call: Call) -> Started:
    """A task that is done when the call is answered."""
    call.check_writable()
    return Started(list_commits(call.repository.context))


@routes.get(f"{REPOSITORY}/gc/prepare_commits/status", administer())
def _get_commits_status(call: Call, id: Text) -> PreparedCommitsStatus:
    objects = call.repository.context.ranges.inner
    if not _RUN.fullmatch(id) or not objects.exists(f"{run_folder(id)}/{COMMITS}"):
        raise NotFound("not found", kind="task_not_found", id=id)
    now = datetime.fromtimestamp(call.node.clock.now_ms() / 1000, UTC).isoformat(timespec="milliseconds")
    return PreparedCommitsStatus(id, completed=True, update_time=now, result=_prepared(call, id))


@routes.post(f"{REPOSITORY}/gc/prepare_uncommited", change("admin", On.REPOSITORY), status=201)
def _prepare_uncommitted(call: Call) -> PreparedUncommitted:
    """All of it at once: there is no token to go on with."""
    call.check_writable()
    run_id, count = list_staged(call.repository.context)
    return PreparedUncommitted(run_id, _location(call, f"{run_folder(run_id)}/{STAGED}") if count else "")
