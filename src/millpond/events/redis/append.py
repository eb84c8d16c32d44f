"""Appending: events are packed here, and a script assigns ids, days and the source position.

A script cannot cut packed rows, so rows are cut where it could have to: a row holds events of one day, whatever day the
stream has reached. Events that were stored before are left out by the script when they are all of a batch; where they
are the begin of one, it says up to where, and the rest is sent anew.

Batches of one stream travel as one: single events cost as little as batches, where many are given at once.

Invariants:
* a joined batch is stored as its members would be, one after another: with one source, each begins behind the last
  position of the one before;
* its outcome gives each member its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from millpond.errors import MillpondError, Uncertain
from millpond.events.codec import Codec, cuts, pack, sizes_of
from millpond.events.days import day_of, runs_of
from millpond.events.event import TIME_MS_MAX, Appended, Columns, EventBatch, NewEvent
from millpond.events.names import StreamName
from millpond.events.protocol import StreamRules
from millpond.events.redis.connections import Argument
from millpond.events.redis.keys import PondKeys, StreamKeys
from millpond.events.redis.references import References
from millpond.events.redis.scripts import APPEND
from millpond.events.redis.servers import Servers
from millpond.events.redis.shared_calls import (
    CALL_BYTES,
    FLIGHT_STREAMS,
    Form,
    deliver,
    delivery_numbers,
    row_numbers,
    used_up,
)
from millpond.events.redis.singles import append_singles, are_singles
from millpond.events.single import pack_single

__all__ = ("JOINED_BYTES", "append_batches", "joined")

FLIGHT_BYTES = 8 << 20
JOINED_BYTES = 256 << 10
JOINED_EVENTS = 10_000
PACKED_BYTES_MIN = 192
"""Smaller rows are not compressed: that costs more than the append."""
_EXPECTS = 1
"""The first position of a batch without a source that expects an id: the last position is the id."""


@dataclass(slots=True)
class _Delivery:
    """A batch on its way: what it is made of, the events that were stored before, and its arguments of the script."""

    joined: _Joined
    stored_before: int = 0
    arguments: list[Argument] = field(default_factory=list)
    size: int = 0

    @property
    def batch(self) -> EventBatch:
        return self.joined.batch

    def pack(self) -> None:
        columns = self.batch.columns(self.stored_before)
        positions = self.batch.positions[self.stored_before :]
        rows = list(_packed_rows(columns))
        first, last = (positions[0], positions[-1]) if positions else (0, 0)
        if self.batch.expected_id is not None:
            first, last = _EXPECTS, self.batch.expected_id
        self.arguments = [self.batch.source, delivery_numbers(first, last, len(columns.times), len(rows))]
        for numbers, row in rows:
            self.arguments += (numbers, row)
        self.size = sum(len(row) for _, row in rows)

    def outcome(self, answer: bytes) -> Appended:
        number = int.from_bytes(answer[1:], "big")
        if answer[:1] == b"m":
            return Appended(0, 0, 0, number)
        if answer[:1] == b"r":
            return Appended(0, len(self.batch.events), 0, number)
        count = len(self.batch.events) - self.stored_before
        return Appended(count, self.stored_before, number, number + count - 1)


@dataclass(slots=True)
class _Share:
    """The deliveries of a stream in a call, as `Share`; and their answers."""

    keys: StreamKeys
    members: Sequence[_Delivery]
    answers: Sequence[bytes] = ()

    @property
    def deliveries(self) -> int:
        return len(self.members)

    @property
    def size(self) -> int:
        return sum(delivery.size for delivery in self.members)

    def arguments(self) -> Iterator[Argument]:
        return chain.from_iterable(delivery.arguments for delivery in self.members)

    def settle(self, answers: Sequence[bytes]) -> None:
        self.answers = answers


def append_batches(
    servers: Servers, references: References, pond_keys: PondKeys, batches: Sequence[EventBatch], now_ms: int,
    rules: StreamRules,
) -> list[Appended]:  # fmt: skip
    """As `StreamStore.append`.

    Raises: as that. A batch that is not acceptable is found before anything is sent.
    """
    too_few: list[Uncertain] = []
    if are_singles(batches):
        outcomes = append_singles(servers, references, pond_keys, batches, now_ms, rules, too_few)
    else:
        outcomes = _append(servers, pond_keys, batches, Form(APPEND, now_ms, rules, too_few))
    if too_few:
        raise too_few[0]
    return outcomes


def _append(servers: Servers, pond_keys: PondKeys, batches: Sequence[EventBatch], form: Form) -> list[Appended]:
    outcomes: dict[int, Appended] = {}
    queues = {stream: deque(map(_Delivery, members)) for stream, members in _checked(batches).items()}
    while queues:
        for flight in _flights(queues):
            shares = [_Share(pond_keys.keys_of(stream), members) for stream, members in flight]
            deliver(servers, shares, form, stored=len(outcomes))
            for share in shares:
                _settle(queues[share.keys.stream], share, outcomes)
        queues = {stream: queue for stream, queue in queues.items() if queue}
    return [outcomes[number] for number in range(len(batches))]


def _checked(batches: Sequence[EventBatch]) -> dict[StreamName, list[_Joined]]:
    """The batches of each stream, joined and checked; one by one only where one is wrong, to name its event."""
    members_of: dict[StreamName, list[tuple[int, EventBatch]]] = {}
    try:
        for number, batch in enumerate(batches):
            members_of.setdefault(batch.stream, []).append((number, batch))
        batches_of = {stream: joined(members) for stream, members in members_of.items()}
        for members in batches_of.values():
            for member in members:
                member.batch.check()
    except (MillpondError, TypeError, ValueError, AttributeError):
        for batch in batches:
            batch.check()
        raise
    return batches_of


def _flights(queues: dict[StreamName, deque[_Delivery]]) -> Iterator[list[tuple[StreamName, list[_Delivery]]]]:
    """The next deliveries of each stream, in flights of bounded size; one call a stream, so that they stay in order."""
    flight: list[tuple[StreamName, list[_Delivery]]] = []
    total = 0
    for stream, queue in queues.items():
        size, count = 0, 0
        for delivery in queue:
            if not delivery.arguments:
                delivery.pack()
            if count and size + delivery.size > CALL_BYTES:
                break
            size, count = size + delivery.size, count + 1
        flight.append((stream, list(islice(queue, count))))
        total += size
        if total >= FLIGHT_BYTES or len(flight) >= FLIGHT_STREAMS:
            yield flight
            flight, total = [], 0
    if flight:
        yield flight


def _settle(queue: deque[_Delivery], share: _Share, outcomes: dict[int, Appended]) -> None:
    """Take what was answered from a queue; a batch that was stored up to its middle stays, without its begin."""
    for delivery, answer in zip(share.members, share.answers, strict=True):
        if answer[:1] == b"f":
            raise used_up(max((outcome.last_id for outcome in outcomes.values()), default=0))
        if answer[:1] == b"c":
            position = int.from_bytes(answer[1:], "big")
            delivery.stored_before = bisect_right(delivery.batch.positions, position)
            delivery.arguments = []
            return
        outcomes.update(delivery.joined.outcomes(delivery.outcome(answer)))
        delivery.arguments = []
        queue.popleft()


def _packed_rows(columns: Columns) -> Iterator[tuple[bytes, bytes]]:
    """Rows of the script, each behind its numbers.

    The script decides the day: it knows the time, and the stream.

    Their ids count from 1: which they are is decided where they are stored.
    """
    times, payloads, kinds, headers = columns
    if not times:
        return
    sizes = sizes_of(payloads, headers)
    for run in runs_of(times, day_of(times[0]), TIME_MS_MAX):
        for start, stop in cuts(sizes[run.start : run.stop]):
            part = slice(run.start + start, run.start + stop)
            count, size = stop - start, sum(sizes[part])
            if count == 1:
                at = part.start
                row = pack_single(NewEvent(times[at], payloads[at], kinds[at], headers[at]))
            else:
                codec = Codec.ZSTD if size >= PACKED_BYTES_MIN else Codec.NONE
                row = pack(range(1, count + 1), times[part], payloads[part], kinds[part], headers[part], codec)
            yield row_numbers(run.day, count, size), row


@dataclass(frozen=True, slots=True)
class _Joined:
    """A batch, and the places and numbers of events of those that it is made of."""

    batch: EventBatch
    members: Sequence[tuple[int, int]]

    def outcomes(self, whole: Appended) -> Iterable[tuple[int, Appended]]:
        """The outcome of each member, from that of the batch: what was stored before is at its begin."""
        if len(self.members) == 1:
            yield self.members[0][0], whole
            return
        start = 0
        for pond_keys, count in self.members:
            repeated = min(max(whole.repeated - start, 0), count)
            new = count - repeated
            first = whole.first_id + max(start - whole.repeated, 0) if new else 0
            yield pond_keys, Appended(new, repeated, first, first + new - 1 if new else whole.last_id)
            start += count


def joined(batches: Iterable[tuple[int, EventBatch]]) -> list[_Joined]:
    """Neighbouring batches of one stream, with their places among all, as few batches of bounded size."""
    runs: list[list[tuple[int, EventBatch]]] = []
    size = events = 0
    before: EventBatch | None = None
    for pond_keys, batch in batches:
        few, more = len(batch.events), _bytes_of(batch)
        size, events = size + more, events + few
        if before is not None and size <= JOINED_BYTES and events <= JOINED_EVENTS and _follows(before, batch):
            runs[-1].append((pond_keys, batch))
        else:
            runs.append([(pond_keys, batch)])
            size, events = more, few
        before = batch
    return [_join(run) for run in runs]


def _bytes_of(batch: EventBatch) -> int:
    return len(batch.events[0][1]) if len(batch.events) == 1 else sum(len(event[1]) for event in batch.events)


def _follows(before: EventBatch, batch: EventBatch) -> bool:
    """True when two batches together are stored as they would be one by one."""
    if before.source != batch.source or not before.events or not batch.events:
        return False
    if before.expected_id is not None or batch.expected_id is not None:
        return False
    if len(before.positions) != len(before.events) or len(batch.positions) != len(batch.events):
        return not (batch.source or batch.positions or before.positions)
    return batch.positions[0] > before.positions[-1]


def _join(run: Sequence[tuple[int, EventBatch]]) -> _Joined:
    members = [(pond_keys, len(batch.events)) for pond_keys, batch in run]
    first = run[0][1]
    if len(run) == 1:
        return _Joined(first, members)
    events = [event for _, batch in run for event in batch.events]
    positions = [position for _, batch in run for position in batch.positions]
    return _Joined(EventBatch(first.stream, events, first.source, positions), members)
