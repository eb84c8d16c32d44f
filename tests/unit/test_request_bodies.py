"""Bodies and queries of clients of lakeFS: what is taken, and that what is refused is said in their words."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta
from starlette.requests import Request

from millpond.errors import Invalid
from millpond.server.dispatch import Route
from millpond.server.lakefs.dialect import operations
from millpond.server.lakefs.errors import _not_understood
from millpond.server.lakefs.models import AMOUNT, Amount, Long, Text
from millpond.server.lakefs.needs import write

routes = operations("test")


class Inner(msgspec.Struct):
    word: str
    number: Long = 1


class Body(msgspec.Struct):
    """Every type of a field that bodies of this API have."""

    text: Annotated[str, Meta(pattern="^[a-z]*$")]
    number: Long
    sure: bool = False
    count: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 7
    date: Long | None = None
    perhaps: str | None = None
    choice: Literal["a", "b"] = "a"
    names: dict[str, str] = {}
    words: list[str] | None = None
    items: list[Inner] = []
    inner: Inner | None = None


@routes.post("/x", write())
def handler(
    body: Body, path: Text, amount: Amount = AMOUNT, kind: Literal["a", "b"] = "a", words: list[str] | None = None, *,
    flag: bool = False,
) -> None:  # fmt: skip
    """Takes all of them."""


[ROUTE] = routes.routes
FIELDS = msgspec.structs.fields(Body)
SAID = (
    "property ", "number must be at ", "value must be a", "value is not one of the allowed values",
    "string doesn't match the regular expression ", "value is required but missing", "empty value is not allowed",
    "value ",
)  # fmt: skip
EDGES = [0, 1, -1, 1.0, 1.5, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**30, True, None, "", "a", "\x00", {}, []]
VALUES = st.recursive(
    st.one_of(st.sampled_from(EDGES), st.integers(), st.text("aé", max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(["word", "number", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)
BODIES = st.dictionaries(st.sampled_from([*(field.name for field in FIELDS), "unknown"]), VALUES)


def request(body: bytes, query: str = "path=a") -> Request:
    """A request of the route."""

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "query_string": query.encode(), "headers": headers, "route": ROUTE, "path_params": {}}
    return Request(scope, receive)


def taken(body: bytes, query: str = "path=a") -> dict[str, Any] | str:
    """The arguments that the handler gets, or what its client is told."""
    route: Route = ROUTE
    sent = request(body, query)
    try:
        return asyncio.run(route.taken.of(sent))
    except Invalid as error:
        return _not_understood(sent, str(error.values["where"]), str(error.values["reason"]))


def bare(value: Any) -> Any:
    """JSON without its nulls."""
    if isinstance(value, dict):
        return {name: bare(inner) for name, inner in value.items() if inner is not None}
    return list(map(bare, value)) if isinstance(value, list) else value


@given(BODIES, st.booleans())
def test_a_body_is_taken_or_refused_in_words_that_clients_know(drawn: dict[str, Any], whole: bool) -> None:
    body = {"text": "a", "number": 1, **drawn} if whole else drawn
    answer = taken(json.dumps(body).encode())
    if isinstance(answer, str):
        start = "request body has an error: doesn't match schema #/components/schemas/Body: Error at \"/"
        assert answer.startswith(start)
        place, _, said = answer.removeprefix(start).partition('": ')
        assert said.startswith(SAID)
        assert place.split("/")[0] in {field.name for field in FIELDS}
        assert "`" not in answer
    else:
        expected = msgspec.convert(bare(body), Body, strict=False)
        assert answer["body"] == expected


@given(st.dictionaries(st.sampled_from(["path", "amount", "kind", "flag", "words", "x"]), st.text(max_size=3)))
def test_a_query_is_taken_or_refused_in_words_that_clients_know(query: dict[str, str]) -> None:
    answer = taken(b'{"text": "a", "number": 1}', urlencode(query))
    if isinstance(answer, str):
        assert answer.startswith('parameter "')
        name, _, said = answer.removeprefix('parameter "').partition('" in query has an error: ')
        assert said.startswith(SAID)
        assert query.get(name, "") or name == "path"
    else:
        assert answer["path"] == query["path"]
        assert answer["flag"] is (query.get("flag", "").lower() in ("1", "true"))
        assert answer["kind"] == (query.get("kind") or "a")
        assert answer["words"] == ([query["words"]] if query.get("words") else None)


@pytest.mark.parametrize(
    "body",
    [
        b"[]", b"null", b"{", b'{"text": "a", "number": 1} x', b'{"text": "\xff", "number": 1}', b"\xff", b"5",
        b'{"text": "\\ud800", "number": 1}', b"[" * 5000 + b"]" * 5000, b'\xef\xbb\xbf{"text": "a"}',
    ],
)  # fmt: skip
def test_what_is_no_body_is_refused(body: bytes) -> None:
    assert str(taken(body)).startswith("request body has an error: ")


@pytest.mark.parametrize("body", [b"", b" \n"])
def test_a_body_that_is_missing_is_said_to_be(body: bytes) -> None:
    assert taken(body) == "request body has an error: value is required but missing"


def test_of_a_list_all_count_and_of_others_the_last() -> None:
    answer = taken(b'{"text": "a", "number": 1}', "path=a&path=b&words=x&words=y&words=")
    assert isinstance(answer, dict)
    assert (answer["path"], answer["words"]) == ("b", ["x", "y"])


@pytest.mark.parametrize("query", ["path=%ff", "path=a&%ff=1", "&".join(["x=1"] * 10_001)])
def test_a_query_that_is_no_text_is_refused(query: str) -> None:
    assert taken(b"{}", query) == "the query is not understood: escape its text as UTF-8"
