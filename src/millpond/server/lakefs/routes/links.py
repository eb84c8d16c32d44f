"""Bytes that clients store themselves: addresses to upload to and to link, and uploads in parts by signed URLs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from millpond.errors import Invalid
from millpond.server.lakefs.addresses import check_source
from millpond.server.lakefs.bodies import takes
from millpond.server.lakefs.errors import ApiError, json_answer
from millpond.server.lakefs.routes.object_writes import conditions
from millpond.server.lakefs.stats import stats_answer
from millpond.server.lakefs.urls import UPLOAD_SECONDS, Urls
from millpond.versions.multipart import PARTS_MAX
from millpond.versions.objects.entries import DEFAULT_CONTENT_TYPE, Entry, check_path
from millpond.versions.objects.uploads import is_full_address, physical_address, read_bytes, relative_address

if TYPE_CHECKING:
    from millpond.server.lakefs.call import Call
    from millpond.versions.multipart import OpenUpload
    from millpond.versions.repository_context import Site

__all__ = ("HANDLERS",)

_STAGING = "/repositories/{repository}/branches/{branch}/staging"
_UPLOAD = f"{_STAGING}/pmpu/{{uploadId}}"
_PART = f"{_UPLOAD}/parts/{{partNumber}}"
URLS_MAX = 1_000
"""Parts whose URLs are signed with the beginning of an upload; others are signed one by one."""


@dataclass(frozen=True, slots=True)
class _StagingLocation:
    physical_address: str


@dataclass(frozen=True, slots=True)
class _StagingMetadata:
    staging: _StagingLocation
    checksum: str
    size_bytes: int
    user_metadata: dict[str, str] = field(default_factory=dict)
    content_type: str = DEFAULT_CONTENT_TYPE
    mtime: int | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class _UploadPart:
    part_number: int
    etag: str


@dataclass(frozen=True, slots=True)
class _CompletePresignMultipartUpload:
    physical_address: str
    parts: list[_UploadPart]
    user_metadata: dict[str, str] = field(default_factory=dict)
    content_type: str | None = None


@dataclass(frozen=True, slots=True)
class _AbortPresignMultipartUpload:
    physical_address: str


@dataclass(frozen=True, slots=True)
class _CopySource:
    repository: str
    ref: str
    path: str


@dataclass(frozen=True, slots=True)
class _UploadPartCopyFrom:
    physical_address: str
    copy_source: _CopySource


# -- one object ---------------------------------------------------------------------------------------


def _get_backing(call: Call) -> Response:
    """An address for the path, which the same client links later; with `presign` a URL to upload to."""
    path, branch = call.query.needed("path"), call.branch
    check_path(path)
    site = branch.site
    with site.space.read() as tx:
        site.check_writable(tx, branch.name, "write to")
    branch.staging.record()
    name = site.signer.link_name(site.uid, branch.name, path)
    answer: dict[str, Any] = {"physical_address": physical_address(site.namespace, name)}
    if call.query.flag("presign"):
        answer["presigned_url"], answer["presigned_url_expiry"] = Urls(call.request, site).writing(name, path)
    return json_answer(answer)


@takes(_StagingMetadata)
def _link_backing(call: Call) -> Response:
    path, metadata = call.query.needed("path"), call.json(_StagingMetadata)
    branch = call.branch
    site = branch.site
    address = relative_address(site.namespace, metadata.staging.physical_address)
    if is_full_address(address):
        check_source(call.node.settings.versions.sources, address)
    else:
        site.signer.check_link(site.uid, branch.name, path, address)
    if metadata.size_bytes < 0:
        raise Invalid("a size is not negative", kind="entry_invalid", size=metadata.size_bytes)
    entry = Entry(
        path, address, metadata.size_bytes, site.seconds() if metadata.mtime is None else metadata.mtime,
        metadata.checksum.strip('"'), metadata.content_type, metadata.user_metadata,
    )  # fmt: skip
    met: Any = conditions(call.request.headers)
    branch.staging.link(entry, force=metadata.force, **met)
    return stats_answer(site, entry, 200)


# -- in parts -----------------------------------------------------------------------------------------


def _create(call: Call) -> Response:
    path = call.query.needed("path")
    count = call.query.number("parts", 0, 0, URLS_MAX)
    branch = call.branch
    upload = branch.uploads.create(path)
    urls = Urls(call.request, branch.site)
    return json_answer({
        "upload_id": upload.id, "physical_address": physical_address(branch.site.namespace, upload.address),
        "presigned_urls": [
            urls.writing(upload.part_name(number + 1), path, UPLOAD_SECONDS)[0] for number in range(count)
        ],
    }, 201)  # fmt: skip


def _upload(call: Call, address: str) -> tuple[OpenUpload, Site]:
    """The upload that the path names, whose address and path the request must know.

    Raises: `ApiError`; `NotFound`.
    """
    path, branch = call.query.needed("path"), call.branch
    upload = branch.uploads.get(call.names["uploadId"])
    if upload.path != path or relative_address(branch.site.namespace, address) != upload.address:
        raise ApiError(400, "the upload is one to another path or address")
    return upload, branch.site


@takes(_CompletePresignMultipartUpload)
def _complete(call: Call) -> Response:
    completion = call.json(_CompletePresignMultipartUpload)
    upload, site = _upload(call, completion.physical_address)
    met: Any = conditions(call.request.headers)
    entry = call.branch.uploads.complete(
        upload.id, [(part.part_number, part.etag) for part in completion.parts], content_type=completion.content_type,
        metadata=completion.user_metadata, **met,
    )  # fmt: skip
    return stats_answer(site, entry, 200)


@takes(_AbortPresignMultipartUpload)
def _abort(call: Call) -> Response:
    upload, _ = _upload(call, call.json(_AbortPresignMultipartUpload).physical_address)
    call.branch.uploads.abort(upload.id)
    return Response(status_code=204)


def _number(call: Call) -> int:
    text = call.names["partNumber"]
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= PARTS_MAX:
        raise ApiError(400, f'parameter "partNumber" in path has an error: number must be 1 to {PARTS_MAX}')
    return int(text)


@takes(_StagingLocation)
def _sign_part(call: Call) -> Response:
    """The URL of one part."""
    upload, site = _upload(call, call.json(_StagingLocation).physical_address)
    urls = Urls(call.request, site)
    url, expires = urls.writing(upload.part_name(_number(call)), upload.path, UPLOAD_SECONDS)
    return json_answer({"presigned_url": url, "presigned_url_expiry": expires})


@takes(_UploadPartCopyFrom)
def _copy_part(call: Call) -> Response:
    """A part with the bytes of an object."""
    copy = call.json(_UploadPartCopyFrom)
    upload, _ = _upload(call, copy.physical_address)
    call.need("read", copy.copy_source.repository)
    source = call.node.pond.repository(copy.copy_source.repository).ref(copy.copy_source.ref)
    entry = source.stat(copy.copy_source.path)
    place, name = source.site.place(entry.address)
    part = call.branch.uploads.put_part(upload.id, _number(call), read_bytes(place, name, 0, entry.size))
    return Response(status_code=204, headers={"ETag": f'"{part.checksum}"'})


HANDLERS = {
    ("GET", f"{_STAGING}/backing"): _get_backing,
    ("PUT", f"{_STAGING}/backing"): _link_backing,
    ("POST", f"{_STAGING}/pmpu"): _create,
    ("PUT", _UPLOAD): _complete,
    ("DELETE", _UPLOAD): _abort,
    ("PUT", _PART): _sign_part,
    ("PUT", f"{_PART}/copy"): _copy_part,
}
