"""An outbox sends what waits when it starts, and then what the processor rings for."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

pytest.importorskip("littlehorse")

from millpond.clock import ManualClock
from millpond.errors import Unavailable
from millpond.kernel.keys import Prefix
from millpond.kernel.space import ReadTransaction
from millpond.kernel.worker import workers
from millpond.server.workflows.outbox import PAUSE_SECONDS, RETRY_SECONDS, Outbox
from millpond.stores.memory import MemorySpace

ROWS = Prefix("rows")
Position = tuple[int, int]


class Sent:
    """Rows of a space, and the receiver that an outbox sends them to."""

    def __init__(self) -> None:
        self.space, self.clock, self.reads = MemorySpace(), ManualClock(), 0
        self.positions: list[Position] = []
        self.error: Exception | None = None
        self.outbox = Outbox(
            "a test's rows", self.space, self.clock, self.send, page=self.page, sizes=self.sizes, waiting_max=3,
            ended=self.ended, dropped=lambda _: None,
        )  # fmt: skip

    def page(self, tx: ReadTransaction, after: Position, limit: int) -> list[tuple[Position]]:
        self.reads += 1
        return [(position,) for position, _ in self.sizes(tx, after)][:limit]

    def sizes(self, tx: ReadTransaction, after: Position) -> Iterator[tuple[Position, int]]:
        keys = tx.keys(ROWS.range((after[0], after[1] + 1), None))
        return (((int(key[0]), int(key[1])), 1) for key in map(ROWS.unpack, keys))  # type: ignore[arg-type]

    def send(self, rows: Sequence[tuple[Position]]) -> None:
        if self.error is not None:
            raise self.error
        self.positions += [position for (position,) in rows]

    def ended(self, position: Position, dropped: bool) -> None:
        del dropped
        self.space.write(lambda tx: tx.delete_range(ROWS.range((), (position[0], position[1] + 1))))

    def note(self, position: int) -> None:
        self.space.write(lambda tx: tx.put(ROWS.pack(position, 0), b""))

    def left(self) -> int:
        with self.space.read() as tx:
            return sum(1 for _ in tx.keys(ROWS.range()))

    def rest(self, seconds: float | None = None) -> None:
        """Wait until its thread waits, for as long as is said; None: until it is woken."""
        due = None if seconds is None else self.clock.monotonic() + seconds
        for _ in range(10_000):
            if [wait for wait, _ in self.clock._waits] == [due]:
                return
            threading.Event().wait(0.001)
        raise AssertionError(f"it waits for another time: {self.clock._waits}")

    def pause(self, seconds: float = PAUSE_SECONDS) -> None:
        self.rest(seconds)
        self.clock.advance(int(seconds * 1_000))


@pytest.fixture
def sent() -> Iterator[Sent]:
    made = Sent()
    made.note(1)
    made.outbox.start()
    yield made
    made.error = None
    made.outbox.stop()


def test_what_an_earlier_process_left_is_sent_and_then_nothing_is_read(sent: Sent) -> None:
    sent.pause()
    sent.pause()  # what came while the first page was sent is looked for
    sent.rest()
    reads = sent.reads
    sent.clock.advance(3_600_000)
    sent.rest()
    assert (sent.positions, sent.reads, sent.left()) == ([(1, 0)], reads, 0)


def test_rings_while_it_pauses_are_one_page(sent: Sent) -> None:
    sent.rest(PAUSE_SECONDS)
    reads = sent.reads
    for position in (2, 3, 4):
        sent.note(position)
        sent.outbox.wake()
    assert sent.reads == reads
    sent.pause()
    sent.pause()
    sent.pause()
    sent.rest()
    assert sent.positions == [(1, 0), (2, 0), (3, 0), (4, 0)]
    sent.note(5)
    sent.outbox.wake()
    sent.rest(PAUSE_SECONDS)
    assert sent.positions[-1] == (5, 0), "at once, when nothing was sent for a while"


def test_what_failed_is_sent_again_without_a_ring_and_not_at_each(sent: Sent) -> None:
    sent.pause()
    sent.pause()
    sent.rest()
    sent.error = Unavailable("no streams", kind="redis_unreachable")
    sent.note(2)
    sent.outbox.wake()
    sent.rest(RETRY_SECONDS)
    assert [(seen.state, seen.failure) for seen in workers() if seen.name == "a test's rows"] == [
        ("failing", "no streams")
    ]
    reads = sent.reads
    sent.outbox.wake()
    sent.rest(RETRY_SECONDS)
    assert sent.reads == reads
    sent.error = None
    sent.pause(RETRY_SECONDS)
    sent.pause()
    assert sent.positions == [(1, 0), (2, 0)]


def test_what_was_noted_last_is_sent_when_it_stops(sent: Sent) -> None:
    sent.rest(PAUSE_SECONDS)
    sent.note(2)
    sent.outbox.stop()
    assert (sent.positions, sent.left()) == ([(1, 0), (2, 0)], 0)
