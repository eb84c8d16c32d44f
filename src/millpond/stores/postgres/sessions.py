"""Connections to a PostgreSQL server, and the table that holds spaces.

    millpond_space    space text     the space's name        } primary key
                      key   bytea    compared byte by byte   }
                      value bytea

Invariants:
* A connection serves one transaction at a time; between two it is idle, and outside any transaction.
* A connection that failed is closed, and so are the idle ones: they were most likely lost with it.
* A network that swallows packets is an error after a limit, never an endless wait.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from millpond.errors import Closed, Invalid
from millpond.kernel.space import WouldBlock
from millpond.stores.postgres.errors import translated

__all__ = ("NAME_BYTES_MAX", "Sessions")

NAME_BYTES_MAX = 63
"""A row of the primary key's index has at most 2,704 bytes: a key of 2,560, a name, and some for headers."""

IDLE_MAX = 8
CONNECT_SECONDS = 10
SILENCE_SECONDS = 30
"""For how long sent bytes may stay unconfirmed by the server's machine before the connection counts as lost."""

_TABLE_NAME = "SELECT to_regclass('millpond_space')"
_TABLE = """
    BEGIN;
    SELECT pg_advisory_xact_lock(7813298467);  -- of two that create it at once, one would fail
    CREATE TABLE IF NOT EXISTS millpond_space (
        space text COLLATE "C" NOT NULL, key bytea NOT NULL, value bytea NOT NULL, PRIMARY KEY (space, key)
    );
    COMMIT
"""
# Rows are read by the primary key and in its order. Without statistics the planner would sort a whole range for a page.
_SESSION = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off"
_DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
_QUICK = "SET synchronous_commit = off"


class Sessions:
    """The connections of one space, shared by threads.

    Raises:
        Invalid: the URL is none.
        Unavailable: the server cannot be reached, or does not let the user in.
    """

    def __init__(self, url: str, address: str, *, durable: bool) -> None:
        self.address = address
        self._durable = durable
        self._options = _options(url, address)
        self._idle: list[psycopg.Connection] = []
        self._lock = threading.Lock()
        self._closed = False
        first = self.take()
        try:
            if first.execute(_TABLE_NAME).fetchone() == (None,):
                first.execute(_TABLE, prepare=False)
        except psycopg.Error as error:
            first.close()
            raise translated(error, address) from error
        self.give_back(first)

    def take(self, *, connect: bool = True) -> psycopg.Connection:
        """An idle connection, or else a new one.

        Raises:
            WouldBlock: none is idle, and without `connect` none is made.
            Closed: the sessions were closed.
            Unavailable: as when they were opened.
        """
        with self._lock:
            if self._closed:
                raise Closed("the space is closed", kind="space_closed", space=self.address)
            while self._idle:
                connection = self._idle.pop()
                if not connection.closed:
                    return connection
        if not connect:
            raise WouldBlock("a connection would have to be made", kind="would_block", space=self.address)
        return self._connect()

    def give_back(self, connection: psycopg.Connection) -> None:
        """Retain a connection that is outside any transaction, or close it."""
        with self._lock:
            if not self._closed and len(self._idle) < IDLE_MAX and not connection.closed:
                self._idle.append(connection)
                return
        connection.close()

    def lose(self, connection: psycopg.Connection) -> None:
        """Close a connection that failed, and those that are idle."""
        with self._lock:
            lost, self._idle = [connection, *self._idle], []
        for session in lost:
            with suppress(psycopg.Error):
                session.close()

    def close(self) -> None:
        """Close what is idle now, and what is in use when it is given back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _connect(self) -> psycopg.Connection:
        connection = None
        try:
            connection = psycopg.connect(self._options, autocommit=True)
            connection.execute(_SESSION, prepare=False)
            connection.execute(_DURABLE if self._durable else _QUICK, prepare=False)
        except psycopg.Error as error:
            if connection is not None:
                connection.close()
            raise translated(error, self.address, connecting=connection is None) from error
        return connection


def _options(url: str, address: str) -> str:
    """The URL's own parameters, over ours."""
    try:
        options = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        hint = "such as postgresql://user@server:5432/database"
        raise Invalid("this is no URL of PostgreSQL", kind="space_url", hint=hint, space=address) from error
    ours: dict[str, Any] = {
        "connect_timeout": CONNECT_SECONDS, "application_name": "millpond", "keepalives_idle": SILENCE_SECONDS,
        "tcp_user_timeout": SILENCE_SECONDS * 1000,
    }  # fmt: skip
    return make_conninfo("", **(ours | options))
