"""The reading processes of a node, as the process that writes keeps them.

    clients ──▶ one port, a socket for each reader ──▶ reader 1 … N ──▶ questions: from the files of the pond
                                                           └─▶ all else, by `forward.py` ──▶ this process

`reader.py` is the other side. Both share a page of memory, the board, and each reader has a channel to this process.

Invariants:
* the sockets belong to this process: a connection that a dead reader had not accepted waits for the next one;
* a reader that ends is replaced, and what it held in LMDB is freed, unless the node stops;
* a reader ends when its channel does, so that none outlives this process.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millpond.clock import SystemClock
from millpond.errors import Unavailable
from millpond.kernel.hours import DAY_HOURS
from millpond.kernel.worker import WorkerThread
from millpond.nodes.limits import LIMITS
from millpond.nodes.rate_limits import BUCKETS_BYTES
from millpond.settings import Settings
from millpond.stores.lmdb.environment import free_dead_readers

__all__ = ("READERS_MAX", "Board", "Order", "Readers")

READERS_MAX = 64
CHILD = "millpond.cli.reader"
"""The module that a reading process runs."""
START_SECONDS = 60.0
ANSWER_SECONDS = 1.0
"""The time that a reader has to tell its counters; without them, the page of metrics is made without them."""
RESTART_SECONDS = 1.0
HOLD_SECONDS = 1.0
"""The time for which a reader believes what the board says: a process that hangs says nothing new."""
TICK_SECONDS = 0.1
_NONE: tuple[list[Metric], list[int]] = ([], [0] * DAY_HOURS)
_NUMBERS = struct.Struct("d")
_LOG = logging.getLogger("millpond.server")


class Board:
    """A page of memory that all processes of a node see: 8 bytes a number, each written by one process.

    Number 0 is the monotonic time until which readers may answer; number n, the requests that reader n works on; the
    last is 1 once tokens are required, whoever sees it first. The buckets of tokens are behind them.
    """

    def __init__(self, file: int) -> None:
        """`file`: a descriptor, which stays open."""
        self.file = file
        size = mmap.PAGESIZE + BUCKETS_BYTES
        if os.fstat(file).st_size < size:
            os.ftruncate(file, size)
        self._page = mmap.mmap(file, size)
        self._clock = SystemClock()  # that of tests stands still in one process alone

    @property
    def answers(self) -> bool:
        """True while readers may answer."""
        until: float = _NUMBERS.unpack_from(self._page, 0)[0]
        return self._clock.monotonic() < until

    def allow(self, allowed: bool) -> None:
        """Say that readers may answer for the next moment, or that they may not."""
        _NUMBERS.pack_into(self._page, 0, self._clock.monotonic() + HOLD_SECONDS if allowed else 0.0)

    @property
    def requires_tokens(self) -> bool:
        """True once the process that writes requires tokens."""
        return self.running(READERS_MAX + 1) > 0

    def require_tokens(self) -> None:
        """Require tokens from now on."""
        self.put_running(READERS_MAX + 1, 1)

    def running(self, number: int) -> int:
        """The requests that a reader works on."""
        return int(_NUMBERS.unpack_from(self._page, number * _NUMBERS.size)[0])

    def put_running(self, number: int, count: int) -> None:
        """Note the requests that a reader works on."""
        _NUMBERS.pack_into(self._page, number * _NUMBERS.size, count)

    @contextmanager
    def buckets(self) -> Iterator[memoryview]:
        """The bytes of the buckets of tokens, locked against other processes."""
        fcntl.lockf(self.file, fcntl.LOCK_EX)
        try:
            with memoryview(self._page)[mmap.PAGESIZE :] as view:
                yield view
        finally:
            fcntl.lockf(self.file, fcntl.LOCK_UN)


@dataclass(frozen=True, slots=True)
class Order:
    """The first message to a reader: what to serve, and the descriptors that it inherits."""

    number: int
    settings: Settings
    listener: int
    board: int
    writer: str
    """The path of the socket at which the process that writes takes requests."""


@dataclass(slots=True)
class _Reader:
    """One reader: its socket, which stays, and its process and channel, which change."""

    number: int
    listener: socket.socket
    process: subprocess.Popen[bytes] | None = None
    channel: Connection | None = None
    requests: int = 0
    ready: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    worker: WorkerThread | None = None


class Readers(Collector):
    """The reading processes of one node. `socket` is the one at which they hand requests on."""

    def __init__(self, settings: Settings, listeners: Sequence[socket.socket]) -> None:
        self._settings, self._clock = settings, SystemClock()
        self._folder = tempfile.TemporaryDirectory(prefix="millpond-")  # its user's alone
        self._path = str(Path(self._folder.name) / "writer")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.bind(self._path)
        self._shared = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the readers
        self.board = Board(self._shared.fileno())
        self._readers = [_Reader(number, listener) for number, listener in enumerate(listeners, 1)]
        self._stopping = threading.Event()
        self.replaced = 0

    def __len__(self) -> int:
        return len(self._readers)

    # -- life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all, and wait until they answer.

        Raises: `Unavailable`, kind `readers_missing`, when one does not.
        """
        for reader in self._readers:
            reader.worker = WorkerThread(f"reader {reader.number}", partial(self._keep, reader), self._clock)
            reader.worker.start()
        due = self._clock.monotonic() + START_SECONDS
        for reader in self._readers:
            while not reader.ready.wait(TICK_SECONDS):
                if self._stopping.is_set():
                    return
                if self._clock.monotonic() > due or self.replaced > 2 * len(self):
                    raise Unavailable(
                        "a reading process does not start", kind="readers_missing", reader=reader.number,
                        hint="the node's log says more; or serve without: readers = 0",
                    )  # fmt: skip

    def _keep(self, reader: _Reader) -> float | None:
        """Have a process for a reader until it ends; the monotonic time of the next one, unless the node stops."""
        process = self._spawn(reader)
        if process is None:
            return None
        code = process.wait()
        self.board.put_running(reader.number, 0)
        if self._stopping.is_set():
            return None
        # A transaction of a process that is gone would keep old pages for ever.
        free_dead_readers()
        self.replaced += 1
        _LOG.warning("reading process %d ended (%s): another one takes its place", reader.number, code)
        return self._clock.monotonic() + (0 if reader.ready.is_set() else RESTART_SECONDS)

    def _spawn(self, reader: _Reader) -> subprocess.Popen[bytes] | None:
        with reader.lock:
            if self._stopping.is_set():
                return None
            if reader.channel is not None:
                reader.channel.close()
            reader.channel, theirs = Pipe()
            listener, board, channel = reader.listener.fileno(), self._shared.fileno(), theirs.fileno()
            reader.ready.clear()
            # In a process group of its own: what interrupts the terminal's group is told to this process alone.
            reader.process = subprocess.Popen(
                [sys.executable, "-P", "-m", CHILD, str(channel)], pass_fds=(listener, board, channel),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}, stdin=subprocess.DEVNULL,
                process_group=0,
            )  # fmt: skip
            theirs.close()
            if self._stopping.is_set():
                reader.process.kill()
            with suppress(OSError):
                reader.channel.send(Order(reader.number, self._settings, listener, board, self._path))
                with suppress(EOFError):
                    if reader.channel.poll(START_SECONDS):
                        reader.channel.recv()
                        reader.ready.set()
            return reader.process

    def stop(self) -> None:
        """Let all end after the requests that they have; nothing new is accepted. Stopping twice is harmless."""
        self._stopping.set()
        for reader in self._readers:
            reader.listener.close()
            if reader.process is not None:
                reader.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Wait for the end of all, and kill those that take longer than `NodeLimits.shutdown_seconds` and a second."""
        self.stop()
        due = self._clock.monotonic() + LIMITS.shutdown_seconds + 1.0
        for reader in self._readers:
            if reader.process is not None:
                try:
                    reader.process.wait(max(0.0, due - self._clock.monotonic()))
                except subprocess.TimeoutExpired:
                    reader.process.kill()
            if reader.worker is not None:
                reader.worker.stop()
            if reader.channel is not None:
                reader.channel.close()
        self.socket.close()
        self._shared.close()
        self._folder.cleanup()

    # -- how they stand -------------------------------------------------------------------------------

    def requests(self) -> int:
        """The requests that all work on."""
        return sum(self.board.running(reader.number) for reader in self._readers)

    def processes(self) -> list[int]:
        """The process ids of those that answer."""
        return [reader.process.pid for reader in self._readers if reader.process is not None and reader.ready.is_set()]

    def collect(self) -> Iterator[Metric]:
        """The number of readers, for Prometheus."""
        yield GaugeMetricFamily("millpond_readers", "Reading processes that answer.", value=len(self.processes()))
        yield CounterMetricFamily("millpond_readers_replaced", "Reading processes that ended.", value=self.replaced)

    def metrics(self) -> Iterator[tuple[str, list[Metric]]]:
        """The counters of each reader that tells them, with its name."""
        yield from ((name, metrics) for name, metrics, _ in self._counts())

    def lookups_by_hour(self) -> Iterator[list[int]]:
        """The lookups that each reader answered in the hours of the last day."""
        yield from (lookups for _, _, lookups in self._counts())

    def _counts(self) -> Iterator[tuple[str, list[Metric], list[int]]]:
        for reader in self._readers:
            if reader.lock.acquire(timeout=ANSWER_SECONDS):  # it is held while the process starts
                try:
                    with suppress(EOFError, OSError):
                        yield f"reader-{reader.number}", *_counts_of(reader)
                finally:
                    reader.lock.release()


def _counts_of(reader: _Reader) -> tuple[list[Metric], list[int]]:
    """The counters of a reader, and its lookups by hour; none when it does not tell them in time."""
    if reader.channel is None or not reader.ready.is_set():
        return _NONE
    reader.requests += 1
    reader.channel.send(reader.requests)
    while reader.channel.poll(ANSWER_SECONDS):
        number, metrics, lookups = reader.channel.recv()
        if number == reader.requests:  # else an earlier answer came late
            return metrics, lookups
    return _NONE
