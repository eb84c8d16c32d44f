"""The place of a pond's streams: its own space, or Redis.

The place is written down in the pond, without its password, so that every process which opens the folder finds the same
streams. A place that is given is written over it; streams that are elsewhere are not moved.

Invariants:
* a pond with streams in its own space takes no other place: they would seem to be gone;
* a password is never written down: it is given each time, or stands in `MILLPOND_REDIS_PASSWORD`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from millpond.errors import Corrupt, Invalid
from millpond.events.check import check_store
from millpond.events.embedded.check import check_streams
from millpond.events.embedded.large_rows import LargeRows
from millpond.events.embedded.store import EmbeddedStore
from millpond.events.keyspaces import HEAD, LOCATION
from millpond.events.names import OWN_QUEUE
from millpond.events.protocol import Checkable, StreamRules, StreamStore

if TYPE_CHECKING:
    from millpond.clock import Clock
    from millpond.events.redis.store import RedisStore
    from millpond.kernel.space import ReadTransaction, Space
    from millpond.kernel.verify import Report
    from millpond.stores.objects import Beside

__all__ = ("PASSWORD", "check_location", "open_redis", "open_streams")

PASSWORD = "MILLPOND_REDIS_PASSWORD"
"""The environment variable with the password of Redis."""


def open_streams(
    space: Space, clock: Clock, url: str = "", rules: StreamRules | None = None, *, beside: Beside | None = None
) -> StreamStore:  # fmt: skip
    """The streams of a pond, whose space this is; `url` is that of a Redis; `beside`: objects for what is large.

    Raises:
        Invalid: this is no URL of Redis, or the pond has streams already.
    """
    with space.read() as tx:
        row, here = tx.get(LOCATION.packed), _has_streams(tx)
    if not url and row is None:
        if beside is None:
            return EmbeddedStore(space, clock, rules)
        return EmbeddedStore(LargeRows(space, beside.objects, clock), clock, rules, now_ms=beside.now_ms)
    if url and row is None and here:
        raise Invalid(
            "the pond has its streams of events in its own folder", kind="events_place",
            hint="leave events_store out, or make a new pond for Redis",
        )  # fmt: skip
    return _redis_store(space, clock, url, row, rules)


def check_location(space: Space, store: StreamStore) -> Report:
    """Check the streams in the space of a pond, and those in its store where that is elsewhere."""
    if isinstance(store, EmbeddedStore):
        return check_streams(store.space)
    report = check_streams(space) + check_store(store)
    return report + store.check() if isinstance(store, Checkable) else report


def _has_streams(tx: ReadTransaction) -> bool:
    """True when there are streams of users: Millpond's own story may stay behind."""
    everything, own = HEAD.range(), HEAD[OWN_QUEUE].range()
    before, after = everything._replace(stop=own.start), everything._replace(start=own.stop or own.start)
    return any(next(tx.keys(keys), None) is not None for keys in (before, after))


def open_redis(url: str, clock: Clock, rules: StreamRules | None = None) -> RedisStore:
    """The streams in a Redis; the password stands in the URL, or is in the environment.

    Raises:
        Invalid: this is no URL of Redis, or redis-py is not installed.
    """
    from millpond.events.redis.store import RedisStore

    return RedisStore(url, clock, rules, password=os.environ.get(PASSWORD))


def _redis_store(space: Space, clock: Clock, url: str, row: bytes | None, rules: StreamRules | None) -> StreamStore:
    try:
        store = open_redis(url or (row or b"").decode(), clock, rules)
    except UnicodeDecodeError as error:
        raise Corrupt("the place of the streams cannot be read", kind="events_damaged") from error
    noted = store.location.encode()
    if noted != row:
        space.write(lambda tx: tx.put(LOCATION.packed, noted))
    return store
