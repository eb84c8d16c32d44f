"""Repositories, their refs and their commits as tables of SQL.

    select name, commit_id from refs where repository = 'flights' and type = 'branch'
    select created, message from commits where repository = 'flights' and ref = 'fix' order by created desc limit 5

A condition on `repository` or `name` chooses what is listed. `commits` has those back from the refs that the query
names; where it names none, back from the default branch of each repository.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import pyarrow as pa

from millpond.errors import NotFound
from millpond.tables.rows import TIME, Left, Row, RowTable
from millpond.times.instants import INSTANT_MAX
from millpond.versions.graph.commits import Commit

__all__ = ("version_tables",)

PAGE = 500
_SECONDS_MAX = INSTANT_MAX // 1000
"""The last second of the year 9999: a commit may say anything, and DuckDB shows no other time."""
_TEXT = pa.string()
_REPOSITORIES = pa.schema(
    [("name", _TEXT), ("default_branch", _TEXT), ("namespace", _TEXT), ("created", TIME)]
)  # fmt: skip
_REFS = pa.schema([("repository", _TEXT), ("type", _TEXT), ("name", _TEXT), ("commit_id", _TEXT)])
_COMMITS = pa.schema([
    ("repository", _TEXT), ("ref", _TEXT), ("id", _TEXT), ("parents", pa.list_(_TEXT)), ("committer", _TEXT),
    ("message", _TEXT), ("created", TIME), ("metadata", pa.map_(_TEXT, _TEXT)),
])  # fmt: skip


def version_tables(repositories: Callable[[], Any], may: Callable[[str], bool] = lambda _: True) -> list[RowTable]:
    """The tables of the repositories of a pond, here or on a node; of those of which a name `may` be read.

    Raises: as the methods of `Repositories`, with the batches.
    """

    def records(left: Left, column: str) -> Iterator[list[Any]]:
        opened, names = repositories(), left.points(column)
        pages = _pages(opened.list) if names is None else ([_named(opened.list, name)] for name in names)
        for page in pages:
            yield [record for record in page if record is not None and may(record.name)]

    def of_repositories(left: Left) -> Iterator[list[Row]]:
        for page in records(left, "name"):
            yield [(record.name, record.default_branch, record.namespace, _time(record.created)) for record in page]

    def of_refs(left: Left) -> Iterator[list[Row]]:
        for record in _rows_of(records(left, "repository")):
            with suppress(NotFound):  # it was deleted meanwhile
                repository = repositories().get(record.name)
                for kind, listed in (("branch", repository.branches), ("tag", repository.tags)):
                    if left.holds("type", kind):
                        names = left.points("name")
                        pages = _pages(listed) if names is None else ([_named(listed, name)] for name in names)
                        for page in pages:
                            yield [(record.name, kind, ref.name, ref.commit_id) for ref in page if ref is not None]

    def of_commits(left: Left) -> Iterator[list[Row]]:
        for record in _rows_of(records(left, "repository")):
            for ref in left.points("ref") or [record.default_branch]:
                with suppress(NotFound):
                    commits = iter(repositories().get(record.name).ref(ref).log())
                    while page := list(islice(commits, PAGE)):
                        yield [_commit(record.name, ref, commit) for commit in page]

    return [
        RowTable("repositories", _REPOSITORIES, of_repositories), RowTable("refs", _REFS, of_refs),
        RowTable("commits", _COMMITS, of_commits),
    ]  # fmt: skip


def _rows_of(pages: Iterable[list[Any]]) -> Iterator[Any]:
    for page in pages:
        yield from page


def _pages(listed: Callable[..., Any]) -> Iterator[list[Any]]:
    after: str | None = ""
    while after is not None:
        page = listed(after=after, amount=PAGE)
        yield page.items
        after = page.next_offset if page.has_more else None


def _named(listed: Callable[..., Any], name: str) -> Any:
    """The item of a name, the first of those that begin with it; None when there is none."""
    return next((item for item in listed(name, amount=1).items if item.name == name), None)


def _commit(repository: str, ref: str, commit: Commit) -> Row:
    return (
        repository, ref, commit.id, list(commit.parents), commit.committer, commit.message,
        _time(commit.created), list(commit.metadata.items()),
    )  # fmt: skip


def _time(seconds: int) -> int | None:
    return 1_000 * seconds if 0 <= seconds <= _SECONDS_MAX else None
