"""Appends of one event to each of some streams: most appends are such, and an event costs the most in them."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from millpond.errors import Uncertain
from millpond.events.codec import size_of
from millpond.events.days import day_of
from millpond.events.event import Appended, EventBatch
from millpond.events.protocol import StreamRules
from millpond.events.redis.connections import Argument
from millpond.events.redis.keys import PondKeys, StreamKeys
from millpond.events.redis.references import References
from millpond.events.redis.scripts import APPEND, APPEND_SINGLES
from millpond.events.redis.servers import Servers, script_call
from millpond.events.redis.shared_calls import (
    FLIGHT_STREAMS,
    SERVER_TIME,
    Form,
    deliver,
    delivery_numbers,
    row_numbers,
    used_up,
)
from millpond.events.single import is_deflated, pack_single

__all__ = ("append_singles", "are_singles")

PAYLOAD_BYTES_MAX = 16 << 10
"""Larger ones are sent in flights that are bounded by their bytes."""
DEFLATED_STREAMS_MAX = 32
"""Events of more streams are sent as they are: to deflate one takes as long as all else for it here."""

_FOR_ALL = struct.Struct(">QQI")
"""The numbers of all streams for the script: the time and 1, how far ahead of it a time may be, how many they are."""
_ANSWER_BYTES = 9
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
    servers: Servers, references: References, pond_keys: PondKeys, batches: Sequence[EventBatch], now_ms: int,
    rules: StreamRules, too_few: list[Uncertain],
) -> list[Appended]:  # fmt: skip
    """As `StreamStore.append`; `too_few` as in `Form`."""
    deflates = len(batches) <= DEFLATED_STREAMS_MAX
    singles = [_Single(batch, pond_keys.keys_of(batch.stream), references, deflates) for batch in batches]
    if len(singles) == 1 and (alone := _append_alone(servers, references, singles[0], now_ms, rules, too_few)):
        return [alone]
    few = Form(APPEND_SINGLES, now_ms, rules, too_few, _joined, reads_marks=False, answer_bytes=_ANSWER_BYTES)
    stored = 0
    for start in range(0, len(singles), FLIGHT_STREAMS):
        flight = singles[start : start + FLIGHT_STREAMS]
        if tried := [single for single in flight if not deflates or single.keys.head in references]:
            deliver(servers, tried, few, stored=stored)
        while pending := [single for single in flight if single.outcome is None]:
            if any(single.is_used_up for single in pending):
                raise used_up()
            any_day = Form(APPEND, now_ms, rules, too_few)
            deliver(servers, pending, any_day, stored=stored + len(flight) - len(pending))
        stored += len(flight)
    return [single.outcome for single in singles if single.outcome is not None]


def _append_alone(
    servers: Servers, references: References, single: _Single, now_ms: int, rules: StreamRules,
    too_few: list[Uncertain],
) -> Appended | None:  # fmt: skip
    """Append an event whose day is open, on one server: what shares of a call need takes as long as the rest of it.

    None: it is not stored yet.
    """
    keys = single.keys
    if keys.head not in references or servers.is_cluster():
        return None
    source, own, row = single.few_arguments()
    numbers = _FOR_ALL.pack(max(now_ms, SERVER_TIME) - SERVER_TIME, rules.ahead_ms, 1) + own
    sent = (numbers, source, row) if source else (numbers, row)
    call = script_call(APPEND_SINGLES, keys.shard, (keys.head,), sent)
    single.settle(servers.run((call,), repeat=False, too_few=too_few))
    return single.outcome


def _joined(form: Form, shares: Sequence[_Single], _: int) -> list[Argument]:
    """The arguments of some streams: all numbers, then rows, each behind its source where that is another one."""
    numbers = bytearray(_FOR_ALL.pack(max(form.now_ms, SERVER_TIME) - SERVER_TIME, form.rules.ahead_ms, len(shares)))
    rest: list[Argument] = []
    before = ""
    for share in shares:
        source, own, row = share.few_arguments()
        start = len(numbers)
        numbers += own
        if source == before:
            numbers[start] &= ~_OTHER_SOURCE
        elif source:
            rest.append(source)
            before = source
        rest.append(row)
    return [bytes(numbers), *rest]


class _Single:
    """A batch of one event on its way, as a `Share`; it has an outcome when it is stored."""

    __slots__ = ("_batch", "_deflates", "_references", "_row", "is_used_up", "keys", "outcome", "size")

    deliveries = 1

    def __init__(self, batch: EventBatch, keys: StreamKeys, references: References, deflates: bool) -> None:
        self._batch, self.keys, self._references, self._deflates = batch, keys, references, deflates
        event = batch.events[0]
        self.size = size_of(event) if event[3] else len(event[1])
        self._row = b""
        self.outcome: Appended | None = None
        self.is_used_up = False

    def few_arguments(self) -> tuple[str, bytes, bytes]:
        """The arguments for an open day: the source, the numbers, and the row."""
        batch, compared = self._batch, self._packed()
        flags, position = _DEFLATED if len(compared) > 1 else 0, b""
        if batch.source:
            flags, position = flags | _HAS_SOURCE | _OTHER_SOURCE, batch.positions[0].to_bytes(16, "big")
        numbers = _NUMBERS.pack(flags, position, day_of(batch.events[0][0]), self.size, compared)
        return batch.source, numbers, self._row

    def arguments(self) -> tuple[Argument, ...]:
        """The arguments for any day."""
        compared = self._packed()
        position = self._batch.positions[0] if self._batch.source else 0
        numbers = row_numbers(day_of(self._batch.events[0][0]), 1, self.size) + compared
        return self._batch.source, delivery_numbers(position, position, 1, 1), numbers, self._row

    def _packed(self) -> bytes:
        """Make the row; what the script is to compare."""
        reference, compared = self._references.of(self.keys.head) if self._deflates else (b"", b"")
        self._row = pack_single(self._batch.events[0], reference)
        return compared if is_deflated(self._row) or not reference else b""

    def settle(self, answers: Sequence[bytes]) -> None:
        """Take the answer; none that leaves the event to be sent again, perhaps with another reference."""
        answer = answers[0]
        kind, number = answer[:1], int.from_bytes(answer[1:9], "big")
        if kind == b"n":
            self.outcome = Appended(1, 0, number, number)
            if len(answer) > 9:
                self._references.learn(self.keys.head, answer[9:], self._row)
        elif kind == b"r":
            self.outcome = Appended(0, 1, 0, number)
        elif kind == b"f":
            self.is_used_up = True
        else:
            self._references.forget(self.keys.head)
