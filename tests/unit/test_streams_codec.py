"""Batches of events: round trips, resumption, and damage."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import Corrupt, Invalid
from millpond.events.codec import Codec, decode, encode, read_header, size_of
from millpond.events.event import TIME_MS_MAX, Event

HEADERS = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2)
ONE = st.tuples(
    st.integers(1, 1 << 30), st.integers(-TIME_MS_MAX, TIME_MS_MAX), st.binary(max_size=40),
    st.sampled_from(["", "running", "é", "k" * 255]), HEADERS,
)  # fmt: skip


@st.composite
def batches(draw: st.DrawFn) -> list[Event]:
    number, events = 0, []
    for step, time_ms, payload, kind, headers in draw(st.lists(ONE, min_size=1, max_size=90)):
        number += step
        events.append(Event(number, time_ms, payload, kind, headers))
    return events


@given(events=batches(), codec=st.sampled_from(Codec))
def test_what_is_encoded_is_decoded(events: list[Event], codec: Codec) -> None:
    data = encode(events, codec)
    assert decode(data) == events
    header = read_header(data)
    assert (header.events, header.first_id, header.last_id) == (len(events), events[0].number, events[-1].number)


@pytest.mark.usefixtures("processor")
@given(events=batches(), codec=st.sampled_from(Codec), data=st.data())
def test_a_batch_is_resumed_anywhere_and_cut_anywhere(events: list[Event], codec: Codec, data: st.DataObject) -> None:
    after = data.draw(st.integers(0, events[-1].number + 1))
    bytes_max = data.draw(st.integers(0, 200))
    rest = [event for event in events if event.number > after]
    assert decode(encode(events, codec), after) == rest
    cut = decode(encode(events, codec), after, bytes_max=bytes_max)
    assert cut == rest[: len(cut)] and bool(cut) == bool(rest)
    assert len(cut) <= 1 or sum(len(event.payload) for event in cut) <= bytes_max
    if len(cut) < len(rest):
        assert sum(len(event.payload) for event in rest[: len(cut) + 1]) > bytes_max


@given(events=batches(), codec=st.sampled_from(Codec), data=st.data())
def test_damage_is_found(events: list[Event], codec: Codec, data: st.DataObject) -> None:
    stored = bytearray(encode(events, codec))
    at = data.draw(st.integers(0, len(stored) - 1))
    stored[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises((Corrupt, Invalid)):
        decode(bytes(stored))
    with pytest.raises((Corrupt, Invalid)):
        decode(bytes(encode(events, codec)[:at]))


@pytest.mark.usefixtures("processor")
@given(st.binary(max_size=200))
def test_other_bytes_are_no_batch(data: bytes) -> None:
    with suppress(Corrupt, Invalid):
        assert decode(data)


def test_another_format_is_named() -> None:
    data = encode([Event(1, 0, b"", "", {})])
    with pytest.raises(Invalid) as caught:
        decode(b"\x03" + data[1:])
    assert caught.value.kind == "events_format"


def test_what_does_not_compress_is_stored_plain() -> None:
    assert read_header(encode([Event(1, 0, b"x", "", {})], Codec.ZSTD)).codec is Codec.NONE
    assert read_header(encode([Event(1, 0, bytes(999), "", {})], Codec.ZSTD)).codec is Codec.ZSTD


def test_the_size_of_an_event_counts_payload_and_headers() -> None:
    assert size_of(Event(1, 0, b"abc", "kind", {"é": "xy"})) == 3 + 2 + 2
