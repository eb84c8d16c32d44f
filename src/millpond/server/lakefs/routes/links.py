"""Bytes that clients store themselves: addresses to upload to and to link, and uploads in parts by signed URLs."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from millpond.errors import Invalid
from millpond.server.lakefs.addresses import check_source
from millpond.server.lakefs.byte_ranges import parse_range
from millpond.server.lakefs.call import Call
from millpond.server.lakefs.dialect import operations
from millpond.server.lakefs.errors import ApiError
from millpond.server.lakefs.models import Long, Text
from millpond.server.lakefs.needs import BRANCH, write
from millpond.server.lakefs.routes.object_writes import conditions
from millpond.server.lakefs.stats import ObjectStats, stats_model
from millpond.server.lakefs.urls import UPLOAD_SECONDS, Urls
from millpond.versions.multipart import PARTS_MAX, OpenUpload
from millpond.versions.objects.entries import DEFAULT_CONTENT_TYPE, Entry, check_path
from millpond.versions.objects.uploads import is_full_address, physical_address, read_bytes, relative_address
from millpond.versions.repository_context import RepositoryContext

__all__ = (
    "Address", "CompletePresignMultipartUpload", "CopySource", "PresignMultipartUpload", "SignedPart",
    "StagingLocation", "StagingMetadata", "UploadPart", "UploadPartCopyFrom", "routes",
)  # fmt: skip

_STAGING = f"{BRANCH}/staging"
_UPLOAD = f"{_STAGING}/pmpu/{{uploadId}}"
_PART = f"{_UPLOAD}/parts/{{partNumber}}"
routes = operations("links")


class StagingLocation(msgspec.Struct):
    """An address below the namespace, with a URL to upload to where it is asked for."""

    physical_address: str
    presigned_url: str | UnsetType = UNSET
    presigned_url_expiry: int | UnsetType = UNSET


class Address(msgspec.Struct):
    """An address that was given out."""

    physical_address: Text


class StagingMetadata(msgspec.Struct):
    """An entry, whose bytes were uploaded to the address."""

    staging: Address
    checksum: str
    size_bytes: Long
    user_metadata: dict[str, str] = {}
    content_type: str = DEFAULT_CONTENT_TYPE
    mtime: Long | None = None
    force: bool = False


class PresignMultipartUpload(msgspec.Struct):
    """An upload in parts that was begun, with the URLs that were asked for."""

    upload_id: str
    physical_address: str
    presigned_urls: list[str] | UnsetType = UNSET


class UploadPart(msgspec.Struct):
    """A part, by the tag that the upload of its bytes was answered with."""

    part_number: Long
    etag: str


class CompletePresignMultipartUpload(Address):
    """The parts of an upload, and the entry that they become."""

    parts: Annotated[list[UploadPart], Meta(min_length=1)]
    user_metadata: dict[str, str] = {}
    content_type: str | None = None


class SignedPart(msgspec.Struct):
    """The URL of a part."""

    presigned_url: str
    presigned_url_expiry: int


class CopySource(msgspec.Struct):
    """An object to copy; `range`: the part of its bytes, as a header has it."""

    repository: str
    ref: str
    path: str
    range: str | None = None


class UploadPartCopyFrom(Address):
    """A part with bytes of an object."""

    copy_source: CopySource


# -- one object ---------------------------------------------------------------------------------------


@routes.get(f"{_STAGING}/backing", write(0))
def _get_backing(call: Call, path: Text, *, presign: bool = False) -> StagingLocation:
    """An address for the path, which the same client links later; with `presign` a URL to upload to."""
    branch = call.branch
    check_path(path)
    context = branch.context
    with context.space.read() as tx:
        context.check_writable(tx, branch.name, "write to")
    branch.staging.record()
    name = context.signer.link_name(context.uid, branch.name, path)
    location = StagingLocation(physical_address(context.namespace, name))
    if presign:
        location.presigned_url, location.presigned_url_expiry = Urls(call.request, context).writing(name, path)
    return location


@routes.put(f"{_STAGING}/backing", write())
def _link_backing(call: Call, path: Text, metadata: StagingMetadata) -> ObjectStats:
    branch = call.branch
    context = branch.context
    address = relative_address(context.namespace, metadata.staging.physical_address)
    if is_full_address(address):
        check_source(call.node.settings.versions.sources, address)
    else:
        context.signer.check_link(context.uid, branch.name, path, address)
    if metadata.size_bytes < 0:
        raise Invalid("a size is not negative", kind="entry_invalid", size=metadata.size_bytes)
    entry = Entry(
        path, address, metadata.size_bytes, context.seconds() if metadata.mtime is None else metadata.mtime,
        metadata.checksum.strip('"'), metadata.content_type or DEFAULT_CONTENT_TYPE, metadata.user_metadata,
    )  # fmt: skip
    met: Any = conditions(call.request.headers)
    branch.staging.link(entry, force=metadata.force, **met)
    return stats_model(context, entry)


# -- in parts -----------------------------------------------------------------------------------------


@routes.post(f"{_STAGING}/pmpu", write(0), status=201)
def _create_upload(
    call: Call, path: Text, parts: Annotated[int, Meta(ge=0, le=PARTS_MAX)] = 0
) -> PresignMultipartUpload:  # fmt: skip
    branch = call.branch
    upload = branch.uploads.create(path)
    urls = Urls(call.request, branch.context)
    signed = [urls.writing(upload.part_name(number + 1), path, UPLOAD_SECONDS)[0] for number in range(parts)]
    return PresignMultipartUpload(
        upload.id, physical_address(branch.context.namespace, upload.address), signed or UNSET
    )


def _upload(call: Call, path: str, address: str) -> tuple[OpenUpload, RepositoryContext]:
    """The upload that the path names, whose address and path the request must know.

    Raises: `ApiError`; `NotFound`.
    """
    branch = call.branch
    upload = branch.uploads.get(call.names["uploadId"])
    if upload.path != path or relative_address(branch.context.namespace, address) != upload.address:
        raise ApiError(400, "the upload is one to another path or address")
    return upload, branch.context


@routes.put(_UPLOAD, write())
def _complete_upload(call: Call, path: Text, completion: CompletePresignMultipartUpload) -> ObjectStats:
    upload, context = _upload(call, path, completion.physical_address)
    met: Any = conditions(call.request.headers)
    entry = call.branch.uploads.complete(
        upload.id, [(part.part_number, part.etag) for part in completion.parts], content_type=completion.content_type,
        metadata=completion.user_metadata, **met,
    )  # fmt: skip
    return stats_model(context, entry)


@routes.delete(_UPLOAD, write(), status=204)
def _abort_upload(call: Call, path: Text, address: Address) -> None:
    upload, _ = _upload(call, path, address.physical_address)
    call.branch.uploads.abort(upload.id)


def _number(call: Call) -> int:
    text = call.names["partNumber"]
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= PARTS_MAX:
        raise ApiError(400, f'parameter "partNumber" in path has an error: number must be 1 to {PARTS_MAX}')
    return int(text)


@routes.put(_PART, write())
def _sign_part(call: Call, path: Text, address: Address) -> SignedPart:
    upload, context = _upload(call, path, address.physical_address)
    urls = Urls(call.request, context)
    return SignedPart(*urls.writing(upload.part_name(_number(call)), upload.path, UPLOAD_SECONDS))


@routes.put(f"{_PART}/copy", write(), status=204)
def _copy_part(call: Call, path: Text, copy: UploadPartCopyFrom) -> Response:
    upload, _ = _upload(call, path, copy.physical_address)
    call.need("read", copy.copy_source.repository)
    source = call.node.pond.repository(copy.copy_source.repository).ref(copy.copy_source.ref)
    entry = source.stat(copy.copy_source.path)
    start, stop = parse_range(copy.copy_source.range, entry.size) or (0, entry.size)
    store, name = source.context.locate(entry.address)
    part = call.branch.uploads.put_part(upload.id, _number(call), read_bytes(store, name, start, stop))
    return Response(status_code=204, headers={"ETag": f'"{part.checksum}"'})
