"""Requests about repositories: the API of versions of one node, below `/api/v1`.

    api.at("repositories", "flights", "branches", "fix/1")     /api/v1/repositories/flights/branches/fix%2F1

Invariants:
* A change is sent again only where it may be done twice. Of another one whose answer was lost, nobody knows.
* Errors are those that a folder raises: with their class, kind, hint and values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from millpond.argument_types import need_list
from millpond.errors import Conflict, Invalid
from millpond.versions.merges import MergeConflict
from millpond.versions.paging import CommonPrefix, Listing, Page, results_of

if TYPE_CHECKING:
    from millpond.client.transport import Body, Connection, Response

__all__ = ("PATIENCE_SECONDS", "VersionsApi")

T = TypeVar("T")
PATIENCE_SECONDS = 3_600.0
"""The time that a change may take: commits wait for one another."""
_OWN = "application/vnd.millpond+json"
_PAGE = 1_000
_PREFIX = "/api/v1"


class VersionsApi:
    """The API of versions of one node."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.clock = connection.clock
        self._headers = {"Accept": _OWN}

    @staticmethod
    def at(*names: str) -> str:
        """The path of a thing, below the prefix; each name is one part of it.

        Raises: `Invalid` for a name that is no Unicode.
        """
        need_list("name", names, str)
        with _unicode():
            return _PREFIX + "".join(f"/{quote(name, safe='')}" for name in names)

    @staticmethod
    def accepting(media_type: str) -> str:
        """The header for answers of another media type; errors are as ever."""
        return f"{media_type}, {_OWN}"

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> Response:
        """The answer to a question."""
        return self._request("GET", path, query=query)

    def change(
        self, method: str, path: str, json: Any = None, *, query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None, body: bytes | Iterable[bytes] | None = None, repeatable: bool = False,
    ) -> Response:  # fmt: skip
        """The answer to a change."""
        return self._request(
            method, path, query=query, json=json, headers=headers, body=body, repeatable=repeatable,
            timeout=PATIENCE_SECONDS,
        )  # fmt: skip

    def stream(
        self, path: str, query: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> Body:  # fmt: skip
        """An answer that is read as it comes."""
        with _unicode():
            return self._connection.stream("GET", path, query=query, headers={**self._headers, **(headers or {})})

    def _request(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **options: Any
    ) -> Response:  # fmt: skip
        try:
            with _unicode():
                return self._connection.request(method, path, headers={**self._headers, **(headers or {})}, **options)
        except Conflict as error:
            raise _typed(error) from error.__cause__

    def page(
        self, path: str, listing: Listing, decode: Callable[[dict[str, Any]], T | CommonPrefix], **query: Any
    ) -> Page[T]:  # fmt: skip
        """One page of a listing, however many requests it takes; `decode` reads a result."""
        results: list[Any] = []
        after, more = listing.after, True
        options = {"prefix": listing.prefix, "delimiter": listing.delimiter, **query}
        while more and len(results) < listing.amount:
            amount = min(_PAGE, listing.amount - len(results))
            answer = self.get(path, _set({**options, "after": after, "amount": amount})).json()
            results += map(decode, answer["results"])
            more, after = answer["pagination"]["has_more"], answer["pagination"]["next_offset"]
        return Page(tuple(results), more, after if more else "")

    def pages(
        self, path: str, decode: Callable[[dict[str, Any]], T], **query: Any
    ) -> Iterator[T]:  # fmt: skip
        """All results of a listing, a page at a time."""
        return results_of(lambda after: self.page(path, Listing(after=after, amount=_PAGE), decode, **query))


def _set(query: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that say something."""
    said = {name: "true" if value is True else value for name, value in query.items()}
    return {name: value for name, value in said.items() if value not in ("", None, False, ())}


@contextmanager
def _unicode() -> Iterator[None]:
    """Refuse text that no request can hold."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise Invalid("a path must be Unicode", kind="path_invalid", path=repr(error.object)) from error


def _typed(error: Conflict) -> Conflict:
    """A conflict of a merge with its paths; any other as it is."""
    if error.kind != MergeConflict.kind:
        return error
    values = dict(error.values)
    paths, kind = values.pop("paths", ()), MergeConflict
    if "map" in values:
        from millpond.refs.merges import MapMergeConflict

        kind = MapMergeConflict
    made = kind(error.message, kind=error.kind, hint=error.hint, **values)
    made.paths = tuple(paths) if isinstance(paths, list) else ()
    return made
