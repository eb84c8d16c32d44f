"""Appends of one event to each of some streams: most appends are such, and an event costs the most in them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from millpond.events.codec import size_of
from millpond.events.days import day_of
from millpond.events.event import Appended
from millpond.events.redis.shared_calls import FLIGHT_STREAMS, Share, deliver, delivery_numbers, row_numbers, used_up
from millpond.events.single import is_deflated, pack_single

if TYPE_CHECKING:
    from millpond.events.event import EventBatch
    from millpond.events.protocol import StreamRules
    from millpond.events.redis.connections import Argument
    from millpond.events.redis.keys import Place, StreamKeys
    from millpond.events.redis.references import References
    from millpond.events.redis.servers import Servers

__all__ = ("append_singles", "are_singles")

PAYLOAD_BYTES_MAX = 16 << 10
"""Larger ones are sent in flights that are bounded by their bytes."""
DEFLATED_STREAMS_MAX = 32
"""Events of more streams are sent as they are: to deflate one takes as long as all else for it here."""


def are_singles(batches: Sequence[EventBatch]) -> bool:
    """True when batches have a small event each, and no stream has two of them; such batches are checked.

    Raises:
        Invalid: one is not acceptable.
    """
    for batch in batches:
        if len(batch.events) != 1:
            return False
    for batch in batches:
        if len(batch.check().events[0][1]) > PAYLOAD_BYTES_MAX:
            return False
    return len(batches) == 1 or len(batches) == len({batch.stream for batch in batches})  # fmt: skip


def append_singles(
    servers: Servers, references: References, place: Place, batches: Sequence[EventBatch], now_ms: int,
    rules: StreamRules,
) -> list[Appended]:  # fmt: skip
    """As `StreamStore.append`."""
    deflates = len(batches) <= DEFLATED_STREAMS_MAX
    singles = [_Single(batch, place.keys_of(batch.stream)) for batch in batches]
    stored = 0
    for start in range(0, len(singles), FLIGHT_STREAMS):
        pending = singles[start : start + FLIGHT_STREAMS]
        while pending:
            shares = [single.share(references if deflates else None) for single in pending]
            answers = deliver(servers, shares, now_ms, rules, stored=stored)
            pending = [
                single for single, (answer,) in zip(pending, answers, strict=True)
                if not single.settle(answer, references)
            ]  # fmt: skip
            stored += len(shares) - len(pending)
    return [single.outcome for single in singles]


class _Single:
    """A batch of one event on its way."""

    __slots__ = ("_batch", "_keys", "_row", "outcome")

    def __init__(self, batch: EventBatch, keys: StreamKeys) -> None:
        self._batch, self._keys = batch, keys
        self._row = b""
        self.outcome = Appended(0, 0, 0, 0)

    def share(self, references: References | None) -> Share:
        return Share(self._keys, 1, len(self._batch.events[0][1]), partial(self._arguments, references))

    def _arguments(self, references: References | None) -> tuple[Argument, ...]:
        batch = self._batch
        (event,) = batch.events
        reference, compared = references.of(self._keys.head) if references else (b"", b"")
        self._row = pack_single(event, reference)
        position = batch.positions[0] if batch.source else 0
        size = size_of(event) if event[3] else len(event[1])
        numbers = row_numbers(day_of(event[0]), 1, size)
        if is_deflated(self._row) or not reference:
            numbers += compared
        return batch.source, delivery_numbers(position, position, 1, 1), numbers, self._row

    def settle(self, answer: bytes, references: References) -> bool:
        """Take the answer; False when the event is to be sent again, plain."""
        number = int.from_bytes(answer[1:9], "big")
        if answer[:1] == b"p":
            references.forget(self._keys.head)
            return False
        if answer[:1] == b"f":
            raise used_up()
        self.outcome = Appended(1, 0, number, number) if answer[:1] == b"n" else Appended(0, 1, 0, number)
        if len(answer) > 9:
            references.learn(self._keys.head, answer[9:], self._row)
        return True
