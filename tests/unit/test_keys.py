"""The order of keys is the order of their tuples, and nothing is lost on the way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millpond.errors import Corrupt, Invalid
from millpond.kernel.keys import EVERYTHING, KeyRange, Part, Prefix, decode, encode

INTEGERS = st.integers(-(2**63), 2**63 - 1)
TIMES = st.integers(-62_135_596_800_000, 253_402_300_799_999).map(
    lambda ms: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
)
# Few and nasty characters, so that escapes and prefixes of one another turn up often.
TEXTS = st.one_of(st.text("\x00\x01\x02ab\xff\U0001f600", max_size=6), st.text(max_size=8))
BYTES = st.one_of(st.binary(max_size=8), st.lists(st.sampled_from([0, 1, 2, 97, 255]), max_size=6).map(bytes))
PARTS = st.one_of(st.none(), st.booleans(), INTEGERS, TIMES, TEXTS, BYTES)
TUPLES = st.lists(PARTS, max_size=4).map(tuple)

_RANK = {type(None): 0, bool: 1, int: 2, datetime: 3, str: 4, bytes: 5}


def rank(parts: tuple[Part, ...]) -> list[tuple[int, object]]:
    """The key by which Python would sort the tuple, were its types comparable."""
    return [(_RANK[type(part)], 0 if part is None else part) for part in parts]


@given(TUPLES, TUPLES)
@example(("a",), ("a\x00",))
@example(("a", "b"), ("a\x00b",))
@example(("a\x01",), ("a\x00\xff",))
def test_the_order_of_bytes_is_the_order_of_tuples(left: tuple[Part, ...], right: tuple[Part, ...]) -> None:
    assert (encode(left) < encode(right)) == (rank(left) < rank(right))
    assert (encode(left) == encode(right)) == (rank(left) == rank(right))


@given(TUPLES)
def test_keys_come_back_as_they_went(parts: tuple[Part, ...]) -> None:
    back = decode(encode(parts))
    assert back == parts
    assert [type(part) for part in back] == [type(part) for part in parts]


@given(TUPLES, TUPLES)
@example(("a",), ("a\x00b",))
@example((b"",), (b"\x00",))
def test_a_prefix_holds_its_own_keys_and_no_others(prefix_parts: tuple[Part, ...], parts: tuple[Part, ...]) -> None:
    prefix, key = Prefix(*prefix_parts), encode(parts)
    inside = rank(parts[: len(prefix_parts)]) == rank(prefix_parts)
    assert (key in prefix) == inside
    assert prefix.range().holds(key) == inside
    assert prefix.range().holds(prefix.pack(*parts))
    assert prefix.unpack(prefix.pack(*parts)) == parts


@given(st.binary(max_size=12))
def test_decoding_accepts_only_what_encoding_makes(raw: bytes) -> None:
    try:
        parts = decode(raw)
    except Corrupt:
        return
    assert encode(parts) == raw


def test_a_prefix_can_be_indexed() -> None:
    runs = Prefix("runs")
    assert runs["acme"][7] == runs["acme", 7] == Prefix("runs", "acme", 7)
    assert runs["acme"].range((3,), (5,)) == KeyRange(encode(("runs", "acme", 3)), encode(("runs", "acme", 5)))
    assert runs["acme"].range((3,)).stop == runs["acme"].range().stop
    with pytest.raises(Corrupt):
        runs["acme"].unpack(runs["other"].pack(1))


def test_every_key_is_in_everything() -> None:
    assert EVERYTHING.holds(b"\xff\xff")
    assert not KeyRange(b"b", b"c").holds(b"c")


def test_times_of_any_zone_are_one_key() -> None:
    there = datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    assert encode((there,)) == encode((datetime(2026, 1, 1, tzinfo=UTC),))


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        (2**63, "key_part_range"),
        (-(2**63) - 1, "key_part_range"),
        (datetime(2026, 1, 1), "time_without_zone"),
        (datetime(2026, 1, 1, microsecond=1, tzinfo=UTC), "key_part_range"),
        ("\ud800", "key_part_range"),
        (1.5, "key_part_type"),
    ],
)
def test_a_part_that_would_not_come_back_is_refused(part: Part, kind: str) -> None:
    with pytest.raises(Invalid) as caught:
        encode((part,))
    assert caught.value.kind == kind
