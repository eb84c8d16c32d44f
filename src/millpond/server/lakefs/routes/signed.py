"""URLs that need no token: they carry a signature, which is all that is asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from starlette.responses import Response

from millpond.errors import Conflict, NotFound
from millpond.server.lakefs.call import Call
from millpond.server.lakefs.dialect import operations
from millpond.server.lakefs.errors import ApiError
from millpond.server.lakefs.routes.objects import BYTES, HEAD_OF_BYTES, bytes_answer
from millpond.server.lakefs.streaming import BodyStream
from millpond.server.routes.table import On, RouteNeeds, Work
from millpond.versions.objects.entries import DEFAULT_CONTENT_TYPE, Entry
from millpond.versions.objects.signing import SignedAccess
from millpond.versions.objects.uploads import is_full_address, read_bytes, stem_of, upload
from millpond.versions.repository_context import RepositoryContext

__all__ = ("routes",)

_SIGNED = "/signed/{repository}/{name}"
_PART_DIGITS = 4
_PARAMETERS = ("method", "expires", "type", "etag", "modified", "address", "key", "signature")
_DESCRIBED: tuple[dict[str, Any], ...] = tuple(
    {"name": name, "in": "query", "required": False, "schema": {"type": "string"}} for name in _PARAMETERS
)
routes = operations("signed")


def _access(call: Call, method: str) -> tuple[RepositoryContext, SignedAccess]:
    """The access that the URL grants.

    Raises: `Denied`; `ApiError` 403 for another method, and for a repository that is not there.
    """
    query = call.request.query_params
    parameters = {name: query[name] for name in _PARAMETERS if name in query}
    try:
        context = call.repository.context
    except NotFound:
        raise ApiError(403, "the signature of the URL is invalid") from None
    access = context.signer.access(context.uid, parameters)
    if access.method != method:
        raise ApiError(403, f"the URL is signed for {access.method}")
    return context, access


@routes.get(_SIGNED, RouteNeeds(None, On.NOTHING, Work.LARGE), parameters=_DESCRIBED, responses=BYTES)
@routes.head(_SIGNED, RouteNeeds(None, On.NOTHING, Work.SMALL), parameters=_DESCRIBED, responses=HEAD_OF_BYTES)
def _get_signed(call: Call) -> Response:
    context, access = _access(call, "GET")
    store, name = context.locate(access.address)
    try:
        size = store.size(name)
    except NotFound:
        raise NotFound("No data", kind="data_missing") from None
    content_type = access.content_type or DEFAULT_CONTENT_TYPE
    entry = Entry(call.names["name"], access.address, size, access.modified, access.checksum, content_type)
    answer = bytes_answer(call, context, entry)
    answer.headers["Accept-Ranges"] = "bytes"
    return answer


@routes.put(
    _SIGNED, RouteNeeds(None, On.NOTHING, Work.UPLOAD, None), parameters=_DESCRIBED,
    body={"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
)  # fmt: skip
async def _put_signed(call: Call) -> Response:
    """Bytes under the name that was given out; what is there already is not overwritten, unless it is a part."""
    stream = BodyStream(call.request)
    context, access = await call.in_thread(_access, call, "PUT")
    whole = await stream.start()

    def put() -> str:
        body = stream.chunks() if whole is None else [whole]
        name = access.address
        assert not is_full_address(name), "only names of the namespace are given out to be written"
        if context.data.exists(name) and not _is_part(name):
            return _same(context, name, body)
        return upload(context.data, name, body).checksum

    return Response(status_code=200, headers={"ETag": f'"{await call.in_thread(put)}"'})


def _is_part(name: str) -> bool:
    return len(name) == len(stem_of(name)) + _PART_DIGITS


def _same(context: RepositoryContext, name: str, body: Iterable[bytes]) -> str:
    """The MD5 of bytes that are stored already: an upload whose answer was lost may come again.

    Raises: `Conflict` for other bytes.
    """
    ours, theirs = (hashlib.md5(usedforsecurity=False) for _ in range(2))
    for chunk in body:
        theirs.update(chunk)
    for chunk in read_bytes(context.data, name, 0, context.data.size(name)):
        ours.update(chunk)
    if ours.digest() != theirs.digest():
        raise Conflict(
            "the address holds other bytes", kind="address_used", address=name, hint="have another address given out"
        )
    return ours.hexdigest()
