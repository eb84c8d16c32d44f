"""Appends of one event to each of some streams: most appends are such, and an event costs the most in them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from millpond.events.codec import size_of
from millpond.events.days import day_of
from millpond.events.event import Appended
from millpond.events.redis.scripts import APPEND, APPEND_SINGLES
from millpond.events.redis.shared_calls import (
    FLIGHT_STREAMS,
    Form,
    Share,
    deliver,
    delivery_numbers,
    row_numbers,
    used_up,
)
from millpond.events.single import is_deflated, pack_single

if TYPE_CHECKING:
    from millpond.errors import Uncertain
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

_NUMBERS = struct.Struct(">B16siI12s")
"""The numbers of a stream for the script: flags, position, day, bytes, and the reference of a deflated row."""
_HAS_SOURCE, _OTHER_SOURCE, _DEFLATED = 1, 2, 4


def are_singles(batches: Sequence[EventBatch]) -> bool:
    """True when batches have a small event each, and no stream has two of them; such batches are checked.

    Raises:
        Invalid: one is not acceptable.
    """
    for batch in batches:
        if len(batch.events) != 1 or batch.expected_id is not None:
            return False
    for batch in batches:
        if len(batch.check().events[0][1]) > PAYLOAD_BYTES_MAX:
            return False
    return len(batches) == 1 or len(batches) == len({batch.stream for batch in batches})


def append_singles(
    servers: Servers, references: References, place: Place, batches: Sequence[EventBatch], now_ms: int,
    rules: StreamRules, too_few: list[Uncertain],
) -> list[Appended]:  # fmt: skip
    """As `StreamStore.append`; `too_few` as in `Form`."""
    singles = [_Single(batch, place.keys_of(batch.stream)) for batch in batches]
    some = references if len(batches) <= DEFLATED_STREAMS_MAX else None
    stored = 0
    for start in range(0, len(singles), FLIGHT_STREAMS):
        flight = singles[start : start + FLIGHT_STREAMS]
        tried = [single for single in flight if some is None or single.keys.head in some]
        if tried:
            shares = [Share(single.keys, 1, single.size, partial(single.few_arguments, some)) for single in tried]
            form = Form(APPEND_SINGLES, now_ms, rules, too_few, _joined)
            answers = deliver(servers, shares, form, stored=stored)
            stored += _settled(tried, answers, references)
        while pending := [single for single in flight if single.outcome is None]:
            shares = [Share(single.keys, 1, single.size, partial(single.arguments, some)) for single in pending]
            stored += _settled(
                pending, deliver(servers, shares, Form(APPEND, now_ms, rules, too_few), stored=stored), references
            )
    return [single.outcome for single in singles if single.outcome is not None]


def _settled(singles: Sequence[_Single], answers: Sequence[Sequence[bytes]], references: References) -> int:
    """The number of those events whose outcome is known now."""
    for single, (answer,) in zip(singles, answers, strict=True):
        single.settle(answer, references)
    return sum(single.outcome is not None for single in singles)


def _joined(shares: Sequence[Share]) -> list[Argument]:
    """The arguments of some streams: all numbers, then rows, each behind its source where that is another one."""
    numbers = bytearray()
    rest: list[Argument] = []
    before: Argument = b""
    for _, _, _, made in shares:
        source, own, row = made()
        start = len(numbers)
        assert isinstance(own, bytes)
        numbers += own
        if source and source != before:
            numbers[start] |= _OTHER_SOURCE
            rest.append(source)
            before = source
        rest.append(row)
    return [bytes(numbers), *rest]


class _Single:
    """A batch of one event on its way; it has an outcome when it is stored."""

    __slots__ = ("_batch", "_row", "keys", "outcome", "size")

    def __init__(self, batch: EventBatch, keys: StreamKeys) -> None:
        self._batch, self.keys = batch, keys
        event = batch.events[0]
        self.size = size_of(event) if event[3] else len(event[1])
        self._row = b""
        self.outcome: Appended | None = None

    def few_arguments(self, references: References | None) -> tuple[Argument, ...]:
        """The arguments for an open day: the source, the numbers, and the row."""
        compared, source = self._packed(references), self._batch.source
        flags = (_HAS_SOURCE if source else 0) | (_DEFLATED if len(compared) > 1 else 0)
        position, day = self._position().to_bytes(16, "big"), day_of(self._batch.events[0][0])
        return source, _NUMBERS.pack(flags, position, day, self.size, compared), self._row

    def arguments(self, references: References | None) -> tuple[Argument, ...]:
        """The arguments for any day."""
        compared = self._packed(references)
        position, day = self._position(), day_of(self._batch.events[0][0])
        numbers = row_numbers(day, 1, self.size) + compared
        return self._batch.source, delivery_numbers(position, position, 1, 1), numbers, self._row

    def _position(self) -> int:
        return self._batch.positions[0] if self._batch.source else 0

    def _packed(self, references: References | None) -> bytes:
        """Make the row; what the script is to compare."""
        reference, compared = references.of(self.keys.head) if references is not None else (b"", b"")
        self._row = pack_single(self._batch.events[0], reference)
        return compared if is_deflated(self._row) or not reference else b""

    def settle(self, answer: bytes, references: References) -> None:
        """Take the answer; none that leaves the event to be sent again, perhaps with another reference."""
        kind, number = answer[:1], int.from_bytes(answer[1:9], "big")
        if kind == b"n":
            self.outcome = Appended(1, 0, number, number)
            if len(answer) > 9:
                references.learn(self.keys.head, answer[9:], self._row)
        elif kind == b"r":
            self.outcome = Appended(0, 1, 0, number)
        elif kind == b"f":
            raise used_up()
        else:
            references.forget(self.keys.head)
