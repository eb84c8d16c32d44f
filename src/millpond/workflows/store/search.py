"""Searches over tags, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice

from millpond.errors import Invalid
from millpond.kernel.keys import KeyRange, Part, Prefix, encode
from millpond.kernel.page import Bookmarks, Page, behind, check_limit
from millpond.kernel.space import ReadTransaction
from millpond.workflows.store.addresses import Address, Kind, RunPath
from millpond.workflows.store.joins import END, Index, joined_keys
from millpond.workflows.store.tags import Attributes, index_of, parent_part, shortened

__all__ = ("LIMIT_MAX", "TagQuery", "address_page", "search_keys", "tag_page")

LIMIT_MAX = 10_000
_TIME_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class TagQuery:
    """The objects of one kind that agree in some attributes, created from `start_ms` to `stop_ms`, both included."""

    kind: IntEnum
    attributes: Attributes
    start_ms: int | None = None
    stop_ms: int | None = None
    newest: bool = False
    """The newest come first."""
    rest: tuple[str | int, ...] = ()
    """The end of the address of the object that counts, of those of a run; with `also`."""
    also: tuple[Index, ...] = ()
    """Other indexes that have the run, too."""

    @classmethod
    def runs(
        cls, *, status: int | None = None, spec: str | None = None, major: int | None = None,
        revision: int | None = None, parent: RunPath | None = None,
    ) -> TagQuery:  # fmt: skip
        """Runs; without a condition, all runs.

        Raises:
            Invalid: a major version without a spec, or a revision without a major version.
        """
        _check_spec(spec, major, revision)
        above = None if parent is None else parent_part(parent)
        return cls(Kind.RUN, (status, shortened(spec), major, revision, above))

    @classmethod
    def tasks(cls, definition: str, status: int | None = None) -> TagQuery:
        """Task runs of a definition."""
        return cls(Kind.TASK_RUN, (shortened(definition), status))

    @classmethod
    def waiting_nodes(cls, event: str, status: int | None = None) -> TagQuery:
        """Node runs that wait, or waited, for an external event."""
        return cls(Kind.NODE_RUN, (shortened(event), status))

    @classmethod
    def variables(
        cls, spec: str, name: str, value: Part, *, major: int | None = None, revision: int | None = None
    ) -> TagQuery:
        """Searchable variables by a value, which is as `tags.value_part` gives it.

        Raises:
            Invalid: a revision without a major version.
        """
        _check_spec(spec, major, revision)
        return cls(Kind.VARIABLE, (shortened(spec), major, revision, shortened(name), value))

    @classmethod
    def external_events(cls, definition: str, *, claimed: bool | None = None) -> TagQuery:
        return cls(Kind.EXTERNAL_EVENT, (shortened(definition), claimed))

    @classmethod
    def workflow_events(cls, definition: str) -> TagQuery:
        return cls(Kind.WORKFLOW_EVENT, (shortened(definition),))

    @classmethod
    def user_tasks(
        cls, *, status: int | None = None, definition: str | None = None, user: str | None = None,
        group: str | None = None,
    ) -> TagQuery:  # fmt: skip
        """User task runs.

        Raises:
            Invalid: there is no condition.
        """
        if status is None and definition is None and user is None and group is None:
            raise Invalid("a search for user tasks has no condition", kind="search", hint="name a status or a user")
        return cls(Kind.USER_TASK_RUN, (status, *(shortened(part) for part in (definition, user, group))))

    def keys(self, tenant: str) -> tuple[Prefix, KeyRange]:
        """The index, with these attributes, and the tags in it."""
        index = index_of(tenant, self.kind)[self.attributes]
        start = index.range() if self.start_ms is None else index[self.start_ms].range()
        last = index.range().stop if self.stop_ms in (None, _TIME_MAX) else index[self.stop_ms].range().stop
        return index, KeyRange(start.start, last)

    def bookmarks(self, tenant: str) -> Bookmarks:
        """The bookmarks of this search."""
        index, _ = self.keys(tenant)
        order = encode((self.newest, *(other.packed() for other in self.also))) if self.newest or self.also else b""
        return Bookmarks(index.packed + order)


def _check_spec(spec: str | None, major: int | None, revision: int | None) -> None:
    if (major is not None and spec is None) or (revision is not None and major is None):
        raise Invalid(
            "a version of a spec is not whole", kind="search", spec=spec, major=major, revision=revision,
            hint="a revision needs a major version, and that a name",
        )  # fmt: skip


def search_keys(
    tx: ReadTransaction, tenant: str, query: TagQuery, *, limit: int, bookmark: bytes | None, upgraded_ms: int | None
) -> list[bytes]:
    """The keys of the tags of one page, and of the one behind it. Those of several stores may be merged.

    `upgraded_ms` is the time of the upgrade of a store that had the legacy layout.

    Raises:
        Invalid: the limit is not 1 to `LIMIT_MAX`, or the bookmark is of no such search.
    """
    check_limit(limit, LIMIT_MAX)
    _, keys = query.keys(tenant)
    if bookmark:
        keys = behind(keys, query.bookmarks(tenant).position(bookmark, keys), reverse=query.newest)
    if not query.also:
        return list(islice(tx.keys(keys, reverse=query.newest), limit + 1))
    indexes = (Index(Kind(query.kind), query.attributes, query.rest), *query.also)
    joined = joined_keys(tx, tenant, indexes, keys, newest=query.newest, upgraded_ms=upgraded_ms)
    return list(islice(joined, limit + 1))


def address_page(tenant: str, query: TagQuery, keys: Sequence[bytes], limit: int) -> Page[Address]:
    """The page of the keys of tags, of which one more than `limit` says that there are more pages."""
    page, kind = tag_page(tenant, query, keys, limit), Kind(query.kind)
    return Page(tuple(Address.from_trail(kind, parts) for parts in page.rows), page.bookmark)


def tag_page(tenant: str, query: TagQuery, keys: Sequence[bytes], limit: int) -> Page[tuple[Part, ...]]:
    """As `address_page`, of objects that belong to no run: the ends of their tags, behind their times."""
    index, _ = query.keys(tenant)
    rows = [tuple(index.unpack(key)[1:]) for key in keys]
    # A page ends where a walk did: behind it, those of another store may be missing.
    shown = next((number for number, parts in enumerate(rows) if parts[-1] is None), len(rows))
    if shown < min(len(rows), limit):
        return Page(tuple(rows[:shown]), query.bookmarks(tenant).of(keys[shown].removesuffix(END)))
    return Page(tuple(rows[:limit]), query.bookmarks(tenant).of(keys[limit - 1]) if len(rows) > limit else None)
