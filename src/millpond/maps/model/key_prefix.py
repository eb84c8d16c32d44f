"""The beginning that the addresses of one key share, see `address.py`, without an array."""

from __future__ import annotations

__all__ = ("escape_key", "key_prefix")


def escape_key(key: bytes) -> bytes:
    """One escaped key.

    >>> escape_key(b"a\\x00b\\x01")
    b'a\\x01\\x01b\\x01\\x02'
    """
    if b"\x00" in key or b"\x01" in key:
        return key.replace(b"\x01", b"\x01\x02").replace(b"\x00", b"\x01\x01")
    return key


def key_prefix(key: bytes) -> bytes:
    """The prefix of all addresses of this key, and of no other key."""
    return escape_key(key) + b"\x00"
