"""Objects, written: uploaded, deleted, copied, described."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.responses import Response

from millpond.errors import Invalid, NotFound
from millpond.kernel.space import WouldBlock
from millpond.server.lakefs.addresses import checked_address
from millpond.server.lakefs.bodies import parse_body, takes
from millpond.server.lakefs.errors import ApiError, json_answer, wording
from millpond.server.lakefs.forms import FormContent, boundary_of
from millpond.server.lakefs.stats import stats_answer
from millpond.server.lakefs.streaming import BodyStream, whole_body
from millpond.versions.graph.names import check_branch
from millpond.versions.objects.entries import DEFAULT_CONTENT_TYPE, Entry, check_path
from millpond.versions.objects.uploads import data_name
from millpond.versions.staging.group_commit import BODY_BYTES_MAX, StagedEntry, takes_bodies

if TYPE_CHECKING:
    from millpond.server.lakefs.call import Call
    from millpond.server.lakefs.together import Together
    from millpond.versions.repository_context import Site

__all__ = ("HANDLERS", "conditions")

T = TypeVar("T")
_BRANCH = "/repositories/{repository}/branches/{branch}"
_OBJECTS = f"{_BRANCH}/objects"
PATHS_MAX = 1_000
_METADATA = "x-lakefs-meta-"
_ENTRY = "x-millpond-entry"
"""The media type and the user metadata of an upload, as JSON: names as they are, any text."""
_UPLOAD_WORDS = {
    "branch_not_found": "branch '{branch}' not found",
    "branch_name": "argument name: branch id: invalid value: validation error",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _UploadedEntry:
    content_type: str = DEFAULT_CONTENT_TYPE
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _PathList:
    paths: list[str] | None = None
    prefix: str | None = None


@dataclass(frozen=True, slots=True)
class _ObjectCopyCreation:
    src_path: str
    src_ref: str | None = None
    force: bool = False
    shallow: bool = False


@dataclass(frozen=True, slots=True)
class _PrefixCopy:
    prefix: str
    target: str
    ref: str | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class _UpdateObjectUserMetadata:
    set: dict[str, str]


@dataclass(frozen=True, slots=True)
class _ObjectStageCreation:
    physical_address: str
    checksum: str
    size_bytes: int
    mtime: int | None = None
    metadata: dict[str, str] = field(default_factory=dict)
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


async def _upload(call: Call) -> Response:
    """A body of bytes, or a form with the field `content`, streamed."""
    path, force, headers = call.query.needed("path"), call.query.flag("force"), call.request.headers
    condition = conditions(headers)
    boundary = boundary_of(headers.get("content-type", ""))
    stream = BodyStream(call.request)
    whole = await stream.start()
    about = _about(headers)
    if whole is not None and boundary is None and len(whole) <= BODY_BYTES_MAX and not any(condition.values()):
        body = whole
        with wording(_UPLOAD_WORDS):
            check_branch(call.names["branch"])
            staged = await _with_site(call, lambda site: _stage_body(call, site, path, body, about, force=force))
        if staged is not None:
            return staged

    def put() -> Response:
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
        return stats_answer(branch.site, entry)

    return await call.in_thread(put)


async def _stage_body(
    call: Call, site: Site, path: str, body: bytes, about: _UploadedEntry, *, force: bool
) -> Response | None:  # fmt: skip
    """Store a small body and its entry together with those of other requests; None where that is not possible."""
    if not takes_bodies(site):
        return None
    name = data_name(site.clock.now_ms(), site.clock.random_id())
    checksum = hashlib.md5(body, usedforsecurity=False).hexdigest()
    entry = Entry(path, name, len(body), site.seconds(), checksum, about.content_type, about.metadata)
    await _together(call, StagedEntry.of(site, call.names["branch"], entry, force=force, body=body))
    return stats_answer(site, entry)


async def _together(call: Call, staged: StagedEntry) -> None:
    staging: Together[StagedEntry, None] = call.request.app.state.staging
    await staging.act(staged)


async def _with_site(call: Call, write: Callable[[Site], Awaitable[T]]) -> T:
    """Write to the repository as it was last looked up; when it is another one by now, to that.

    The write finds that out before it stores anything, so that nothing is looked up twice.

    Raises: `NotFound`; what `write` raises.
    """
    repositories, name = call.node.pond.repositories, call.names["repository"]
    remembered = repositories.remembered(name)
    if remembered is not None:
        try:
            return await write(remembered.site)
        except NotFound as error:
            if error.kind != "repository_not_found":
                raise
    try:
        repository = repositories.get(name, wait=False)
    except WouldBlock:
        repository = await call.in_thread(repositories.get, name)
    return await write(repository.site)


def _about(headers: Mapping[str, str]) -> _UploadedEntry:
    """The media type and the user metadata in the headers of an upload.

    Raises: `ApiError`.
    """
    if _ENTRY in headers:
        return parse_body(_UploadedEntry, headers[_ENTRY].encode())
    metadata = {name[len(_METADATA) :]: value for name, value in headers.items() if name.startswith(_METADATA)}
    return _UploadedEntry(headers.get("content-type") or DEFAULT_CONTENT_TYPE, metadata)


@takes(_ObjectStageCreation)
async def _stage(call: Call) -> Response:
    """An entry whose bytes are there already: below the namespace, or elsewhere."""
    call.body = await whole_body(call.request)
    path, creation = call.query.needed("path"), call.json(_ObjectStageCreation)
    return await _with_site(call, lambda site: _stage_entry(call, site, path, creation))


async def _stage_entry(call: Call, site: Site, path: str, creation: _ObjectStageCreation) -> Response:
    address = checked_address(site, call.node.settings.versions.sources, creation.physical_address)
    entry = Entry(
        path, address, _size(creation.size_bytes), site.seconds() if creation.mtime is None else creation.mtime,
        creation.checksum.strip('"'), creation.content_type, creation.metadata,
    )  # fmt: skip
    force = creation.force or call.query.flag("force")
    met: Any = conditions(call.request.headers)
    if any(met.values()):
        await call.in_thread(call.branch.staging.link, entry, force=force, **met)
    else:
        await _together(call, StagedEntry.of(site, call.names["branch"], entry, force=force))
    return stats_answer(site, entry)


def _size(size: int) -> int:
    if size < 0:
        raise Invalid("a size is not negative", kind="entry_invalid", size=size)
    return size


def _delete(call: Call) -> Response:
    path = call.query.needed("path")
    check_path(path)
    call.branch.delete(path, force=call.query.flag("force"))
    return Response(status_code=204)


@takes(_PathList)
def _delete_many(call: Call) -> Response:
    """Paths, all or none; or a prefix, however many paths begin with it."""
    listed = call.json(_PathList)
    force = call.query.flag("force")
    if listed.paths is None and listed.prefix is None:
        raise ApiError(
            400, "request body has an error: doesn't match schema #/components/schemas/PathList: "
            'Error at "/paths": property "paths" is missing',
        )  # fmt: skip
    paths = listed.paths or []
    if call.own:
        count = call.branch.staging.delete_many(list(dict.fromkeys(paths)), force=force)
        if listed.prefix is not None:
            call.branch.staging.delete_prefix(listed.prefix, force=force)
        return json_answer({"deleted": count})
    if len(paths) > PATHS_MAX:
        raise ApiError(400, f"request size exceeded, max paths is set to {PATHS_MAX}")
    errors, good = [], []
    for path in paths:
        try:
            check_path(path)
            good.append(path)
        except Invalid as error:
            errors.append({"path": path, "status_code": 400, "message": error.message})
    staging = call.branch.staging
    staging.record()  # a branch that is not there
    if listed.prefix is not None:
        staging.delete_prefix(listed.prefix, force=force)
    staging.delete_many(list(dict.fromkeys(good)), force=force)
    return json_answer({"errors": errors})


@takes(_ObjectCopyCreation)
def _copy(call: Call) -> Response:
    target, creation = call.query.needed("dest_path"), call.json(_ObjectCopyCreation)
    if creation.shallow:
        raise ApiError(501, "Not Implemented")
    branch = call.branch
    # clients of lakeFS find that a copy has an address of its own
    entry = branch.copy(creation.src_path, target, ref=creation.src_ref or None, shared=call.own, force=creation.force)
    return stats_answer(branch.site, entry)


@takes(_PrefixCopy)
def _copy_prefix(call: Call) -> Response:
    """`copied`: the entries that are staged below the target."""
    copy = call.json(_PrefixCopy)
    count = call.branch.staging.copy_prefix(copy.prefix, copy.target, ref=copy.ref or None, force=copy.force)
    return json_answer({"copied": count})


@takes(_UpdateObjectUserMetadata)
def _set_metadata(call: Call) -> Response:
    path = call.query.needed("path")
    call.branch.staging.set_metadata(path, call.json(_UpdateObjectUserMetadata).set, force=call.query.flag("force"))
    return Response(status_code=204)


def _stage_allowed(call: Call) -> Response:
    """204 for a branch that takes writes."""
    check_path(call.query.needed("path"))
    site, name = call.branch.site, call.names["branch"]
    with site.space.read() as tx:
        site.check_writable(tx, name, "write to", force=call.query.flag("force"))
    call.branch.staging.record()
    return Response(status_code=204)


HANDLERS = {
    ("POST", _OBJECTS): _upload,
    ("PUT", _OBJECTS): _stage,
    ("DELETE", _OBJECTS): _delete,
    ("POST", f"{_OBJECTS}/delete"): _delete_many,
    ("POST", f"{_OBJECTS}/copy"): _copy,
    ("POST", f"{_OBJECTS}/copy_prefix"): _copy_prefix,
    ("PUT", f"{_OBJECTS}/stat/user_metadata"): _set_metadata,
    ("GET", f"{_OBJECTS}/stage_allowed"): _stage_allowed,
}
