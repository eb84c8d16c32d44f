"""Fetching a file from a node: checked, and going on where a lost connection stopped it.

    <name>.<etag>.partial    what has come so far, of the file with that tag

The tag names the bytes, so what a broken download left is continued only by the same bytes: also by another process,
after a crash. A node that has them no more sends its own from the start, and what was left is thrown away.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from millpond.errors import Corrupt, Unavailable
from millpond.retry import retry
from millpond.stores.files import disk_errors

if TYPE_CHECKING:
    from millpond.client.transport import Connection

__all__ = ("CHECKSUM", "Fetched", "fetch_file")

CHECKSUM = "Content-Checksum"
"""The header that carries the xxh3_128 of a whole file, as hexadecimal digits."""
ATTEMPTS = 4
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file that came whole, and the headers it came with."""

    file: Path
    headers: Mapping[str, str]
    bytes: int


def fetch_file(
    connection: Connection, path: str, target: Path, *, query: Mapping[str, str] | None = None,
    timeout: float | None = None, attempts: int = ATTEMPTS,
) -> Fetched:  # fmt: skip
    """Fetch a file whole; on its way again up to `attempts` times when the connection is lost.

    Raises:
        Unavailable: the node cannot be reached or the disk is full; what came is kept for the next time.
        Corrupt: what came is not what was sent; nothing of it is kept.
        MillpondError: the node refuses.
    """
    with disk_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    return retry(
        lambda: _fetch_once(connection, path, target, query, timeout),
        lambda error, failures, _: 0.0 if _is_broken_line(error) and failures < attempts else None,
        connection.clock,
    )


def _is_broken_line(error: BaseException) -> bool:
    return isinstance(error, Unavailable) and error.kind == "node_unreachable"


def _fetch_once(
    connection: Connection, path: str, target: Path, query: Mapping[str, str] | None, timeout: float | None
) -> Fetched:
    begun = _partial_of(target)
    tag = begun.name.split(".")[-2] if begun else ""
    offset = begun.stat().st_size if begun else 0
    headers = {"Range": f"bytes={offset}-", "If-Range": f'"{tag}"'} if offset else {}
    with connection.stream("GET", path, query=query, headers=headers, timeout=timeout) as answer:
        tag, checksum = _tag(answer.headers), answer.headers.get(CHECKSUM)
        if answer.status != 206 and begun is not None:
            begun.unlink()
        partial = target.with_name(f"{target.name}.{tag}.partial")
        summed = xxhash.xxh3_128()
        with disk_errors(target), partial.open("a+b") as sink:
            sink.seek(0)
            while chunk := sink.read(CHUNK_BYTES):
                summed.update(chunk)
            while chunk := answer.read(CHUNK_BYTES):
                summed.update(chunk)
                sink.write(chunk)
            sink.flush()
            os.fsync(sink.fileno())
        known = dict(answer.headers)
    found = summed.hexdigest() if checksum else None
    if found != checksum:
        partial.unlink()
        raise Corrupt(
            "what was fetched is not what was sent", kind="fetch_damaged", node=connection.url, path=path,
            found=found, wanted=checksum, hint="try again",
        )  # fmt: skip
    partial.replace(target)
    return Fetched(target, {name.lower(): value for name, value in known.items()}, target.stat().st_size)


def _partial_of(target: Path) -> Path | None:
    """The partial file of an earlier download; one of them if there are several."""
    left = sorted(target.parent.glob(f"{target.name}.*.partial"))
    for other in left[1:]:
        other.unlink()
    return left[0] if left else None


def _tag(headers: Mapping[str, str]) -> str:
    """The tag of the bytes, as it can stand in the name of a file."""
    return re.sub(r"[^0-9A-Za-z]", "", headers.get("ETag") or "") or "untagged"
