"""Appending: events are packed here, and one call a stream assigns ids, days and the source position.

A script cannot cut packed rows, so rows are cut where it could have to: a row holds events of one day, whatever day the
stream has reached. Events that were stored before are left out by the script when they are all of a batch; where they
are the begin of one, it says up to where, and the rest is sent anew.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from millpond.errors import MillpondError, Unavailable, Uncertain
from millpond.events.codec import Codec, cuts, pack, sizes_of
from millpond.events.days import day_of, runs_of
from millpond.events.event import TIME_MS_MAX, Appended
from millpond.events.ids import format_id
from millpond.events.redis.joined import Joined, joined
from millpond.events.redis.keys import is_hashed
from millpond.events.redis.rows import names_in_full
from millpond.events.redis.scripts import APPEND
from millpond.events.redis.servers import Argument, Call, script_call

if TYPE_CHECKING:
    from millpond.events.event import Columns, EventBatch
    from millpond.events.names import StreamName
    from millpond.events.protocol import StreamRules
    from millpond.events.redis.keys import Place, StreamKeys
    from millpond.events.redis.servers import Servers

__all__ = ("SERVER_TIME", "append_batches")

SERVER_TIME = -1
"""Stands for the time that the server has when it runs the script."""

CALL_BYTES = 1 << 20
"""Batches of one stream share a call up to so many packed bytes: while it runs the server does nothing else."""
FLIGHT_BYTES = 8 << 20
FLIGHT_STREAMS = 500
PACKED_BYTES_MIN = 192
"""Smaller rows are not compressed, nor are rows of one event: each costs more than the append, until its day is."""
_POSITION_BYTES = 16


@dataclass(slots=True)
class _Delivery:
    """A batch on its way: what it is made of, the events that were stored before, and its arguments of the script."""

    joined: Joined
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
        ends = [positions[0], positions[-1]] if positions else [0, 0]
        self.arguments = [
            self.batch.source, *(end.to_bytes(_POSITION_BYTES, "big") for end in ends), len(columns.times), len(rows),
            *(part for row in rows for part in row),
        ]  # fmt: skip
        self.size = sum(len(row[-1]) for row in rows)

    def outcome(self, answer: bytes) -> Appended:
        number = int.from_bytes(answer[1:], "big")
        if answer[:1] == b"r":
            return Appended(0, len(self.batch.events), 0, number)
        count = len(self.batch.events) - self.stored_before
        return Appended(count, self.stored_before, number, number + count - 1)


def append_batches(
    servers: Servers, place: Place, batches: Sequence[EventBatch], now_ms: int, rules: StreamRules
) -> list[Appended]:
    """As `StreamStore.append`.

    Raises: as that. A batch that is not acceptable is found before anything is sent.
    """
    outcomes: dict[int, Appended] = {}
    queues: dict[StreamName, deque[_Delivery]] = {}
    for stream, members in _checked(batches).items():
        queues[stream] = deque(map(_Delivery, members))
    while queues:
        for flight in _flights(queues):
            calls = [_call(place.keys_of(stream), deliveries, now_ms, rules) for stream, deliveries in flight]
            try:
                replies = servers.run(calls, repeat=False)
            except Unavailable as error:
                if not outcomes or isinstance(error, Uncertain):
                    raise
                raise Uncertain(
                    "some batches are stored, and others are not", kind="uncertain", batches=len(outcomes),
                    hint="deliver all of them again: with a source, those that are stored are left out",
                ) from error  # fmt: skip
            for (stream, deliveries), answers in zip(flight, replies, strict=True):
                _settle(stream, queues[stream], deliveries, answers, outcomes)
        queues = {stream: queue for stream, queue in queues.items() if queue}
    return [outcomes[number] for number in range(len(batches))]


def _checked(batches: Sequence[EventBatch]) -> dict[StreamName, list[Joined]]:
    """The batches of each stream, joined and checked; one by one only where one is wrong, to name its event."""
    given: dict[StreamName, list[tuple[int, EventBatch]]] = {}
    try:
        for number, batch in enumerate(batches):
            given.setdefault(batch.stream, []).append((number, batch))
        found = {stream: joined(members) for stream, members in given.items()}
        for members in found.values():
            for member in members:
                member.batch.check()
    except (MillpondError, TypeError, ValueError, AttributeError):
        for batch in batches:
            batch.check()
        raise
    return found


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


def _call(keys: StreamKeys, deliveries: Sequence[_Delivery], now_ms: int, rules: StreamRules) -> Call:
    names = names_in_full(keys.stream) if is_hashed(keys.name) else b""
    arguments: list[Argument] = [max(now_ms, SERVER_TIME), rules.ahead_ms, keys.name, names]
    for delivery in deliveries:
        arguments += delivery.arguments
    keys_used = (keys.head, keys.raw, keys.sources, keys.index, *keys.due, keys.names, keys.lost)
    return script_call(APPEND, keys.shard, keys_used, arguments)


def _settle(
    stream: StreamName, queue: deque[_Delivery], deliveries: Sequence[_Delivery], answers: Sequence[bytes],
    outcomes: dict[int, Appended],
) -> None:  # fmt: skip
    """Take what was answered from a queue; a batch that was stored up to its middle stays, without its begin."""
    for delivery, answer in zip(deliveries, answers, strict=False):
        if answer[:1] == b"f":
            last_id = max((outcome.last_id for outcome in outcomes.values()), default=0)
            raise Unavailable("the stream has no more ids", kind="event_ids_used_up", last_id=format_id(last_id))
        if answer[:1] == b"c":
            position = int.from_bytes(answer[1:], "big")
            delivery.stored_before = bisect_right(delivery.batch.positions, position)
            delivery.arguments = []
            return
        outcomes.update(delivery.joined.outcomes(delivery.outcome(answer)))
        delivery.arguments = []
        queue.popleft()


def _packed_rows(columns: Columns) -> Iterator[tuple[int, int, int, bytes]]:
    """Rows of the script: the day that the times ask for, the number of events, their bytes, and the events.

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
            size = sum(sizes[part])
            codec = Codec.ZSTD if size >= PACKED_BYTES_MIN and stop - start > 1 else Codec.NONE
            ids = range(1, stop - start + 1)
            yield (
                run.day, stop - start, size,
                pack(ids, times[part], payloads[part], kinds[part], headers[part], codec),
            )  # fmt: skip
