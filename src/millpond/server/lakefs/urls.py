"""URLs that need no token: of the store, where it signs its own, else of this node.

    <node>/api/v1/signed/<repository>/<file name>?method=GET&expires=…&address=…&key=…&signature=…

Invariants:
* A URL opens one object by one method until it expires. One that reads answers a HEAD, too: it tells less.
* A URL of this node ends with the last part of the path, so that programs know the format by its name.
"""

from __future__ import annotations

from typing import Literal
from urllib.parse import quote

from starlette.requests import Request

from millpond.errors import Denied
from millpond.server.lakefs.object_headers import header_text, media_type
from millpond.stores.objects import can_presign, presign
from millpond.stores.objects.bucket import BucketObjects
from millpond.versions.objects.entries import Entry
from millpond.versions.objects.signing import SignedAccess
from millpond.versions.repository_context import RepositoryContext

__all__ = ("EXPIRES_SECONDS", "UPLOAD_SECONDS", "Urls")

EXPIRES_SECONDS = 15 * 60
"""The life of a URL that reads, or writes one object."""
UPLOAD_SECONDS = 6 * 3_600
"""The life of a URL for a part of an upload."""
_NO_NAME = "object"


class Urls:
    """The URLs of one repository, as this request reaches the node."""

    def __init__(self, request: Request, context: RepositoryContext) -> None:
        self._context = context
        self._base = f"{str(request.base_url).rstrip('/')}/api/v1/signed/{quote(context.name, safe='')}"
        self._now = context.clock.now_ms() // 1000

    def reading(self, entry: Entry) -> tuple[str, int]:
        """A URL that reads an entry's bytes, and when it expires.

        Raises: `Invalid` for an address that is none; `Denied` when the store cannot sign.
        """
        said = media_type(entry), header_text(entry.checksum), entry.mtime  # what the answer says, on one line
        return self._signed("GET", entry.address, entry.path, EXPIRES_SECONDS, *said)

    def writing(self, name: str, path: str, seconds: int = EXPIRES_SECONDS) -> tuple[str, int]:
        """A URL that writes bytes under a name of the namespace, and when it expires."""
        return self._signed("PUT", name, path, seconds)

    def _signed(
        self, method: Literal["GET", "PUT"], address: str, path: str, seconds: int, content_type: str = "",
        checksum: str = "", modified: int = 0,
    ) -> tuple[str, int]:  # fmt: skip
        expires = self._now + seconds
        store, name = self._context.locate(address)
        if isinstance(store, BucketObjects) and can_presign(store):
            try:
                return presign(store, name, seconds, method), expires
            except Denied:
                pass  # no credentials to sign with: the node signs, and reads with what it has
        access = SignedAccess(method, self._context.uid, address, expires, content_type, checksum, modified)
        last = quote(_last_name(path), safe="")
        return f"{self._base}/{last}?{self._context.signer.query(access)}", expires


def _last_name(path: str) -> str:
    """The name under which a client stores what it reads: never one that clients take out of a URL."""
    last = path.rpartition("/")[2]
    return _NO_NAME if last in ("", ".", "..") else last
