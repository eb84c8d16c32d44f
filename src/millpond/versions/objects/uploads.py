"""The bytes of objects: streamed into the store of a repository, under names that are never given twice.

data/<day>/<name>     below the namespace; the physical address is the namespace, a slash, and this name

A name has 20 letters of 0-9a-v, as those of lakeFS: the milliseconds since the day began, and a random id. So names of
one day ascend with time. A day is its number since 1970, in 20 digits.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from millpond.error_values import shown
from millpond.errors import Corrupt, Invalid, NotFound
from millpond.kernel.steps import step

if TYPE_CHECKING:
    from millpond.stores.objects import Objects, ObjectStore
    from millpond.stores.objects.sources import Source

__all__ = (
    "CHUNK_BYTES", "DATA", "Upload", "chunks_of", "data_name", "is_full_address", "physical_address",
    "physical_addresses", "read_bytes", "relative_address", "stem_of", "time_of", "upload",
)  # fmt: skip

DATA = "data"
CHUNK_BYTES = 1 << 20
_DAY_MS = 86_400_000
_MS_BYTES = 4
_NAME = re.compile(rf"({DATA}/(0{{14}}[0-9]{{6}})/([0-9a-v]{{20}}))([0-9a-f]{{4}}|[,-][0-9a-f]{{32}})?")
"""A name; after it the number of a part, or a comma (it was a dash) and a signature. Names of lakeFS have no folder
of a day that begins so."""
_EARLIER = re.compile(rf"({DATA}/[0-9]{{6,}}/([0-9a-f]{{12,}})-[0-9a-f]{{16}})[0-9a-f]*")
"""A name as they were before."""


@dataclass(frozen=True, slots=True)
class Upload:
    """Bytes that were stored: their name, how many, and their MD5."""

    address: str
    size: int
    checksum: str


def data_name(now_ms: int, id_: str) -> str:
    """A new name for bytes; those of one day share a folder.

    >>> data_name(1_600_000_000_123, "00000000000000ff")
    'data/00000000000000018518/0alpguo00000000003vg'
    """
    day, ms = divmod(now_ms, _DAY_MS)
    stamp = base64.b32hexencode(ms.to_bytes(_MS_BYTES, "big") + bytes.fromhex(id_))
    return f"{DATA}/{day:020d}/{stamp.decode().rstrip('=').lower()}"


def time_of(name: str) -> int | None:
    """The milliseconds since 1970 that a name of ours tells; None for a name of somebody else."""
    match = _NAME.fullmatch(name)
    if match is not None:
        stamp = base64.b32hexdecode(f"{match[3].upper()}====")
        return int(match[2]) * _DAY_MS + int.from_bytes(stamp[:_MS_BYTES], "big")
    earlier = _EARLIER.fullmatch(name)
    return None if earlier is None else int(earlier[2], 16)


def stem_of(name: str) -> str:
    """The beginning of a name of ours that it shares with the parts of one upload: up to the end of its id."""
    match = _NAME.fullmatch(name) or _EARLIER.fullmatch(name)
    return name if match is None else match[1]


def relative_address(namespace: str, address: str) -> str:
    """The name below a namespace of a physical address; an address elsewhere is left whole."""
    return address.removeprefix(namespace.rstrip("/") + "/")


def chunks_of(body: Any) -> Iterator[bytes | memoryview]:
    """The chunks of a body, which may be anything, each as single bytes: a view of numbers counts numbers.

    >>> [len(chunk) for chunk in chunks_of([b"ab", memoryview(b"cdefghij").cast("i")])]
    [2, 8]

    Raises: `Invalid`; what the chunks raise.
    """
    whole = isinstance(body, bytes | bytearray | memoryview)
    if isinstance(body, str) or not (whole or isinstance(body, Iterable)):
        raise _no_bytes(body)
    for chunk in [body] if whole else body:
        if isinstance(chunk, bytes):
            yield chunk
            continue
        try:
            view = memoryview(chunk)
        except TypeError:
            raise _no_bytes(chunk) from None
        yield view.cast("B") if view.c_contiguous and view.nbytes else view.tobytes()


def _no_bytes(value: object) -> Invalid:
    return Invalid(
        "the body of an object is bytes, or chunks of bytes", kind="object_body", value=shown(value),
        hint='encode a text, open a file as "rb"',
    )  # fmt: skip


def upload(store: ObjectStore, name: str, body: bytes | memoryview | Iterable[bytes | memoryview]) -> Upload:
    """Store bytes under a new name, a chunk at a time.

    Raises: `Unavailable` when the place is full; as `chunks_of`. Nothing is stored then.
    """
    digest, size = hashlib.md5(usedforsecurity=False), 0

    def counted() -> Iterator[bytes | memoryview]:
        nonlocal size
        for chunk in chunks_of(body):
            digest.update(chunk)
            size += len(chunk)
            yield chunk

    store.put_stream(name, counted())
    step("versions.uploaded")
    return Upload(name, size, digest.hexdigest())


def is_full_address(address: str) -> bool:
    """True for a URL of its own, false for a name below the namespace."""
    return "://" in address


def physical_address(namespace: str, address: str) -> str:
    """The address that clients see."""
    return address if is_full_address(address) else f"{namespace.rstrip('/')}/{address}"


def physical_addresses(namespace: str, addresses: pa.Array) -> pa.Array:
    """The addresses of a column that clients see."""
    below = pc.binary_join_element_wise(namespace.rstrip("/"), addresses, "/")
    return pc.if_else(pc.match_substring(addresses, "://"), addresses, below)


def read_bytes(
    store: Objects | Source, address: str, start: int, stop: int, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[bytes]:
    """The bytes `[start, stop)` of an object in chunks.

    Raises: `NotFound`, kind `data_missing`; `Corrupt` when the object ends before, as no object does that was stored.
    """
    for at in range(start, stop, chunk_bytes):
        yield _read_chunk(store, address, at, min(at + chunk_bytes, stop))  # it is not held here while it is sent


def _read_chunk(store: Objects | Source, address: str, start: int, stop: int) -> bytes:
    try:
        chunk = store.get_range(address, start, stop)
    except NotFound as error:
        reason = {"reason": error.message} if error.kind == "bucket_not_found" else {}
        raise NotFound("No data", kind="data_missing", address=address, **reason, hint=error.hint) from error
    if len(chunk) < stop - start:
        raise Corrupt(
            "the object is shorter than what was stored", kind="data_damaged", address=address,
            bytes=start + len(chunk),
            hint="bring the object back from a backup or another version of it, or put the path again",
        )  # fmt: skip
    return bytes(chunk)
