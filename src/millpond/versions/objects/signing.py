"""Signatures over addresses: URLs that open one object, and names that may be linked at one path.

    GET  /…/file.csv?address=data/…&expires=…&key=…&signature=…     one object, one method, until it expires
    data/<day>/<name>-<signature>                                   a name to upload to, and to link at its own path

Keys lie in the space, so that every process of a pond knows them. A key signs for `KEY_MS`; then a new one does, and
the old one goes when nothing that it signed is valid any more.

Invariants:
* A signature is an HMAC-SHA256 over everything that it grants: method, repository, address, expiry, and what the
  response says of the bytes.
* Nothing is valid for longer than `VALID_MS_MAX`; no key lives longer than it signs and `VALID_MS_MAX` together.
* A link is valid for `LINK_MS` from the time in its name; garbage younger than that is never collected by default.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from millpond.clock import Clock
from millpond.errors import Denied, Invalid
from millpond.json_forms import JsonForm
from millpond.kernel.space import ReadTransaction, Space, Transaction
from millpond.versions.keyspaces import SIGNING_KEY
from millpond.versions.objects.uploads import data_name, stem_of, time_of

__all__ = ("LINK_MS", "VALID_MS_MAX", "Signer", "SignedAccess")

KEY_MS = 24 * 3_600_000
"""The time that a key signs for."""
VALID_MS_MAX = 7 * 24 * 3_600_000
"""The longest life of a signature."""
LINK_MS = 24 * 3_600_000
"""The time in which an address may be uploaded to and linked."""
_LINK_DIGITS = 32


@dataclass(frozen=True, slots=True)
class _Key:
    id: str
    secret: str
    created_ms: int


_FORM = JsonForm(_Key)


@dataclass(frozen=True, slots=True)
class SignedAccess:
    """The access that a URL grants: one method on one object of a repository; `expires` counts seconds since 1970.

    What is said of the bytes (`content_type`, `checksum`, and `modified`, in seconds) is repeated in the response.
    """

    method: str
    repository: str
    address: str
    expires: int
    content_type: str = ""
    checksum: str = ""
    modified: int = 0

    def text(self) -> str:
        times = str(self.expires), str(self.modified)
        about = (self.content_type, self.checksum, self.address)
        return "\n".join(("access", self.method, self.repository, *times, *about))

    def parameters(self) -> dict[str, str]:
        """The parameters of the URL, without the signature."""
        return {
            "method": self.method, "expires": str(self.expires), "type": self.content_type, "etag": self.checksum,
            "modified": str(self.modified), "address": self.address,
        }  # fmt: skip


class Signer:
    """Signs for a space, and knows its own signatures and those of every other process of it."""

    def __init__(self, space: Space, clock: Clock) -> None:
        self._space = space
        self._clock = clock
        self._keys: dict[str, _Key] = {}
        self._newest: _Key | None = None
        self._lock = threading.Lock()

    # -- URLs -----------------------------------------------------------------------------------------

    def query(self, access: SignedAccess) -> str:
        """The query of a URL that grants the access.

        Raises: `Invalid` for text with line ends, which no address has.
        """
        if any("\n" in part for part in (access.address, access.content_type, access.checksum)):
            raise Invalid("a line end cannot be signed", kind="sign_invalid", address=repr(access.address))
        key = self._key()
        return urlencode({**access.parameters(), "key": key.id, "signature": _signature(key, access.text())})

    def access(self, repository: str, parameters: Mapping[str, str]) -> SignedAccess:
        """The access that the parameters of a URL grant.

        Raises: `Denied`, kinds `signature_invalid`, `signature_expired`.
        """
        try:
            access = SignedAccess(
                parameters["method"], repository, parameters["address"], int(parameters["expires"]),
                parameters["type"], parameters["etag"], int(parameters["modified"]),
            )  # fmt: skip
            key_id, signature = parameters["key"], parameters["signature"]
        except (KeyError, ValueError):
            raise _invalid_signature() from None
        if not self._signed(key_id, signature, access.text()):
            raise _invalid_signature()
        if self._clock.now_ms() >= access.expires * 1000:
            raise Denied(
                "the URL has expired", kind="signature_expired", expires=access.expires, hint="have another one signed"
            )
        return access

    # -- links ----------------------------------------------------------------------------------------

    def link_name(self, repository: str, branch: str, path: str) -> str:
        """A new name for bytes, which may be linked at this path of this branch."""
        name = data_name(self._clock.now_ms(), self._clock.random_id())
        return f"{name},{_signature(self._key(), _link_text(repository, branch, path, name))[:_LINK_DIGITS]}"

    def check_link(self, repository: str, branch: str, path: str, name: str) -> None:
        """Refuse a name that was not given out for this path, or too long ago.

        Raises: `Invalid`, kinds `link_unsigned`, `link_signature`, `link_expired`.
        """
        created = time_of(name)
        stem, comma, signature = name.partition(",")
        if created is None or not comma or stem_of(name) != stem:
            raise Invalid(
                "address is not signed: link address invalid", kind="link_unsigned", address=name,
                hint="link the address that was given out for the path",
            )  # fmt: skip
        text = _link_text(repository, branch, path, stem)
        with self._space.read() as tx:
            keys = _read_keys(tx)
        if not any(hmac.compare_digest(_signature(key, text)[:_LINK_DIGITS], signature) for key in keys):
            raise Invalid(
                "invalid address signature: invalid address", kind="link_signature", address=name, path=path,
                hint="an address is linked at the path that it was given out for",
            )  # fmt: skip
        if not 0 <= self._clock.now_ms() - created < LINK_MS:
            raise Invalid(
                "link address expired", kind="link_expired", address=name, hint="upload to a new address, then link it"
            )

    # -- keys -----------------------------------------------------------------------------------------

    def _signed(self, key_id: str, signature: str, text: str) -> bool:
        key = self._keys.get(key_id)
        if key is None:
            with self._space.read() as tx:
                key = next((key for key in _read_keys(tx) if key.id == key_id), None)
            if key is None:
                return False
            self._keys[key_id] = key
        if self._clock.now_ms() >= key.created_ms + KEY_MS + VALID_MS_MAX:
            return False
        return hmac.compare_digest(_signature(key, text).encode(), signature.encode(errors="replace"))

    def _key(self) -> _Key:
        newest = self._newest
        if newest is not None and self._fresh(newest):
            return newest
        with self._lock:
            secret = "".join(self._clock.random_id() for _ in range(4))
            fresh = _Key(self._clock.random_id(), secret, self._clock.now_ms())
            self._newest = self._space.write(lambda tx: self._rotate(tx, fresh))
            self._keys[self._newest.id] = self._newest
            return self._newest

    def _rotate(self, tx: Transaction, fresh: _Key) -> _Key:
        """The newest key, when it still signs; else a fresh one, and without those that are over."""
        for key in sorted(_read_keys(tx), key=lambda key: key.created_ms, reverse=True):
            if self._fresh(key):
                return key
            if fresh.created_ms >= key.created_ms + KEY_MS + VALID_MS_MAX:
                tx.delete(SIGNING_KEY.pack(key.id))
        tx.put(SIGNING_KEY.pack(fresh.id), _FORM.encode(fresh))
        return fresh

    def _fresh(self, key: _Key) -> bool:
        return 0 <= self._clock.now_ms() - key.created_ms < KEY_MS


def _read_keys(tx: ReadTransaction) -> list[_Key]:
    rows = [row for _, row in tx.scan(SIGNING_KEY.range())]
    return [_FORM.stored(row, "a signing key cannot be read", kind="signing_key_damaged") for row in rows]


def _signature(key: _Key, text: str) -> str:
    return hmac.new(bytes.fromhex(key.secret), text.encode(), hashlib.sha256).hexdigest()


def _link_text(repository: str, branch: str, path: str, name: str) -> str:
    return "\n".join(("link", repository, branch, name, path))


def _invalid_signature() -> Denied:
    return Denied(
        "the signature of the URL is invalid", kind="signature_invalid",
        hint="use the URL as it was given, with its own method",
    )  # fmt: skip
