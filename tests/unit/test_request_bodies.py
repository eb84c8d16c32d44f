"""Bodies of requests: those that are decoded in one step become what the slower reading makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.server.lakefs.bodies import _parsed, _plain_decoder, parse_body
from millpond.server.lakefs.errors import ApiError


@dataclass(frozen=True, slots=True)
class _Flat:
    """Every type that one step decodes."""

    text: str
    number: int
    sure: bool = False
    many: int = 7
    perhaps: int | None = None
    word: str | None = None
    names: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Deep:
    """A body with another one in it."""

    inner: _Flat


FIELDS = ("text", "number", "sure", "many", "perhaps", "word", "names", "unknown")
EDGES = [0, 1, -1, 1.0, 1.5, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**30, True, None, "", "é", "\x00", {}, []]
VALUES = st.one_of(
    st.sampled_from(EDGES), st.integers(), st.text(st.characters(codec="utf-8"), max_size=4),
    st.dictionaries(st.sampled_from(["a", "b"]), st.one_of(st.text("xy", max_size=2), st.none(), st.integers())),
)  # fmt: skip
GOOD = {"text": "a", "number": 1}


def outcome(read: Callable[[], object]) -> object:
    try:
        return read()
    except ApiError as error:
        return error.status, error.message


def alike(body: bytes) -> None:
    assert outcome(lambda: parse_body(_Flat, body)) == outcome(lambda: _parsed(_Flat, "Flat", body)), body


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES))
def test_both_readings_of_a_body_are_one(fields: dict[str, Any]) -> None:
    for body in (fields, GOOD | fields, {**fields, **GOOD}):
        alike(json.dumps(body).encode())


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"[]", b"null", b"{", b'{"text": "a", "number": 1} x', b' {"text": "a", "number": 1} ',
        b'{"text": "\xff", "number": 1}', b'{"text": "a", "number": 1, "unknown": "\xff"}',
        b'{"text": "\\ud800", "number": 1}', b'{"text": "a", "number": 1, "unknown": 1e999}',
        b'{"text": "a", "number": 1, "number": "x"}', b'{"text": "a", "number": "x", "number": 1}',
        b'{"text": "a", "number": 1' + b', "unknown": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'\xef\xbb\xbf{"text": "a"}',
    ],
)  # fmt: skip
def test_odd_bodies_are_refused_in_the_same_words(body: bytes) -> None:
    alike(body)


def test_only_flat_bodies_are_decoded_in_one_step() -> None:
    assert _plain_decoder(_Flat) is not None
    assert _plain_decoder(_Deep) is None
    assert parse_body(_Deep, b'{"inner": {"text": "a", "number": 2, "more": 1}}') == _Deep(_Flat("a", 2))
