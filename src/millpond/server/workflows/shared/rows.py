"""The rows of a tenant on all partitions, as readers see them: those here from their stores, others from their owners.

Invariants:
* a row is read of a store that is at the end which its log had when the read began, whoever owns it: so a read sees all
  that was answered before, and a former owner that knows nothing of its loss gives no old answer;
* the tags of all partitions together are in the order of one store, either way; so a bookmark is good for all of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, cast

from millpond.kernel.keys import Part, decode, encode
from millpond.server.workflows.shared.wire import KINDS, key_from, key_to, query_from, query_to
from millpond.workflows.partitions import METADATA
from millpond.workflows.partitions.routing import partition_of_row
from millpond.workflows.processor import ReadRows
from millpond.workflows.store.search import address_page, tag_page

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from millpond.kernel.page import Page
    from millpond.workflows.engine import Key
    from millpond.workflows.store import TagQuery
    from millpond.workflows.store.addresses import Address

    M = TypeVar("M", bound=Message)

__all__ = ("PAGE_ROWS", "SharedRows", "answer")

T = TypeVar("T")
PAGE_ROWS = 1_000

Local = Callable[[int, str, "Callable[[ReadRows], Any]"], Any]
"""Read rows of a partition that is here; None when it is not."""
Remote = Callable[[int, str, bytes], bytes]
"""Let a partition's owner answer."""


class SharedRows:
    """The rows of a tenant, to be read from a thread. It answers as `ReadRows`."""

    def __init__(self, tenant: str, partitions: int, here: Callable[[int], bool], local: Local, remote: Remote) -> None:
        self.tenant, self._partitions = tenant, partitions
        self._here, self._local, self._remote = here, local, remote

    def get(self, kind: type[M], key: Key) -> M | None:
        number = partition_of_row(self.tenant, kind, key, self._partitions)
        if self._here(number):
            return cast("M | None", self._local(number, self.tenant, lambda rows: rows.get(kind, key)))
        row = decode(self._remote(number, self.tenant, encode(("get", kind.DESCRIPTOR.name, key_to(key)))))
        return kind.FromString(cast("bytes", row[0])) if row else None

    def list(self, kind: type[M], prefix: Key, after: Key | None = None) -> Iterator[tuple[Key, M]]:
        """The rows whose keys begin with `prefix`, in the order of their keys; with `after` those behind that key."""
        number = METADATA if not prefix else partition_of_row(self.tenant, kind, prefix, self._partitions)
        while True:
            rows = self._page(number, kind, prefix, after)
            yield from rows
            if len(rows) < PAGE_ROWS:
                return
            after = rows[-1][0]

    def _page(self, number: int, kind: type[M], prefix: Key, after: Key | None) -> Sequence[tuple[Key, M]]:
        if self._here(number):
            page = self._local(number, self.tenant, lambda rows: _page_of(rows, kind, prefix, after))
            return cast("Sequence[tuple[Key, M]]", page)
        request = encode(("list", kind.DESCRIPTOR.name, key_to(prefix), b"" if after is None else key_to(after)))
        parts = cast("tuple[bytes, ...]", decode(self._remote(number, self.tenant, request)))
        return [(key_from(key), kind.FromString(row)) for key, row in zip(parts[::2], parts[1::2], strict=True)]

    def search(self, query: TagQuery, *, limit: int, bookmark: bytes | None) -> Page[Address]:
        """One page of a search for objects of runs.

        Raises:
            Invalid: the limit or the bookmark is none.
        """
        return address_page(self.tenant, query, self.tag_keys(query, limit=limit, bookmark=bookmark), limit)

    def search_free(self, query: TagQuery, *, limit: int, bookmark: bytes | None) -> Page[tuple[Part, ...]]:
        """One page of a search for objects that belong to no run.

        Raises:
            Invalid: the limit or the bookmark is none.
        """
        return tag_page(self.tenant, query, self.tag_keys(query, limit=limit, bookmark=bookmark), limit)

    def count(self, query: TagQuery) -> int:
        """The number of objects of a search."""
        return self._sum("count", ReadRows.count, query)

    def count_nodes(self, query: TagQuery) -> int:
        """The number of node runs of the runs of a search."""
        return self._sum("nodes", ReadRows.count_nodes, query)

    def _sum(self, name: str, count: Callable[[ReadRows, TagQuery], int], query: TagQuery) -> int:
        """The numbers of all partitions together; `name` is that of the request to their owners."""
        request = encode((name, query_to(query)))
        return sum(
            cast("int", self._local(number, self.tenant, lambda rows: count(rows, query))) if self._here(number)
            else cast("int", decode(self._remote(number, self.tenant, request))[0])
            for number in range(METADATA + 1, self._partitions)
        )  # fmt: skip

    def tag_keys(self, query: TagQuery, *, limit: int, bookmark: bytes | None) -> Sequence[bytes]:
        """The keys of the tags of a page, of all partitions together."""
        pages = [self._tags(number, query, limit, bookmark) for number in range(METADATA + 1, self._partitions)]
        return list(islice(heapq.merge(*pages, reverse=query.newest), limit + 1))

    def _tags(self, number: int, query: TagQuery, limit: int, bookmark: bytes | None) -> Sequence[bytes]:
        if self._here(number):
            local = self._local(
                number, self.tenant, lambda rows: rows.tag_keys(query, limit=limit, bookmark=bookmark)
            )  # fmt: skip
            return cast("Sequence[bytes]", local)
        request = encode(("tags", query_to(query), limit, bookmark))
        return list(cast("tuple[bytes, ...]", decode(self._remote(number, self.tenant, request))))


def answer(rows: ReadRows, request: tuple[Any, ...]) -> bytes:
    """The answer to another process, of the rows of a partition that is here."""
    match request:
        case ("get", kind, key):
            message = rows.get(KINDS[kind], key_from(key))
            return encode(() if message is None else (message.SerializeToString(),))
        case ("list", kind, prefix, after):
            page = _page_of(rows, KINDS[kind], key_from(prefix), key_from(after) if after else None)
            return encode(tuple(part for key, row in page for part in (key_to(key), row.SerializeToString())))
        case ("count", query):
            return encode((rows.count(query_from(query)),))
        case ("nodes", query):
            return encode((rows.count_nodes(query_from(query)),))
    _, query, limit, bookmark = request
    return encode(tuple(rows.tag_keys(query_from(query), limit=limit, bookmark=bookmark)))


def _page_of(rows: ReadRows, kind: type[M], prefix: Key, after: Key | None) -> list[tuple[Key, M]]:
    return list(islice(rows.list(kind, prefix, after), PAGE_ROWS))
