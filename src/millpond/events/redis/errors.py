"""The meaning of Redis' errors to a caller."""

from __future__ import annotations

import redis

from millpond.errors import Corrupt, Internal, Invalid, MillpondError, Unavailable

__all__ = ("is_passing", "is_unmarked", "translated")

_PASSING = (
    redis.exceptions.TryAgainError, redis.exceptions.ClusterDownError, redis.exceptions.BusyLoadingError,
    redis.exceptions.ReadOnlyError, redis.exceptions.MovedError,
)  # fmt: skip
"""Errors of a server that did nothing: it starts, gives slots away, or is no primary any more."""


def is_passing(error: Exception) -> bool:
    """True when the server did nothing, and soon may."""
    return isinstance(error, _PASSING) or str(error).startswith(("BUSY ", "NOREPLICAS", "UNBLOCKED"))


def is_unmarked(error: Exception) -> bool:
    """True when a script found no mark in a shard, and did nothing: the server has lost its keys."""
    return "MILLPOND_LOST" in str(error)


def translated(error: Exception, location: str) -> MillpondError:
    """The error to raise `from` Redis' own; the server did nothing of what was to be done."""
    reason = " ".join(str(error).split())
    if "MILLPOND_DAMAGED" in reason:
        hint = "restore the streams from a copy of Redis"
        return Corrupt("a batch of events is missing in Redis", kind="events_damaged", hint=hint, place=location)
    if "MILLPOND_FORMAT" in reason:
        hint = "use the version of Millpond that wrote them"
        return Invalid("another version of Millpond wrote the streams", kind="events_format", hint=hint, place=location)
    meaning = _meaning(error, reason)
    if meaning is None:
        return Internal("Redis failed unexpectedly", kind="redis", place=location, reason=reason)
    message, kind, hint = meaning
    return Unavailable(message, kind=kind, hint=hint, place=location, reason=reason)


def _meaning(error: Exception, reason: str) -> tuple[str, str, str] | None:
    if isinstance(error, redis.exceptions.OutOfMemoryError) or "OOM " in reason:
        return (
            "Redis has no memory left; nothing was changed",
            "redis_full",
            "compress or expire days, or raise its maxmemory",
        )
    if isinstance(
        error,
        redis.exceptions.AuthenticationError | redis.exceptions.NoPermissionError | redis.exceptions.AuthorizationError,
    ):
        return (
            "Redis does not let the user in, or not do this", "no_access",
            "check the user, his password, and his rights to keys, channels and commands",
        )  # fmt: skip
    if "MISCONF" in reason:
        return ("Redis cannot write to its disk; nothing was changed", "disk_full", "see to the server's disk")
    if is_passing(error):
        return ("Redis starts, or its cluster changes", "redis_unreachable", "wait, and try again")
    if isinstance(error, redis.exceptions.ConnectionError | redis.exceptions.TimeoutError | OSError):
        return ("Redis cannot be reached", "redis_unreachable", "see to the server and the network")
    return None
