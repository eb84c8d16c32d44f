"""Appends of one event to each of some streams: most appends are such, and an event costs the most in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millpond.events.codec import size_of
from millpond.events.days import day_of
from millpond.events.event import Appended
from millpond.events.redis.shared_calls import FLIGHT_STREAMS, Share, deliver, delivery_numbers, row_numbers, used_up
from millpond.events.single import pack_single

if TYPE_CHECKING:
    from millpond.events.event import EventBatch
    from millpond.events.protocol import StreamRules
    from millpond.events.redis.keys import Place
    from millpond.events.redis.servers import Servers

__all__ = ("append_singles", "are_singles")

PAYLOAD_BYTES_MAX = 16 << 10
"""Larger ones are sent in flights that are bounded by their bytes."""


def are_singles(batches: Sequence[EventBatch]) -> bool:
    """True when batches have a small event each, and no stream has two of them; such batches are checked.

    Raises:
        Invalid: one is not acceptable.
    """
    if not all(len(batch.events) == 1 for batch in batches):
        return False
    for batch in batches:
        batch.check()
    return (
        all(len(batch.events[0][1]) <= PAYLOAD_BYTES_MAX for batch in batches)
        and len(batches) == len({batch.stream for batch in batches})
    )  # fmt: skip


def append_singles(
    servers: Servers, place: Place, batches: Sequence[EventBatch], now_ms: int, rules: StreamRules
) -> list[Appended]:
    """As `StreamStore.append`."""
    outcomes: list[Appended] = []
    for start in range(0, len(batches), FLIGHT_STREAMS):
        shares = [_share(place, batch) for batch in batches[start : start + FLIGHT_STREAMS]]
        for (answer,) in deliver(servers, shares, now_ms, rules, stored=len(outcomes)):
            outcomes.append(_outcome(answer))
    return outcomes


def _share(place: Place, batch: EventBatch) -> Share:
    (event,) = batch.events
    position = batch.positions[0] if batch.source else 0
    row = pack_single(event)
    size = size_of(event) if event[3] else len(event[1])
    numbers = delivery_numbers(position, position, 1, 1)
    arguments = (batch.source, numbers, row_numbers(day_of(event[0]), 1, size), row)
    return Share(place.keys_of(batch.stream), 1, arguments, len(row))


def _outcome(answer: bytes) -> Appended:
    number = int.from_bytes(answer[1:], "big")
    if answer[:1] == b"n":
        return Appended(1, 0, number, number)
    if answer[:1] == b"r":
        return Appended(0, 1, 0, number)
    raise used_up()
