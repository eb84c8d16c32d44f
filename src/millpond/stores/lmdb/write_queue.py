"""The turns of the threads that write to one LMDB environment, and writes of several that share one commit.

LMDB has one writer at a time, and a durable commit waits for the disk. So the thread whose turn it is *leads*: it takes
all requests that are queued by then, runs them in one transaction, and commits them together, with one sync.

    thread 1   ─ queued ─────────────────────────────────── answered, wakes 2 ──
    thread 2   ─── queued ────────────────────────────────────── answered ──────
    thread 3   ────── leads: ─ begin ─ take ─ run 1, 2, 3 ─ commit, sync ─ wake 1 ─
    thread 4   ──────────────────────────────── queued ──────────────── leads: …

Most of a write on a fast disk is threads that wake each other, so there are few such steps, and none in vain:
* threads that write again and again come back at about the same time. So nobody leads before as many are queued as
  the last group had, or a moment is over: the *last* of them leads, for it runs already. The first keeps the time;
* of a group, each thread wakes the next. Woken all at once they would wait for the interpreter, and be woken again.

Invariants:
* A request that fails fails alone: the transaction of its group is aborted, and the group is *split*. Each request is
  run again in a nested transaction, and only those that fail again are aborted.
* Nobody is answered before the sync.
* A group that meets the end of the map, or whatever else LMDB refuses to nest, is *dissolved*: nothing of it was done,
  and each of its requests is written alone, in its own thread, as if there were no groups.
* A request is taken only when the leader's transaction has begun. While it is queued, its thread can withdraw it: it
  must, when the map waits for a reader of that thread.
* While requests are queued, a thread writes, or the first of them is the *gatherer*, which waits for a limited time.
* A thread that was interrupted wakes the next of its group all the same, or is left out.
* A request alone in its group costs what it would without a queue.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import lmdb

from millpond.errors import Unavailable, Uncertain

__all__ = ("Group", "Request", "WriteQueue")

T = TypeVar("T")

GATHER_SECONDS_MAX = 0.0003
"""The time a request waits for others: about a sync of a fast disk, so that a wait in vain at most doubles a write."""


class Request(Generic[T]):
    """A write that a thread waits for: its function, and what became of it."""

    __slots__ = ("_error", "_signal", "_values", "act", "alone", "following", "settled", "thread", "withdrawn")

    def __init__(self, act: Callable[[lmdb.Transaction], T], *, alone: bool = False) -> None:
        self.act = act
        self.alone = alone
        self.settled = self.withdrawn = False
        self.following: Request[Any] | None = None
        self.thread = threading.get_ident()
        self._signal = threading.Lock()
        # Held from now on: `wait` ends when it is released.
        self._signal.acquire()
        self._values: tuple[T, ...] = ()
        self._error: BaseException | None = None

    @property
    def failed(self) -> bool:
        """True when its function raised, or its commit did."""
        return self._error is not None

    def wait(self, seconds: float = -1) -> bool:
        """Wait until something about it has changed, for some seconds at most: False when nothing has."""
        return self._signal.acquire(timeout=seconds)

    def wake(self) -> None:
        """End its thread's `wait`. Several may do so while it is queued, with the queue's lock held."""
        # A lock that is released twice raises an error; the queue's lock keeps this look and the release together.
        if self._signal.locked():
            self._signal.release()

    def wake_following(self) -> None:
        """Wake the thread of the next request of its group: all woken at once would wait for the interpreter, too."""
        if self.following is not None:
            self.following.wake()

    def run(self, transaction: lmdb.Transaction) -> None:
        """Run the function, and remember what it returned."""
        self._values, self._error = (self.act(transaction),), None

    def fail(self, error: BaseException) -> None:
        """Remember the error that its thread is to raise."""
        self._error = error

    def result(self) -> T:
        """The function's result; raises what it, or the commit, raised."""
        if self._error is not None:
            raise self._error
        return self._values[0]


class Group:
    """The requests of one commit; the leader's is `own`."""

    def __init__(self, own: Request[Any]) -> None:
        self.own = own
        self.requests = [own]
        self._ran = self._split = False

    @property
    def others(self) -> list[Request[Any]]:
        """The requests of other threads."""
        return [request for request in self.requests if request is not self.own]

    def run(self, environment: lmdb.Environment, transaction: lmdb.Transaction) -> None:
        """Run all of them in a transaction; after `split`, each in one of its own, if there are several.

        Raises:
            lmdb.MapFullError: the map is full, or several cannot do what one could.
            BaseException: what the only one raised.
        """
        self._ran = False
        if len(self.requests) == 1:
            self.own.run(transaction)
        elif self._split:
            for request in self.requests:
                _run_nested(request, environment, transaction)
        else:
            self._run_together(transaction)
        self._ran = True

    def split(self) -> bool:
        """Keep the requests apart from now on; False when they are already."""
        was_whole = not self._split
        self._split = True
        return was_whole

    def fail_others(self, error: BaseException) -> bool:
        """Let a failed commit be theirs too; False when their functions have not all run, so that nothing was done."""
        if not self._ran:
            return False
        if not isinstance(error, Exception):
            # The leader's thread was interrupted around the commit: that interrupts nobody else, but who knows of it?
            error = Uncertain("the commit was interrupted", kind="commit_interrupted", hint="look whether it was made")
        for request in self.others:
            if not request.failed:
                request.fail(error)
        return True

    def _run_together(self, transaction: lmdb.Transaction) -> None:
        """Run all of them in the one transaction: most writes succeed, and nesting costs as much as a write itself."""
        try:
            for request in self.requests:
                request.run(transaction)
        except KeyboardInterrupt:
            raise  # meant for this thread, whosever function it ran
        except BaseException as error:
            # In the form of a full map: its leader then splits the group, or dissolves it, as for one.
            raise lmdb.MapFullError("one of several writes failed") from error


def _run_nested(request: Request[Any], environment: lmdb.Environment, transaction: lmdb.Transaction) -> None:
    try:
        nested = environment.begin(write=True, parent=transaction)
        try:
            request.run(nested)
            nested.commit()
        finally:
            nested.abort()  # harmless after the commit
    except lmdb.MapFullError:
        raise
    except lmdb.Error as error:
        raise lmdb.MapFullError("the writes do not fit into one transaction") from error
    except KeyboardInterrupt:
        raise  # meant for this thread, whosever function it ran
    except BaseException as error:
        request.fail(error)


class WriteQueue:
    """The writer and those that are next. `lock` is that of the environment's gate, seen at one moment."""

    def __init__(self, lock: threading.RLock, stuck: Callable[[], Unavailable | None], *, gathers: bool) -> None:
        """Begin with nobody writing; `stuck` is the error of a thread that must not wait, None when it may.

        `gathers`: threads wait a moment for those that were answered last, because a sync costs more than that.
        """
        self._lock = lock
        self._stuck = stuck
        self._gathers = gathers
        self._requests: list[Request[Any]] = []
        self._writer: int | None = None
        self._expected = 1
        self._gatherer: Request[Any] | None = None

    def is_writing(self) -> bool:
        """True when it is this thread's turn."""
        return self._writer == threading.get_ident()

    def enter(self, request: Request[Any]) -> bool:
        """Wait until this is the one thread of this process that writes: True, until it leaves. Or False, when another
        has settled the request.
        """
        with self._lock:
            if self._writer is None and self._leads(request, len(self._requests) + 1):
                self._begin(request)
                return True
            self._refuse_stuck()
            self._requests.append(request)
            if self._writer is None and self._gatherer is None:
                self._gatherer = request
        try:
            return self._await_turn(request)
        except BaseException:
            self._withdraw(request)
            raise

    def leave(self) -> None:
        """End this thread's turn: the oldest request is next, as soon as enough are there."""
        with self._lock:
            self._writer = None
            if self._requests:
                following = self._requests[0]
                if self._leads(following, len(self._requests)):
                    del self._requests[0]
                    # The turn is given under the lock, before its thread runs: no other thread comes in between.
                    self._begin(following)
                else:
                    self._gatherer = following
                following.wake()

    def take(self, group: Group) -> None:
        """Put all requests that are queued into a group, the oldest first; those that must be alone are left."""
        if group.own.alone:
            return
        with self._lock:
            if self._requests:
                group.requests += [request for request in self._requests if not request.alone]
                self._requests = [request for request in self._requests if request.alone]

    def dissolve(self, group: Group) -> None:
        """Let each request of a group be written alone: those of others are queued again."""
        with self._lock:
            # They have waited longer than those that came meanwhile.
            self._requests = group.others + self._requests
            for request in group.requests:
                request.alone = True
            group.requests = [group.own]
            self.wake()

    def settle(self, group: Group) -> None:
        """Let the threads of a group go on, with what became of their requests."""
        with self._lock:
            # Threads that are answered now come back soon, and others are queued: the next group may be as large.
            self._expected = len(group.requests) + len(self._requests)
            following: Request[Any] | None = None
            # From the last to the first, so that each wakes the next that still waits. `settled` is set for all before
            # the first of them is woken, so that their threads need no lock to read it.
            for request in reversed(group.others):
                request.settled = True
                request.following = following
                if not request.withdrawn:
                    following = request
            if following is not None:
                following.wake()

    def wake(self) -> None:
        """Let those that wait look again whether they may; call it with the lock held."""
        for request in self._requests:
            request.wake()

    def _leads(self, request: Request[Any], count: int) -> bool:
        """True when a request need not wait for more than the `count` that there are."""
        return count >= self._expected or request.alone or not self._gathers

    def _begin(self, request: Request[Any]) -> None:
        self._writer = request.thread
        self._gatherer = None

    def _await_turn(self, request: Request[Any]) -> bool:
        while True:
            woken = request.wait(GATHER_SECONDS_MAX if self._gatherer is request else -1)
            if request.settled:
                request.wake_following()
                return False
            with self._lock:
                if self.is_writing():
                    return True
                if request in self._requests:
                    self._refuse_stuck()
                    if not woken and self._gatherer is request:
                        self._requests.remove(request)
                        self._begin(request)
                        return True

    def _withdraw(self, request: Request[Any]) -> None:
        with self._lock:
            if request in self._requests:
                self._requests.remove(request)
                if self._gatherer is request:
                    assert self._writer is None, "nobody gathers while somebody writes"
                    self._gatherer = None
                    self.leave()
            # The turn came while its thread was interrupted.
            elif self.is_writing():
                self.leave()
            request.withdrawn = True
            request.wake_following()

    def _refuse_stuck(self) -> None:
        error = self._stuck()
        if error is not None:
            raise error
