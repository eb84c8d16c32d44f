"""Values as clients send and read them: parameters, repositories, refs, commits, pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from millpond.server.lakefs.errors import json_answer

if TYPE_CHECKING:
    from millpond.server.lakefs.call import Call
    from millpond.versions.graph import commits
    from millpond.versions.paging import Page
    from millpond.versions.repository import Named
    from millpond.versions.repository_context import RepositoryRecord

__all__ = (
    "AMOUNT", "Amount", "Commit", "Listing", "Long", "Pagination", "Ref", "Repository", "Started", "Text",
    "commit_answer", "commit_model", "listed", "listing", "page_size", "ref_model", "repository_model",
)  # fmt: skip

T = TypeVar("T")
AMOUNT, AMOUNT_MAX = 100, 1000
Amount = Annotated[int, Meta(ge=-1, le=AMOUNT_MAX)]
"""The number of results of a page; of none there is the default."""
Long = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Text = Annotated[str, Meta(min_length=1)]


class Pagination(msgspec.Struct):
    """The place of a page."""

    has_more: bool
    next_offset: str
    results: int
    max_per_page: int = AMOUNT_MAX


class Listing(msgspec.Struct, Generic[T]):
    """A page of results."""

    pagination: Pagination
    results: Sequence[T]


class Repository(msgspec.Struct):
    """A repository; clients of Millpond read its `uid` and `metadata` as well."""

    id: str
    creation_date: int
    default_branch: str
    storage_namespace: str
    read_only: bool
    storage_id: str = ""
    uid: str | UnsetType = UNSET
    metadata: dict[str, str] | UnsetType = UNSET


class Ref(msgspec.Struct):
    """A branch or a tag."""

    id: str
    commit_id: str


class Commit(msgspec.Struct):
    """A commit."""

    id: str
    parents: Sequence[str]
    committer: str
    message: str
    creation_date: int
    meta_range_id: str
    metadata: dict[str, str]
    generation: int
    version: int = 1


class Started(msgspec.Struct):
    """The id of what was begun."""

    id: str


def page_size(amount: int) -> int:
    """The number of results that an amount asks for."""
    return amount if amount > 0 else AMOUNT


def listing(results: Sequence[T], *, has_more: bool = False, next_offset: str = "") -> Listing[T]:
    """A page of results that are written already."""
    return Listing(Pagination(has_more, next_offset, len(results)), results)


def listed(page: Page[Any], write: Callable[[Any], T]) -> Listing[T]:
    """A page, each of whose results `write` writes."""
    return listing([write(result) for result in page.results], has_more=page.has_more, next_offset=page.next_offset)


def ref_model(named: Named) -> Ref:
    """A branch or a tag."""
    return Ref(named.name, named.commit_id)


def commit_model(commit: commits.Commit) -> Commit:
    """A commit."""
    return Commit(
        commit.id, commit.parents, commit.committer, commit.message, commit.created, commit.tree,
        dict(commit.metadata), commit.generation,
    )  # fmt: skip


def commit_answer(call: Call, commit: commits.Commit, otherwise: T) -> T | Response:
    """A commit for a client of Millpond; clients of lakeFS have another answer."""
    return json_answer(commit_model(commit), 201) if call.own else otherwise


def repository_model(record: RepositoryRecord, *, own: bool = False) -> Repository:
    """A repository; `own`: for a client of Millpond."""
    model = Repository(record.name, record.created, record.default_branch, record.namespace, record.read_only)
    if own:
        model.uid, model.metadata = record.uid, dict(record.metadata)
    return model
