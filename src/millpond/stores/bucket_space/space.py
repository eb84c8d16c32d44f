"""A space in a bucket: every process has a copy of its rows, and the log of batches says in which order they changed.

    write   run on the copy at batch n ─▶ put batch n + 1 if there is none ─▶ done
                    ▲                            │ there is one
                    └── take in what came ◀──────┘
    read    the copy; older than `max_staleness`, it first asks for batch n + 1

All writes that wait in a process share one batch.

Invariants:
* A batch is the outcome of functions that were run on the rows after the batch before it: so writes are serializable.
* A write that changes nothing, or raises, counts only on rows that were the newest after it was called.
* Nobody is answered before the batch is in the bucket; whose it is, its write id says.
* The copy may be lost at any time. Nobody asks the bucket while nobody asks the space.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from millpond.clock import Clock
from millpond.errors import Closed, Conflict, MillpondError, Unavailable, Uncertain
from millpond.kernel.keys import KeyRange
from millpond.kernel.overlay import Overlay
from millpond.kernel.space import ReadTransaction, Transaction, WouldBlock, already_writing
from millpond.kernel.steps import step
from millpond.retry import Backoff
from millpond.stores.bucket_space.batch_log import BatchLog, LogObjects
from millpond.stores.bucket_space.checkpoints import CHECKPOINT, Checkpoint, Checkpoints, Former, Replaced
from millpond.stores.bucket_space.forms import Batch, Change, Trimmed, damaged, row_bytes
from millpond.stores.memory import Rows

__all__ = ("MAX_STALENESS", "UNWATCHED", "BucketSpace", "Watched")

MAX_STALENESS = 1.0
"""The age in seconds up to which the copy answers reads: with 0 each read asks the bucket first."""
CHECKPOINT_BATCHES = 64
"""Fewer: checkpoints are written more often; more: whoever opens the space reads more batches. Who wrote and closes
writes one after a quarter of them.
"""
FOLLOWER_MS = 3_600_000
"""Followers of this age still find their batches; those that are older begin at the checkpoint."""
GROUP_BYTES_MAX = 8 << 20
"""The bytes of writes that share a batch; the write that goes beyond is the last of them."""
FOLLOWED_SECONDS = 60.0
"""A write on an older copy follows first: what it would put may be a number that was trimmed long ago."""
RUNS_MAX = 100
NEVER = float("-inf")
_LOOKS_MAX = 8
RUNS_AT_ONCE = 8
"""The runs without a pause: whoever pauses comes back to a log that has gone on, and loses again."""
CONTENDED_SECONDS = 10.0
"""For so long after a batch was overtaken, this process waits for its turn, where there are turns."""
AHEAD_MAX = 32
_PAUSES = Backoff(first_seconds=0.005, seconds_max=0.1, jitter=1.0)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Copy:
    """The rows after a batch; `newest_at` is a monotonic time at which there was no later one."""

    number: int
    chain: bytes
    rows: Rows
    newest_at: float

    def after(self, batch: Batch, chain: bytes, newest_at: float) -> _Copy:
        return _Copy(batch.number, chain, self.rows.changed(batch.changes), newest_at)


class Watched(NamedTuple):
    """The rows that somebody wants to see change; `show` gets all rows, and asks the bucket nothing."""

    keys: KeyRange
    show: Callable[[ReadTransaction], None]


UNWATCHED = Watched(KeyRange(b"", b""), lambda _: None)


class _Request(Generic[T]):
    """A write that waits for its batch."""

    __slots__ = ("called_at", "change", "done", "error", "values")

    def __init__(self, change: Callable[[Transaction], T], called_at: float) -> None:
        self.change, self.called_at, self.done = change, called_at, False
        self.values: tuple[T, ...] = ()
        self.error: BaseException | None = None

    def run(self, rows: Rows) -> dict[bytes, bytes | None]:
        """Run the function; what it changes, which is nothing when it raises."""
        self.values, self.error = (), None
        transaction = Overlay(rows)
        try:
            self.values = (self.change(transaction),)
            return dict(transaction.changes())
        except Exception as error:
            self.error = error
            return {}
        finally:
            transaction.end()

    def result(self) -> T:
        """The result of the function; raises what it, or its batch, raised."""
        if self.error is not None:
            raise self.error
        return self.values[0]


@dataclass(slots=True)
class _Outcome:
    """The changes of requests together, in their order; `unproven` ones changed nothing, or raised."""

    changes: dict[bytes, bytes | None]
    ran: list[_Request[Any]]
    unproven: list[_Request[Any]]


class _Moment(Overlay):
    """A read transaction that knows the number of its batch."""

    def __init__(self, copy: _Copy) -> None:
        super().__init__(copy.rows)
        self.moment = copy.number


class BucketSpace:
    """A `Space` over objects with conditional writes, for any number of processes."""

    def __init__(
        self, objects: LogObjects, clock: Clock, *, max_staleness: float = MAX_STALENESS,
        checkpoint_batches: int = CHECKPOINT_BATCHES, follower_ms: int = FOLLOWER_MS,
        before_writing: Callable[[], None] | None = None, log: BatchLog | None = None,
        turn: Callable[[], AbstractContextManager[bool]] | None = None, on_close: Sequence[Callable[[], None]] = (),
        watched: Watched = UNWATCHED,
    ) -> None:  # fmt: skip
        """`before_writing` is called before the first batch that this process puts, and may refuse it; `on_close` are
        called when the space is closed. `turn` is a turn among processes, for batches after one that was overtaken.
        `watched` rows are shown when the copy is new, and when it has taken in a change of them.
        """
        self.objects, self._before_writing = objects, before_writing
        self._clock, self._max_staleness = clock, max_staleness
        self._checkpoint_batches, self._follower_ms = checkpoint_batches, follower_ms
        self._log, self._checkpoints = log or BatchLog(objects, clock), Checkpoints(objects, clock)
        self._process_turn, self._on_close = turn, on_close
        self._watched = watched
        self._contended_until = NEVER
        self._following = threading.RLock()  # one thread at a time takes in batches
        self._queue_lock = threading.Lock()  # one thread leads; who comes is queued
        self._led, self._leads = threading.Condition(self._queue_lock), False
        self._queue: list[_Request[Any]] = []
        self._leader: int | None = None
        self._closed = False
        self._never = threading.Event()
        self._checkpointed, self._wrote = 0, False
        self._copy = self._opened()

    # -- reading --------------------------------------------------------------------------------------

    @contextmanager
    def read(self, *, wait: bool = True) -> Iterator[ReadTransaction]:
        self._refuse_closed()
        transaction = _Moment(self._fresh(wait))
        try:
            yield transaction
        finally:
            transaction.end()

    @contextmanager
    def latest(self) -> Iterator[ReadTransaction]:
        """Read the copy as it is, however old: the bucket is not asked."""
        self._refuse_closed()
        transaction = _Moment(self._copy)
        try:
            yield transaction
        finally:
            transaction.end()

    @property
    def moment(self) -> int:
        """The number of the last batch that the copy has."""
        return self._copy.number

    def last_change(self) -> int:
        return self._fresh(True).number

    def follow(self) -> None:
        """Take in all that others wrote by now.

        Raises: as `read`.
        """
        self._refuse_closed()
        self._newest(self._clock.monotonic())

    def come_up(self, moment: int) -> None:
        """Take in what others wrote, if the copy is older than a moment that they name.

        Raises: as `read`.
        """
        with self._following:
            if self._copy.number < moment:
                self._follow()

    def _fresh(self, wait: bool) -> _Copy:
        """The copy, not older than it may be."""
        copy = self._copy
        if self._clock.monotonic() - copy.newest_at <= self._max_staleness and self._max_staleness:
            return copy
        if not wait:
            raise WouldBlock("the bucket would be asked", kind="would_block", where=self.objects.where)
        return self._newest(self._clock.monotonic())

    def _newest(self, since: float) -> _Copy:
        """The copy after all that was in the bucket at a monotonic time."""
        with self._following:
            if self._copy.newest_at < since or not self._max_staleness:
                self._follow()
            return self._copy

    def _follow(self) -> None:
        """Take in the batches that came."""
        ahead = self._log.ahead
        while True:
            requested_at, first = self._clock.monotonic(), self._copy.number + 1
            for content in self._log.read_many(range(first, first + ahead)):
                if content is None:
                    self._copy = replace(self._copy, newest_at=requested_at)
                    return
                if isinstance(content, Trimmed):
                    self._copy = self._opened()  # too far behind: begin at the checkpoint
                    break
                self._take_in(*content)
            ahead = min(2 * ahead, AHEAD_MAX)

    def _take_in(self, batch: Batch, chain: bytes) -> None:
        copy = self._copy
        if batch.before != copy.chain:
            raise self._log.misplaced(batch)
        self._copy = copy.after(batch, chain, copy.newest_at)
        if any(self._watched.keys.holds(key) for key, _ in batch.changes):
            self._show(self._copy)

    def _show(self, copy: _Copy) -> None:
        transaction = _Moment(copy)
        try:
            self._watched.show(transaction)
        finally:
            transaction.end()

    def _opened(self) -> _Copy:
        """The copy at the checkpoint and after all batches since.

        Raises: `Corrupt`, naming the object; `Denied`, `Unavailable`.
        """
        before: Checkpoint | None = None
        looks = 0
        while True:
            checkpoint, _ = self._checkpoints.current()
            looks = looks + 1 if checkpoint == before else 1
            try:
                rows = Rows.of(self._checkpoints.rows(checkpoint))
            except Replaced:
                continue
            self._checkpointed = checkpoint.number
            copy = _Copy(checkpoint.number, bytes.fromhex(checkpoint.chain), rows, NEVER)
            last = self._log.last_listed(copy.number)
            for content in self._log.read_listed(copy.number + 1, last):
                if isinstance(content, Trimmed):
                    if looks == _LOOKS_MAX:  # no newer one has come, and no bucket is wrong so often
                        raise damaged(
                            CHECKPOINT, self.objects.where, f"batch {content.number} is gone, and it does not have it"
                        )
                    break
                if content[0].before != copy.chain:
                    raise self._log.misplaced(content[0])
                copy = copy.after(*content, NEVER)
            else:
                self._show(copy)
                return copy
            before = checkpoint

    # -- writing --------------------------------------------------------------------------------------

    def write(self, change: Callable[[Transaction], T]) -> T:
        if self._leader == threading.get_ident():
            raise already_writing()
        request = _Request(change, self._clock.monotonic())
        with self._queue_lock:
            self._refuse_closed()
            self._queue.append(request)
            # Who leads meanwhile takes all that are queued. Whose batch is there goes on at once: the next leader may
            # have begun, and with what all of them bring next, its batch after that is a large one again.
            while self._leads and not request.done:
                self._led.wait()
            if request.done:
                return request.result()
            self._leads = True
        try:
            self._lead(request)
        finally:
            with self._queue_lock:
                self._leads = False
                self._led.notify_all()
        return request.result()

    def _lead(self, own: _Request[Any]) -> None:
        with self._queue_lock:
            requests, self._queue = self._queue, []
        self._leader = threading.get_ident()
        try:
            while requests:
                requests = self._write_batch(requests)
                with self._queue_lock:
                    self._led.notify_all()
            self._checkpoint_when_due()  # as the leader still: what this thread writes meanwhile would wait for itself
        finally:
            self._leader = None
            # Those of an interrupted leader are led by their own threads.
            with self._queue_lock:
                self._queue = [request for request in requests if not request.done and request is not own] + self._queue

    def _write_batch(self, requests: list[_Request[Any]]) -> list[_Request[Any]]:
        """Make one batch of the first requests; the others."""
        failures = 0
        while True:
            concerned = requests
            try:
                with self._turn_when_contended() as alone:
                    if alone:
                        self._newest(self._clock.monotonic())
                    outcome, copy = self._run(requests)
                    concerned = outcome.ran
                    made = not outcome.changes or self._commit(copy, outcome)
            except MillpondError as error:
                for request in concerned:
                    request.error = error
                made = True
            if made:
                for request in concerned:
                    request.done = True
                return [request for request in requests if not request.done]
            failures += 1
            self._contended_until = self._clock.monotonic() + CONTENDED_SECONDS
            if failures >= RUNS_MAX:
                self._give_up(requests)
                return []
            if failures > RUNS_AT_ONCE:
                pause = _PAUSES(Conflict(""), failures - RUNS_AT_ONCE, self._clock.chance()) or 0.0
                self._clock.wait(self._never, self._clock.monotonic() + pause)
                self._newest(self._clock.monotonic())

    def _turn_when_contended(self) -> AbstractContextManager[bool | None]:
        if self._process_turn is None or self._clock.monotonic() > self._contended_until:
            return nullcontext()
        return self._process_turn()

    def _give_up(self, requests: list[_Request[Any]]) -> None:
        for request in requests:
            request.done = True
            request.error = Unavailable(
                "other processes were faster each time; nothing was changed", kind="space_contended",
                where=self.objects.where, hint="try again later, or with fewer writers",
            )  # fmt: skip

    def _run(self, requests: list[_Request[Any]]) -> tuple[_Outcome, _Copy]:
        """Run requests on the copy, and again on a newer one as long as an outcome needs that."""
        now = self._clock.monotonic()
        if now - self._copy.newest_at > FOLLOWED_SECONDS:
            self._newest(now)
        while True:
            copy = self._copy
            outcome = _run_on(copy.rows, requests)
            called_at = max((request.called_at for request in outcome.unproven), default=copy.newest_at)
            if copy.newest_at >= called_at or self._newest(called_at).number == copy.number:
                return outcome, copy

    def _commit(self, copy: _Copy, outcome: _Outcome) -> bool:
        """Put a batch; False when another has its number."""
        if self._before_writing is not None:
            self._before_writing()
            self._before_writing = None
        clock = self._clock
        write_id = bytes.fromhex(clock.random_id() + clock.random_id())
        changes: tuple[Change, ...] = tuple(sorted(outcome.changes.items()))
        batch = Batch(copy.number + 1, clock.now_ms(), write_id, copy.chain, changes)
        step("bucket.batch_built")
        put_at = clock.monotonic()
        try:
            content = self._log.put(batch)
        except BaseException as error:
            self._wrote = False
            with self._following:  # what was put may be there, or come
                self._copy = replace(self._copy, newest_at=NEVER)
            if not isinstance(error, MillpondError):
                self._interrupted(outcome)
            raise
        self._wrote = True
        step("bucket.batch_put")
        ours = not isinstance(content, Trimmed) and content[0].write_id == write_id
        with self._following:
            if self._copy.number == copy.number and not isinstance(content, Trimmed):
                self._take_in(*content)
                if ours:  # behind another's there may have been more by then
                    self._copy = replace(self._copy, newest_at=put_at)
            if not ours:
                self._follow()
        return ours

    @staticmethod
    def _interrupted(outcome: _Outcome) -> None:
        """The thread of the leader was interrupted while it put a batch: that interrupts nobody else."""
        for request in outcome.ran:
            request.done = True
            request.error = Uncertain(
                "the commit was interrupted", kind="commit_interrupted", hint="look whether it was made"
            )

    # -- checkpoints ----------------------------------------------------------------------------------

    def _checkpoint_when_due(self) -> None:
        copy = self._copy
        if copy.number and copy.number % self._checkpoint_batches == 0:
            # Whoever fails leaves it to the next: a checkpoint only makes opening quicker.
            with suppress(MillpondError):
                self._make_checkpoint(copy)

    def write_checkpoint(self) -> None:
        """Write a checkpoint now.

        Raises: `Conflict` when another process wrote one meanwhile; `Denied`, `Unavailable`.
        """
        self.follow()
        self._make_checkpoint(self._copy)

    def _make_checkpoint(self, copy: _Copy) -> None:
        base, tag = self._checkpoints.current()
        self._checkpointed = max(base.number, self._checkpointed)
        if base.number >= copy.number:
            return
        now = self._clock.now_ms()
        former = base.former + ((Former(base.number, base.time_ms),) if base.number else ())
        aged = [earlier.number for earlier in former if now - earlier.time_ms >= self._follower_ms]
        trimmed = max(aged, default=base.trimmed)
        # All that goes is in the checkpoint that is there, whose batches after it stay.
        self._log.trim(range(base.trimmed + 1, trimmed + 1))
        step("bucket.trimmed")
        checkpoints = tuple(earlier for earlier in former if earlier.number > trimmed)
        checkpoint = Checkpoint(copy.number, now, copy.chain.hex(), trimmed, (), checkpoints)
        self._checkpoints.put(checkpoint, copy.rows, base, tag)
        self._checkpointed = copy.number
        step("bucket.checkpoint_put")

    def close(self) -> None:
        with self._queue_lock:
            closed, self._closed = self._closed, True
        copy = self._copy
        if not closed and self._wrote and copy.number - self._checkpointed >= self._checkpoint_batches // 4:
            # Those who open the space read few batches then, also where each process writes little.
            with suppress(MillpondError):
                self._make_checkpoint(copy)
        for act in () if closed else self._on_close:
            act()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise Closed("the space is closed", kind="space_closed")


def _run_on(rows: Rows, requests: list[_Request[Any]]) -> _Outcome:
    """Run requests one after another, each on what those before it made of the rows, as far as one batch holds them."""
    outcome, before = _Outcome({}, [], []), dict[bytes, bytes | None]()
    size = 0
    for request in requests:
        if size > GROUP_BYTES_MAX:
            break
        if before:
            rows = rows.changed(sorted(before.items()))
        before = changes = request.run(rows)
        outcome.ran.append(request)
        if changes:
            outcome.changes |= changes
            size += sum(row_bytes(key, value) for key, value in changes.items())
        else:
            outcome.unproven.append(request)
    return outcome
