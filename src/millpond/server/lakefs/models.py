"""Values as clients read them: repositories, refs, commits, pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.responses import Response

from millpond.json_forms import to_json
from millpond.server.lakefs.errors import HEADERS, json_answer
from millpond.server.lakefs.query import AMOUNT_MAX
from millpond.versions.paging import CommonPrefix

if TYPE_CHECKING:
    from millpond.server.lakefs.call import Call
    from millpond.versions.graph.commits import Commit
    from millpond.versions.paging import Page
    from millpond.versions.repository import Named
    from millpond.versions.repository_context import RepositoryRecord

__all__ = (
    "commit_answer", "commit_model", "items", "listing", "named_model", "page_answer", "repository_model",
    "written_page",
)  # fmt: skip

T = TypeVar("T")


def listing(results: Sequence[Any], *, has_more: bool = False, next_offset: str = "") -> dict[str, Any]:
    """A page of results that are written already."""
    pagination = {
        "has_more": has_more, "next_offset": next_offset, "results": len(results), "max_per_page": AMOUNT_MAX,
    }  # fmt: skip
    return {"pagination": pagination, "results": results}


def items(page: Page[T]) -> list[T]:
    """The results of a page without a delimiter."""
    return [result for result in page.results if not isinstance(result, CommonPrefix)]


def page_answer(page: Page[T], write: Callable[[T | CommonPrefix], Any]) -> Response:
    """A page, each of whose results `write` writes."""
    results = [write(result) for result in page.results]
    return json_answer(listing(results, has_more=page.has_more, next_offset=page.next_offset))


def written_page(page: Page[str], write: Callable[[CommonPrefix], Any]) -> Response:
    """A page whose results are JSON already, but for the common prefixes, which `write` writes."""
    results = [to_json(write(item)).decode() if isinstance(item, CommonPrefix) else item for item in page.results]
    empty = listing(results, has_more=page.has_more, next_offset=page.next_offset) | {"results": []}
    return Response(b"%b%b]}" % (to_json(empty).removesuffix(b"]}"), ",".join(results).encode()), headers=HEADERS)


def named_model(named: Named | CommonPrefix) -> dict[str, Any]:
    """A branch or a tag."""
    assert not isinstance(named, CommonPrefix), "refs are listed without a delimiter"
    return {"id": named.name, "commit_id": named.commit_id}


def commit_model(commit: Commit) -> dict[str, Any]:
    """A commit."""
    return {
        "id": commit.id, "parents": commit.parents, "committer": commit.committer, "message": commit.message,
        "creation_date": commit.created, "meta_range_id": commit.tree, "metadata": commit.metadata,
        "generation": commit.generation, "version": 1,
    }  # fmt: skip


def commit_answer(call: Call, commit: Commit, otherwise: Response) -> Response:
    """A commit for a client of Millpond; clients of lakeFS have another answer."""
    return json_answer(commit_model(commit), 201) if call.own else otherwise


def repository_model(record: RepositoryRecord, *, own: bool = False) -> dict[str, Any]:
    """A repository; `own`: for a client of Millpond."""
    more = {"uid": record.uid, "metadata": record.metadata} if own else {}
    return {
        "id": record.name, "creation_date": record.created, "default_branch": record.default_branch,
        "storage_id": "", "storage_namespace": record.namespace, "read_only": record.read_only,
        **more,
    }  # fmt: skip
