"""The meaning of PostgreSQL's errors to a caller: one table, by SQLSTATE and its classes."""

from __future__ import annotations

import re

import psycopg

from millpond.errors import Corrupt, Internal, MillpondError, Unavailable

__all__ = ("is_overtaken", "translated")

_OVERTAKEN = frozenset({"40001", "40P01"})
"""Serialization failure, deadlock: nothing was changed, and the same may succeed when it is run again."""

_MEANINGS = {
    "25006": Unavailable(
        "the server takes no writes", kind="no_access", hint="connect to the primary server, not to a standby"
    ),
    "42501": Unavailable(
        "the server's user may not use the table", kind="no_access", hint="grant the user the table millpond_space"
    ),
    "53100": Unavailable(
        "the server's disk is full; nothing was changed", kind="disk_full", hint="free some space, and try again"
    ),
    "53300": Unavailable(
        "the server has no more connections", kind="readers_full", hint="close some, or raise its max_connections"
    ),
    "55P03": Unavailable(
        "the table is locked for long", kind="space_locked", hint="wait for what locks it, such as VACUUM FULL"
    ),
    "08001": Unavailable(
        "the server cannot be reached", kind="space_unreachable", hint="check the URL, and the network"
    ),
    "08P01": Unavailable(
        "the server and this machine agree on no encryption",
        kind="no_access",
        hint="check sslmode and sslrootcert of the URL",
    ),
    "57014": Unavailable("the server canceled the statement", kind="space_timeout", hint="raise its statement_timeout"),
}
_CLASSES = {
    "08": Unavailable(
        "the connection to the server was lost", kind="space_unreachable", hint="see to the server and the network"
    ),
    "28": Unavailable(
        "the server does not let the user in",
        kind="no_access",
        hint="check the user, and the password: in the URL, PGPASSWORD or ~/.pgpass",
    ),
    "3D": Unavailable("the server has no such database", kind="space_not_found", hint="create it, or check the URL"),
    "40": Unavailable(
        "others changed the same rows each time", kind="space_contended", hint="try again later, or with fewer writers"
    ),
    "53": Unavailable("the server has reached a limit", kind="limit_reached", hint="see to its memory and disk"),
    "57": Unavailable("the server shuts down or starts", kind="space_unreachable", hint="wait for it, and try again"),
    "58": Unavailable(
        "the server's disk failed; nothing was changed", kind="disk_full", hint="see to the server's disk"
    ),
}

_WORDS = {
    "28000": re.compile(r"authentication failed|no password supplied|pg_hba\.conf|role .* does not exist|log in"),
    "3D000": re.compile(r"database .* does not exist"),
    "53300": re.compile(r"too many (clients|connections)|connection slots"),
    "57P03": re.compile(r"starting up|shutting down|recovery|not (yet )?accepting"),
    "08P01": re.compile(r"certificate|SSL|GSSAPI"),
}
"""A server that refuses a connection says why in words: libpq has no SQLSTATE of it."""


def is_overtaken(error: psycopg.Error) -> bool:
    """True when the transaction lost against another one, and may be run again."""
    return error.sqlstate in _OVERTAKEN


def translated(error: psycopg.Error, location: str, *, connecting: bool = False) -> MillpondError:
    """The error to raise `from` PostgreSQL's own, which happened in the space at `location`, or while `connecting`."""
    reason = " ".join(str(error).split())
    state = error.sqlstate
    if state is None and isinstance(error, psycopg.OperationalError):
        state = _of_refusal(error, reason) if connecting else "08000"
    if state is None:
        return Internal("psycopg failed unexpectedly", kind="postgres", space=location, reason=reason)
    if state.startswith("XX00"):
        if state == "XX000":
            return Internal("PostgreSQL failed unexpectedly", kind="postgres", space=location, reason=reason)
        hint = "restore the database from a copy"
        return Corrupt("the server found damaged files", kind="space_damaged", hint=hint, space=location, reason=reason)
    meaning = _MEANINGS.get(state) or _CLASSES.get(state[:2])
    if meaning is None:
        return Internal("PostgreSQL failed unexpectedly", kind="postgres", space=location, state=state, reason=reason)
    return Unavailable(meaning.message, kind=meaning.kind, hint=meaning.hint, space=location, reason=reason)


def _of_refusal(error: psycopg.Error, reason: str) -> str:
    """The SQLSTATE of a connection that did not come about."""
    said = next((state for state, words in _WORDS.items() if words.search(reason)), "")
    # Also where the server speaks another language: it asked for a password, and that was the end.
    attempt = error.pgconn
    of_password = attempt is not None and (attempt.needs_password or attempt.used_password)
    return said or ("28000" if of_password else "08001")
