"""Following streams: each append publishes the new last id, and one connection a server listens for all followers.

Messages may be lost, with their connection or in a failover. So the heads of what is followed are looked at again and
again, and a message only makes it quicker.

Invariants:
* `follow` returns with a stream only when it has an event after the cursor, or ends before it; events are never guessed
  from silence;
* an event is noticed in `LOOK_SECONDS` at most while its server can be reached, whatever happened to messages;
* a channel is left when nobody followed its stream for `LINGER_SECONDS`: memory is bounded by what is followed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import redis

from millpond.clock import Clock
from millpond.errors import Closed, MillpondError
from millpond.events.names import StreamName
from millpond.events.redis.address import Address
from millpond.events.redis.keys import PondKeys, StreamKeys
from millpond.events.redis.rows import Head
from millpond.events.redis.servers import Call, Servers
from millpond.kernel.worker import begin_thread

__all__ = ("Followers",)

LOOK_SECONDS = 1.0
LINGER_SECONDS = 60.0
_NETWORK = (redis.exceptions.RedisError, OSError, ValueError)


@dataclass(slots=True)
class _Followed:
    """A stream that somebody follows, or did a moment ago: the newest id that is known, and its users.

    `lost`: the id up to which events were lost with all keys of their server.
    """

    keys: StreamKeys
    last_id: int = 0
    lost: int = 0
    users: int = 0
    left: float = 0.0


@dataclass(slots=True)
class _Listener:
    """A connection that listens to one server: the channels it is subscribed to."""

    pubsub: redis.client.PubSub
    channels: set[bytes] = field(default_factory=set)


class Followers:
    """The followers of a process, which share one connection to each server."""

    def __init__(self, servers: Servers, pond_keys: PondKeys, clock: Clock) -> None:
        self._servers = servers
        self._keys = pond_keys
        self._clock = clock
        self._news = threading.Condition()
        self._followed: dict[bytes, _Followed] = {}
        self._listeners: dict[Address, _Listener] = {}
        self._closed = False

    def follow(
        self, cursors: Mapping[StreamName, int], due: float | None, interrupted: Callable[[], bool]
    ) -> set[StreamName]:
        followed = {stream: self._entered(self._keys.keys_of(stream)) for stream in cursors}
        try:
            if streams := {stream for stream, after in cursors.items() if followed[stream].last_id > after}:
                return streams
            if due is None or self._clock.monotonic() < due:
                self._servers.discover()
                self._listen([entry.keys for entry in followed.values()])
            self._look([entry.keys for entry in followed.values()])
            with self._news:
                self._clock.wait_for(
                    self._news, lambda: self._closed or interrupted() or bool(_with_news(followed, cursors)), due
                )
                self._check_open()
                return _with_news(followed, cursors)
        finally:
            with self._news:
                for entry in followed.values():
                    self._leave(entry)

    def wake(self) -> None:
        """Let followers look whether they are interrupted."""
        with self._news:
            self._news.notify_all()

    def close(self) -> None:
        """Let followers go."""
        with self._news:
            self._closed = True
            self._news.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the streams are closed", kind="events_closed")

    def _entered(self, keys: StreamKeys) -> _Followed:
        with self._news:
            self._check_open()
            entry = self._followed.setdefault(keys.head, _Followed(keys))
            entry.users += 1
            return entry

    def _leave(self, entry: _Followed) -> None:
        """End one use of a stream; it lingers where a listener is subscribed to it, which forgets it in time."""
        entry.users -= 1
        entry.left = self._clock.monotonic()
        channel = entry.keys.head
        if entry.users == 0 and not any(channel in listener.channels for listener in self._listeners.values()):
            self._followed.pop(channel, None)

    def _note(self, channel: bytes, last_id: int, before: int = -1) -> None:
        """Note the last id of a stream; one that is less than what was known, `before`, is believed from its head."""
        with self._news:
            entry = self._followed.get(channel)
            if entry is not None and (last_id > entry.last_id or last_id < entry.last_id == before):
                entry.last_id = last_id
                self._news.notify_all()

    def _look(self, streams: Iterable[StreamKeys]) -> None:
        """Read the last ids of streams."""
        keys = list(streams)
        with self._news:
            last_ids = {channel: entry.last_id for channel, entry in self._followed.items()}
        rows = self._servers.run([Call(entry.shard, (b"GET", entry.head)) for entry in keys], repeat=True)
        for entry, row in zip(keys, rows, strict=True):
            last_id = 0 if row is None else Head.decode(row).last_id
            self._note(entry.head, last_id, last_ids.get(entry.head, -1))
        if absent := [entry for entry, row in zip(keys, rows, strict=True) if row is None]:
            self._look_for_losses(absent)

    def _look_for_losses(self, absent: Sequence[StreamKeys]) -> None:
        """Note up to which ids streams that are not there were lost."""
        calls = [Call(entry.shard, (b"GET", entry.lost)) for entry in absent]
        marks = self._servers.run(calls, repeat=True)
        if None in marks:
            self._servers.settle()
            marks = self._servers.run(calls, repeat=True)
        with self._news:
            for keys, mark in zip(absent, marks, strict=True):
                if (entry := self._followed.get(keys.head)) is not None:
                    entry.lost = max(entry.lost, int.from_bytes(mark or b"", "big"))
            self._news.notify_all()

    def _listen(self, streams: Iterable[StreamKeys]) -> None:
        """Subscribe to the channels of streams where that has not been done; threads do the rest."""
        with self._news:
            for keys in streams:
                address = self._servers.address_of(keys.shard)
                if address is None:
                    continue
                listener = self._listeners.get(address)
                if listener is None:
                    listener = self._listeners[address] = _Listener(self._new_pubsub(address))
                    begin_thread("events-redis", partial(self._run, address, listener))
                _subscribe(listener, keys.head)

    def _new_pubsub(self, address: Address) -> redis.client.PubSub:
        pool = redis.ConnectionPool(**self._servers.options(address))
        return redis.Redis(connection_pool=pool).pubsub(ignore_subscribe_messages=True)

    def _run(self, address: Address, listener: _Listener) -> None:
        """Listen to one server until the streams are closed, or nothing of it is followed."""
        looked = self._clock.monotonic()
        while not self._closed and self._listeners.get(address) is listener:
            try:
                message = listener.pubsub.get_message(timeout=LOOK_SECONDS)
            except _NETWORK:
                self._renew(address, listener)
                message = None
            if message is not None and message["type"] == "smessage":
                self._note(message["channel"], int.from_bytes(message["data"], "big"))
            if message is None or self._clock.monotonic() >= looked + LOOK_SECONDS:
                looked = self._clock.monotonic()
                with suppress(MillpondError):  # it is looked for again, and those who read hear of it
                    self._review(address, listener)
        with suppress(*_NETWORK):
            listener.pubsub.close()

    def _renew(self, address: Address, listener: _Listener) -> None:
        """Connect anew after the connection was lost, and subscribe to the same channels."""
        with suppress(*_NETWORK):
            listener.pubsub.close()
        self._servers.closed.wait(LOOK_SECONDS / 10)
        with suppress(MillpondError, *_NETWORK), self._news:
            listener.pubsub = self._new_pubsub(address)
            channels, listener.channels = listener.channels, set()
            for channel in channels:
                _subscribe(listener, channel)

    def _review(self, address: Address, listener: _Listener) -> None:
        """Look at the heads of what is followed here; leave channels that are not, or whose shard is elsewhere."""
        now = self._clock.monotonic()
        with self._news:
            for channel, entry in list(self._followed.items()):
                if entry.users == 0 and now - entry.left > LINGER_SECONDS:
                    del self._followed[channel]
            streams = [entry.keys for entry in self._followed.values() if entry.users]
        self._look([keys for keys in streams if keys.head in listener.channels])
        self._listen(streams)
        with self._news:
            here = {
                channel for channel, entry in self._followed.items()
                if self._servers.address_of(entry.keys.shard) == address
            }  # fmt: skip
            for channel in listener.channels - here:
                _unsubscribe(listener, channel)
            if not listener.channels:
                self._listeners.pop(address, None)


def _with_news(followed: Mapping[StreamName, _Followed], cursors: Mapping[StreamName, int]) -> set[StreamName]:
    """The streams that end after their cursors, or before them: a server may have lost their end, or all of them.

    Their heads were looked at since the cursors are known.
    """
    return {
        stream for stream, after in cursors.items()
        if followed[stream].last_id not in (0, after) or after < followed[stream].lost
    }  # fmt: skip


def _subscribe(listener: _Listener, channel: bytes) -> None:
    if channel not in listener.channels:
        listener.channels.add(channel)
        with suppress(*_NETWORK):  # the listener connects anew, and subscribes to all of its channels
            listener.pubsub.ssubscribe(channel)


def _unsubscribe(listener: _Listener, channel: bytes) -> None:
    listener.channels.discard(channel)
    with suppress(*_NETWORK):
        listener.pubsub.sunsubscribe(channel)
