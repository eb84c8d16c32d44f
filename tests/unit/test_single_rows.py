"""Rows of one event: round trips, damage, and how small they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import Corrupt, Invalid
from millpond.events.codec import decode, encode, read_header
from millpond.events.event import TIME_MS_MAX, Event, NewEvent
from millpond.events.single import REFERENCE_BYTES_MAX, is_deflated, is_reference, pack_single

HEADERS = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2)
EVENTS = st.builds(
    NewEvent, st.integers(-TIME_MS_MAX, TIME_MS_MAX), st.binary(max_size=200),
    st.sampled_from(["", "running", "é", "k" * 255]), HEADERS,
)  # fmt: skip


@given(EVENTS, st.integers(0, 1 << 62))
def test_a_row_of_one_event_is_read_as_other_rows_are(event: NewEvent, base: int) -> None:
    row = pack_single(event)
    header = read_header(row)
    assert (header.events, header.first_id, header.last_id) == (1, 1, 1)
    found = decode(row, base, base)
    assert found == decode(encode([Event(1, *event)]), base, base) == [Event(base + 1, *event)]
    assert decode(row, base + 1, base) == []


@given(EVENTS, EVENTS, st.booleans())
def test_a_row_is_read_with_the_reference_that_it_was_deflated_with(
    event: NewEvent, other: NewEvent, alike: bool
) -> None:
    reference = pack_single(event if alike else other)
    row = pack_single(event, reference)
    assert is_reference(reference) and len(row) <= len(pack_single(event))
    assert decode(row, reference=reference) == [Event(1, *event)]
    if is_deflated(row):
        assert not is_reference(row)
        for wrong in (b"", pack_single(NewEvent(0, b"another")), b"\x02"):
            with pytest.raises(Corrupt):
                decode(row, reference=wrong)


@given(EVENTS, st.booleans(), st.data())
def test_damage_of_any_byte_is_found(event: NewEvent, alike: bool, data: st.DataObject) -> None:
    reference = pack_single(event) if alike else b""
    row = pack_single(event, reference)
    at = data.draw(st.integers(0, len(row) - 1))
    damaged = bytearray(row)
    damaged[at] ^= data.draw(st.integers(1, 255))
    for broken in (bytes(damaged), row[:at], row + b"\x00"):
        with pytest.raises((Corrupt, Invalid)):
            decode(broken, reference=reference)


def test_a_damaged_row_is_named() -> None:
    row = pack_single(NewEvent(0, b"payload"))
    with pytest.raises(Corrupt) as caught:
        decode(row[:-1] + b"?")
    assert caught.value.kind == "events_damaged" and row[:8].hex() in str(caught.value)


def test_a_row_has_few_bytes_besides_its_event() -> None:
    assert len(pack_single(NewEvent(1_700_000_000_000, bytes(240), "running"))) == 240 + len("running") + 15


def test_large_events_are_neither_deflated_nor_references() -> None:
    large = NewEvent(0, bytes(REFERENCE_BYTES_MAX))
    assert not is_reference(pack_single(large))
    assert not is_deflated(pack_single(large, pack_single(NewEvent(0, b""))))


def test_events_of_a_job_set_are_less_than_half_their_size() -> None:
    def event(number: int) -> NewEvent:
        job = f"{number * 2654435761:026x}"
        payload = f'{{"job_id":"{job}","cluster_id":"cluster-3","pod_name":"armada-{job}-0","pod_namespace":"etl"}}'
        return NewEvent(1_700_000_000_000 + number, payload.encode(), "running")

    assert len(pack_single(event(7), pack_single(event(1)))) < len(event(7).payload) / 2
