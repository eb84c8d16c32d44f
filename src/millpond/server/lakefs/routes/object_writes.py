"""Objects, written: uploaded, deleted, copied, described."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from millpond.errors import Denied, Invalid, NotFound
from millpond.kernel.space import WouldBlock
from millpond.server.lakefs.addresses import checked_address
from millpond.server.lakefs.batcher import Batcher
from millpond.server.lakefs.call import Call
from millpond.server.lakefs.dialect import operations
from millpond.server.lakefs.errors import ApiError, wording
from millpond.server.lakefs.forms import FormContent, boundary_of
from millpond.server.lakefs.models import Long, Text
from millpond.server.lakefs.needs import BRANCH, change, write
from millpond.server.lakefs.stats import ObjectStats, stats_model
from millpond.server.lakefs.streaming import BodyStream
from millpond.server.parameters import typed_json
from millpond.server.routes.table import On
from millpond.versions.graph.names import check_branch
from millpond.versions.objects.entries import DEFAULT_CONTENT_TYPE, Entry, check_path
from millpond.versions.objects.uploads import data_name
from millpond.versions.repository_context import RepositoryContext
from millpond.versions.staging.group_commit import BODY_BYTES_MAX, StagedEntry, takes_bodies

__all__ = (
    "ObjectCopyCreation", "ObjectError", "ObjectErrorList", "ObjectMove", "ObjectStageCreation", "PathList",
    "UpdateObjectUserMetadata", "UploadedEntry", "conditions", "routes",
)  # fmt: skip

T = TypeVar("T")
_OBJECTS = f"{BRANCH}/objects"
PATHS_MAX = 1_000
PATHS_BYTES_MAX = 8 << 20
"""A thousand paths, each letter escaped."""
_METADATA = {"x-lakefs-meta-": "", "x-lakefs-internal-": "::lakefs::"}
"""Beginnings of headers that carry user metadata, and what their names begin with instead: no header holds a colon."""
_ENTRY = "x-millpond-entry"
"""The media type and the user metadata of an upload, as JSON: names as they are, any text."""
_UPLOAD_WORDS = {
    "branch_not_found": "branch '{branch}' not found",
    "branch_name": "argument name: branch id: invalid value: validation error",
}  # fmt: skip
routes = operations("object writes")


class UploadedEntry(msgspec.Struct):
    """The media type and the user metadata of an upload."""

    content_type: str = DEFAULT_CONTENT_TYPE
    metadata: dict[str, str] = {}


class PathList(msgspec.Struct):
    """Paths, or all below a prefix."""

    paths: list[str] | None = None
    prefix: str | None = None


class ObjectError(msgspec.Struct):
    """A path that was not deleted."""

    path: str
    status_code: int
    message: str


class ObjectErrorList(msgspec.Struct):
    """Paths that were not deleted; clients of Millpond read how many were."""

    errors: list[ObjectError] | UnsetType = UNSET
    deleted: int | UnsetType = UNSET


class ObjectCopyCreation(msgspec.Struct):
    """An object to copy."""

    src_path: str
    src_ref: str | None = None
    force: bool = False
    shallow: bool = False


class ObjectMove(msgspec.Struct):
    """An object, and its new path."""

    path: str
    target: str
    force: bool = False


class UpdateObjectUserMetadata(msgspec.Struct):
    """User metadata, which replace all that were there."""

    set: dict[str, str]


class ObjectStageCreation(msgspec.Struct):
    """An entry whose bytes are there already."""

    physical_address: str
    checksum: str
    size_bytes: Long
    mtime: Long | None = None
    metadata: dict[str, str] = {}
    content_type: str = DEFAULT_CONTENT_TYPE
    force: bool = False


def conditions(headers: Mapping[str, str]) -> dict[str, object]:
    """The conditions of a write: `If-None-Match: *`, `If-Match: "checksum"`.

    Raises: `ApiError` 501 for others.
    """
    absent, match = headers.get("if-none-match"), headers.get("if-match")
    if absent not in (None, "*") or match == "*" or (match is not None and "," in match):
        raise ApiError(501, "Not Implemented")
    return {"if_absent": absent is not None, "if_match": None if match is None else match.strip().strip('"')}


@routes.post(
    _OBJECTS, write(None), status=201,
    body={"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
)  # fmt: skip
async def _upload(call: Call, path: Text, *, force: bool = False) -> ObjectStats:
    """A body of bytes, or a form with the field `content`, streamed."""
    headers = call.request.headers
    condition = conditions(headers)
    boundary = boundary_of(headers.get("content-type", ""))
    stream = BodyStream(call.request)
    whole = await stream.start()
    about = _about(headers)
    if whole is not None and boundary is None and len(whole) <= BODY_BYTES_MAX and not any(condition.values()):
        body = whole
        with wording(_UPLOAD_WORDS):
            check_branch(call.names["branch"])
            staged = await _with_context(
                call, lambda context: _stage_body(call, context, path, body, about, force=force)
            )
        if staged is not None:
            return staged

    def put() -> ObjectStats:
        chunks: Iterator[bytes] = stream.chunks() if whole is None else iter([whole])
        content_type = about.content_type
        body: bytes | Iterable[bytes] = chunks if whole is None else whole
        if boundary is not None:
            form = FormContent(boundary, chunks)
            body, content_type = form.chunks(), form.content_type
        with wording(_UPLOAD_WORDS):
            check_branch(call.names["branch"])
            branch = call.branch
            entry = branch.put(
                path, body, content_type=content_type, metadata=about.metadata, force=force, **condition,  # type: ignore[arg-type]
            )  # fmt: skip
        return stats_model(branch.context, entry)

    return await call.in_thread(put)


async def _stage_body(
    call: Call, context: RepositoryContext, path: str, body: bytes, about: UploadedEntry, *, force: bool
) -> ObjectStats | None:  # fmt: skip
    """Store a small body and its entry together with those of other requests; None where that is not possible."""
    if not takes_bodies(context):
        return None
    name = data_name(context.clock.now_ms(), context.clock.random_id())
    checksum = hashlib.md5(body, usedforsecurity=False).hexdigest()
    entry = Entry(path, name, len(body), context.seconds(), checksum, about.content_type, about.metadata)
    await _together(call, StagedEntry.of(context, call.names["branch"], entry, force=force, body=body))
    return stats_model(context, entry)


async def _together(call: Call, staged: StagedEntry) -> None:
    staging: Batcher[StagedEntry, None] = call.request.app.state.staging
    await staging.act(staged)


async def _with_context(call: Call, write: Callable[[RepositoryContext], Awaitable[T]]) -> T:
    """Write to the repository as it was last looked up; when it is another one by now, to that.

    The write finds that out before it stores anything, so that nothing is looked up twice.

    Raises: `NotFound`; what `write` raises.
    """
    repositories, name = call.node.pond.repositories, call.names["repository"]
    remembered = repositories.remembered(name)
    if remembered is not None:
        try:
            return await write(remembered.context)
        except NotFound as error:
            if error.kind != "repository_not_found":
                raise
    try:
        repository = repositories.get(name, wait=False)
    except WouldBlock:
        repository = await call.in_thread(repositories.get, name)
    return await write(repository.context)


def _about(headers: Mapping[str, str]) -> UploadedEntry:
    """The media type and the user metadata in the headers of an upload.

    Raises: `ApiError`.
    """
    if _ENTRY in headers:
        return typed_json("header", headers[_ENTRY], UploadedEntry)
    metadata = {
        f"{begins}{name.removeprefix(header)}": value
        for name, value in headers.items()
        for header, begins in _METADATA.items()
        if name.startswith(header)
    }
    return UploadedEntry(headers.get("content-type") or DEFAULT_CONTENT_TYPE, metadata)


@routes.put(_OBJECTS, write(), status=201)
async def _stage(call: Call, path: Text, creation: ObjectStageCreation, *, force: bool = False) -> ObjectStats:
    """An entry whose bytes are there already: below the namespace, or elsewhere."""
    creation.force |= force
    return await _with_context(call, lambda context: _stage_entry(call, context, path, creation))


async def _stage_entry(call: Call, context: RepositoryContext, path: str, creation: ObjectStageCreation) -> ObjectStats:
    address = checked_address(context, call.node.settings.versions.sources, creation.physical_address)
    entry = Entry(
        path, address, _size(creation.size_bytes), context.seconds() if creation.mtime is None else creation.mtime,
        creation.checksum.strip('"'), creation.content_type or DEFAULT_CONTENT_TYPE, creation.metadata,
    )  # fmt: skip
    met: Any = conditions(call.request.headers)
    if any(met.values()):
        await call.in_thread(call.branch.staging.link, entry, force=creation.force, **met)
    else:
        await _together(call, StagedEntry.of(context, call.names["branch"], entry, force=creation.force))
    return stats_model(context, entry)


def _size(size: int) -> int:
    if size < 0:
        raise Invalid("a size is not negative", kind="entry_invalid", size=size)
    return size


@routes.delete(_OBJECTS, write(0), status=204)
def _delete(call: Call, path: Text, *, force: bool = False) -> None:
    check_path(path)
    call.branch.delete(path, force=force)


@routes.post(f"{_OBJECTS}/delete", change("write", On.BRANCH, PATHS_BYTES_MAX))
def _delete_many(call: Call, listed: PathList, *, force: bool = False) -> ObjectErrorList:
    """Paths, all or none; or a prefix, however many paths begin with it."""
    if listed.paths is None and listed.prefix is None:
        raise ApiError(
            400, "request body has an error: doesn't match schema #/components/schemas/PathList: "
            'Error at "/paths": property "paths" is missing',
        )  # fmt: skip
    paths, staging = listed.paths or [], call.branch.staging
    if call.own:
        count = staging.delete_many(list(dict.fromkeys(paths)), force=force)
        if listed.prefix is not None:
            staging.delete_prefix(listed.prefix, force=force)
        return ObjectErrorList(deleted=count)
    if len(paths) > PATHS_MAX:
        raise ApiError(400, f"request size exceeded, max paths is set to {PATHS_MAX}")
    errors, good = [], []
    for path in filter(None, paths):  # Spark deletes its folders, the branch itself among them
        try:
            check_path(path)
            good.append(path)
        except Invalid as error:
            errors.append(ObjectError(path, 400, error.message))
    staging.record()  # a branch that is not there
    if listed.prefix is not None:
        staging.delete_prefix(listed.prefix, force=force)
    try:
        staging.delete_many(list(dict.fromkeys(good)), force=force)
    except Denied as error:
        errors += [ObjectError(path, 403, error.message) for path in good]
    return ObjectErrorList(errors)


@routes.post(f"{_OBJECTS}/copy", write(), status=201)
def _copy(call: Call, dest_path: Text, creation: ObjectCopyCreation) -> ObjectStats:
    if creation.shallow:
        raise ApiError(501, "Not Implemented")
    branch = call.branch
    # clients of lakeFS find that a copy has an address of its own
    entry = branch.copy(
        creation.src_path, dest_path, ref=creation.src_ref or None, shared=call.own, force=creation.force
    )
    return stats_model(branch.context, entry)


@routes.post(f"{_OBJECTS}/move", write())
def _move(call: Call, move: ObjectMove) -> ObjectStats:
    branch = call.branch
    return stats_model(branch.context, branch.staging.move(move.path, move.target, force=move.force))


@routes.put(f"{_OBJECTS}/stat/user_metadata", write(), status=204)
def _set_user_metadata(call: Call, path: Text, update: UpdateObjectUserMetadata, *, force: bool = False) -> None:
    call.branch.staging.set_metadata(path, update.set, force=force)


@routes.get(f"{_OBJECTS}/stage_allowed", write(0), status=204)
def _may_stage(call: Call, path: Text, *, force: bool = False) -> None:
    """204 for a branch that takes writes."""
    check_path(path)
    context, name = call.branch.context, call.names["branch"]
    with context.space.read() as tx:
        context.check_writable(tx, name, "write to", force=force)
    call.branch.staging.record()
