"""Signatures of what a client carries back to the node: the token of a login, a place to upload to, a URL.

The key is a row of the space, so that all servers of one space know each other's signatures. It never leaves the node.

Invariants:
* a signature is of one purpose: one made for another is not valid;
* signatures are compared in constant time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import TYPE_CHECKING

from millpond.clock import Clock
from millpond.versions.keyspaces import SIGNING

if TYPE_CHECKING:
    from millpond.kernel.space import Space, Transaction

__all__ = ("Signer",)

_KEY_DRAWS = 4


class Signer:
    """The signatures of one space."""

    def __init__(self, space: Space, clock: Clock) -> None:
        self._clock = clock
        self._key = _key_of(space, clock)

    def signature(self, purpose: str, *parts: str) -> str:
        """The signature of some texts, in hexadecimal digits."""
        digest = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in (purpose, *parts):
            raw = part.encode(errors="surrogatepass")
            digest.update(len(raw).to_bytes(8, "little") + raw)  # so that no two lists of parts are the same bytes
        return digest.hexdigest()

    def signs(self, signature: str, purpose: str, *parts: str) -> bool:
        """True for the signature of these texts."""
        return hmac.compare_digest(signature.encode(errors="replace"), self.signature(purpose, *parts).encode())

    def sealed(self, purpose: str, text: str, expires_ms: int) -> str:
        """A text, the time at which it expires, and their signature, as one token."""
        parts = (text, str(expires_ms))
        return base64.urlsafe_b64encode("\n".join((*parts, self.signature(purpose, *parts))).encode()).decode()

    def opened(self, purpose: str, token: str) -> str | None:
        """The text of a token; None for one that is not signed here, or has expired."""
        try:
            text, expires_ms, signature = base64.urlsafe_b64decode(token).decode().rsplit("\n", 2)
        except (binascii.Error, ValueError):
            return None
        if not self.signs(signature, purpose, text, expires_ms) or int(expires_ms) <= self._clock.now_ms():
            return None
        return text


def _key_of(space: Space, clock: Clock) -> bytes:
    drawn = "".join(clock.random_id() for _ in range(_KEY_DRAWS)).encode()
    row = SIGNING.pack()

    def change(tx: Transaction) -> bytes:
        known = tx.get(row)
        if known is None:
            tx.put(row, drawn)
        return bytes(known or drawn)

    with space.read() as tx:
        known = tx.get(row)
    return bytes(known) if known is not None else space.write(change)
