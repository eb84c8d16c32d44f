"""Batches that travel as one are stored, and answered, as they would be one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.clock import ManualClock
from millpond.events.embedded.store import EmbeddedStore
from millpond.events.event import Appended, EventBatch, NewEvent
from millpond.events.redis import append as module
from millpond.events.redis.append import joined
from millpond.stores.memory import MemorySpace
from tests.harness.contracts.stream_site import NOON, RULES, STREAM, payloads_of

BATCH = st.tuples(st.sampled_from(["", "a", "b"]), st.lists(st.integers(0, 12), max_size=4))


def batches_of(drawn: list[tuple[str, list[int]]]) -> list[EventBatch]:
    return [
        EventBatch(
            STREAM, [NewEvent(NOON, f"{source} {place}".encode()) for place in sorted(places)], source,
            sorted(places) if source else (),
        )
        for source, places in drawn
    ]  # fmt: skip


@pytest.mark.usefixtures("processor")
@given(st.lists(BATCH, max_size=12), st.lists(BATCH, max_size=3))
def test_joined_batches_have_the_outcomes_of_their_members(
    drawn: list[tuple[str, list[int]]], before: list[tuple[str, list[int]]]
) -> None:
    batches = batches_of(drawn)
    apart, together = (EmbeddedStore(MemorySpace(), ManualClock(now=NOON), RULES) for _ in range(2))
    for store in (apart, together):
        store.append(batches_of(before))
    wanted = apart.append(batches)
    found: dict[int, Appended] = {}
    for one in joined(enumerate(batches)):
        found.update(one.outcomes(together.append([one.batch])[0]))
    assert payloads_of(together) == payloads_of(apart)
    assert sorted(found) == list(range(len(batches)))
    for place, outcome in enumerate(wanted):
        mine = found[place]
        assert (mine.count, mine.repeated, mine.first_id) == (outcome.count, outcome.repeated, outcome.first_id)
        assert mine.last_id == outcome.last_id if mine.count else mine.last_id >= outcome.last_id


def test_single_events_are_joined_up_to_a_size() -> None:
    batches = [EventBatch(STREAM, [NewEvent(NOON, b"x" * 1000)], "s", [place]) for place in range(1_000)]
    found = joined(enumerate(batches))
    assert 3 <= len(found) <= 5
    assert all(sum(len(event.payload) for event in one.batch.events) <= module.JOINED_BYTES for one in found)
    assert [place for one in found for place, _ in one.members] == list(range(1_000))


def test_a_position_that_comes_twice_is_not_joined() -> None:
    one, other = (EventBatch(STREAM, [NewEvent(NOON, b"x")], "s", [5]) for _ in range(2))
    assert len(joined(enumerate([one, other]))) == 2
