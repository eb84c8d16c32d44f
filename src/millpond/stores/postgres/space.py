"""A space in a PostgreSQL database: for ponds whose small truths several machines share.

    PostgresSpace("postgresql://user@server:5432/database#name")

A write's function runs over an `Overlay` of one SERIALIZABLE transaction: it reads from the server, and what it
changes goes there in a few statements at its end. A reader is a REPEATABLE READ transaction.

Invariants:
* A write that was overtaken by another process is run again, from its beginning, a limited number of times. Writes of
  one process come one after another, so that they do not overtake each other.
* A transaction in which any statement failed is never committed, even if the function ignored the error.
* When the connection is lost while the commit is under way, the write is `Uncertain`; before, it was not made.
* Without `wait` a reader makes no connection, and queues for no lock of the table. It still waits for the server to
  answer, as every read does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg import sql

from millpond.errors import Invalid, MillpondError, Uncertain
from millpond.kernel.keys import KeyRange
from millpond.kernel.overlay import Overlay
from millpond.kernel.space import ReadTransaction, Transaction, WouldBlock, already_writing
from millpond.stores.postgres.errors import is_overtaken, translated
from millpond.stores.postgres.sessions import NAME_BYTES_MAX, Sessions
from millpond.stores.postgres.transaction import Changing, Moment

__all__ = ("Guard", "PostgresSpace")

RUNS_MAX = 100
PAUSE_SECONDS_MAX = 0.05
T = TypeVar("T")

# The SELECT fixes the moment, which a transaction gets with its first query only; a lock comes before it.
_READ = """
    BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL lock_timeout = '60s';
    LOCK TABLE millpond_space IN ACCESS SHARE MODE; SELECT 1
"""
_READ_AT_ONCE = """
    BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
    LOCK TABLE millpond_space IN ACCESS SHARE MODE NOWAIT; SELECT 1
"""
_WRITE = "BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE"
# Locks come before the moment. Who writes alone waits for all writes of the table that are under way, and keeps others
# waiting: they begin after it.
_WRITE_GUARDED = f"{_WRITE}; LOCK TABLE millpond_space IN ROW EXCLUSIVE MODE"
_WRITE_ALONE = f"{_WRITE}; SET LOCAL lock_timeout = '60s'; LOCK TABLE millpond_space IN SHARE ROW EXCLUSIVE MODE"
_TURN = "BEGIN; SET LOCAL lock_timeout = '2s'; SELECT pg_advisory_xact_lock(hashtextextended({}, 0))"
_GUARD = "; SELECT value FROM millpond_space WHERE space = {} AND key = {}"


class Guard(NamedTuple):
    """A row that every transaction reads as it begins, on the same journey; `check` refuses what it must not be.

    `PostgresSpace.write_alone` changes the row: no write that began before it is committed after it.
    """

    key: bytes
    check: Callable[[bytes | None], None]


class _Overtaken(Exception):
    """Another transaction was committed that this one cannot come after: it is to be run again."""

    def __init__(self, error: psycopg.Error) -> None:
        super().__init__(str(error))
        self.error = error


class PostgresSpace:
    """A `Space` in a database: the rows that have its name, which is what follows the `#` of its URL.

    `durable=False` commits without waiting for the server's disk: a crash of it may lose the last writes, but no part
    of one.

    Raises:
        Invalid: the URL is none, or has no name of 1 to 63 bytes behind its `#`.
        Unavailable: the server cannot be reached, or does not let the user in.
    """

    def __init__(self, url: str, *, durable: bool = True, guard: Guard | None = None) -> None:
        server, _, name = url.rpartition("#")
        if not 0 < len(name.encode()) <= NAME_BYTES_MAX or not server:
            hint = "such as postgresql://user@server:5432/database#name"
            raise Invalid("a space in PostgreSQL has a URL with a name behind #", kind="space_url", hint=hint)
        self.name = name
        self._writing = threading.Lock()
        self._writer: int | None = None
        self._sessions = Sessions(server, name, durable=durable)
        self._guard, self._guarded = guard, ""
        if guard is not None:
            self._guarded = sql.SQL(_GUARD).format(sql.Literal(name), sql.Literal(guard.key)).as_string()

    @contextmanager
    def read(self, *, wait: bool = True) -> Iterator[ReadTransaction]:
        connection = self._begin_reading(wait)
        moment = Moment(connection, self.name)
        transaction = Overlay(moment)
        try:
            yield transaction
        finally:
            transaction.end()
            moment.end()
            self._end(connection)

    def read_together(
        self, keys: Sequence[bytes], ranges: Sequence[KeyRange]
    ) -> tuple[dict[bytes, bytes], list[bytes | None]]:
        for again in (True, False):
            connection = self._sessions.take()
            moment = Moment(connection, self.name)  # one statement is a transaction of its own
            try:
                rows = self._together(moment, keys, ranges)
            except MillpondError:
                lost = connection.closed
                self._end(connection)
                if not (lost and again):
                    raise
            else:
                self._sessions.give_back(connection)
                return rows
        raise AssertionError("the second time returns or raises")

    def _together(
        self, moment: Moment, keys: Sequence[bytes], ranges: Sequence[KeyRange]
    ) -> tuple[dict[bytes, bytes], list[bytes | None]]:
        if self._guard is None:
            return moment.get_together(keys, ranges)
        rows, last = moment.get_together([*keys, self._guard.key], ranges)
        own = rows.get(self._guard.key) if self._guard.key in keys else rows.pop(self._guard.key, None)
        self._guard.check(own)
        return rows, last

    def write(self, change: Callable[[Transaction], T]) -> T:
        return self._write(change, _WRITE if self._guard is None else _WRITE_GUARDED)

    def write_alone(self, change: Callable[[Transaction], T]) -> T:
        """As `write`, while no space with a guard is written in the database.

        Raises: as `write`; `Unavailable`, kind `space_locked`, when others write for a minute.
        """
        return self._write(change, _WRITE_ALONE)

    def _write(self, change: Callable[[Transaction], T], how: str) -> T:
        if self._writer == threading.get_ident():
            raise already_writing()
        with self._writing:
            self._writer = threading.get_ident()
            try:
                return self._run_often(change, how)
            finally:
                self._writer = None

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """A turn among the processes that write to the space and ask for one, first come, first served.

        It is a courtesy that saves runs which would be overtaken: whoever waits too long goes on without it.
        """
        connection = self._sessions.take()
        try:
            with suppress(psycopg.Error):
                connection.execute(sql.SQL(_TURN).format(sql.Literal(self.name)), prepare=False)
            yield True
        finally:
            self._end(connection)

    def close(self) -> None:
        self._sessions.close()

    def _begin_reading(self, wait: bool) -> psycopg.Connection:
        try:
            return self._begin(_READ if wait else _READ_AT_ONCE, connect=wait)
        except MillpondError as error:
            if wait or error.kind not in ("space_locked", "space_unreachable"):
                raise
            raise WouldBlock("the read would have to wait", kind="would_block", space=self.name) from error

    def _begin(self, how: str, *, connect: bool = True) -> psycopg.Connection:
        """A connection at the beginning of a transaction; one that was idle when the server went away is replaced."""
        for again in (True, False):
            connection = self._sessions.take(connect=connect)
            try:
                cursor = connection.execute((how + self._guarded).encode(), prepare=False)
                self._check(cursor)
            except psycopg.Error as error:
                lost = connection.closed
                self._end(connection)
                if not (lost and again and connect):
                    raise translated(error, self.name) from error
            except MillpondError:
                self._end(connection)
                raise
            else:
                return connection
        raise AssertionError("the second time returns or raises")

    def _check(self, cursor: psycopg.Cursor[Any]) -> None:
        """Let the guard see its row, the result of the last statement."""
        if self._guard is None:
            return
        while cursor.nextset():
            pass
        row = cursor.fetchone()
        self._guard.check(None if row is None else row[0])

    def _end(self, connection: psycopg.Connection) -> None:
        """Give a connection back, outside any transaction."""
        with suppress(psycopg.Error):
            connection.execute("ROLLBACK", prepare=False)
            self._sessions.give_back(connection)
            return
        self._sessions.lose(connection)

    def _run_often(self, change: Callable[[Transaction], T], how: str) -> T:
        pause = threading.Event()
        for run in range(RUNS_MAX):
            try:
                return self._run(change, how)
            except _Overtaken as overtaken:
                error = overtaken.error
                pause.wait(min(PAUSE_SECONDS_MAX, 0.001 * run))  # the first time at once: mostly that is enough
        raise translated(error, self.name) from error

    def _run(self, change: Callable[[Transaction], T], how: str) -> T:
        connection = self._begin(how)
        moment = Moment(connection, self.name)
        transaction = Changing(moment)
        try:
            result = change(transaction)
            transaction.store()
            if moment.failure is None:
                self._commit(connection, moment, changed=transaction.changed)
        except MillpondError:
            if moment.failure is None or not is_overtaken(moment.failure):
                raise
        finally:
            transaction.end()
            moment.end()
            self._end_write(connection)
        if moment.failure is None:
            return result
        if is_overtaken(moment.failure):
            raise _Overtaken(moment.failure)
        raise translated(moment.failure, self.name) from moment.failure

    def _commit(self, connection: psycopg.Connection, moment: Moment, *, changed: bool) -> None:
        try:
            connection.execute("COMMIT", prepare=False)
        except psycopg.Error as error:
            moment.failure = error
            if connection.closed and changed:
                raise Uncertain(
                    "the connection was lost during the commit", kind="commit_lost", space=self.name,
                    reason=" ".join(str(error).split()), hint="look whether it was made",
                ) from error  # fmt: skip

    def _end_write(self, connection: psycopg.Connection) -> None:
        if connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            self._sessions.give_back(connection)
        else:
            self._end(connection)
