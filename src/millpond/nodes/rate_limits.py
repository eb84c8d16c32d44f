"""Limits on the requests of each token: a bucket that fills with time, and from which every request takes one.

Invariants:
* within any span of s seconds, at most `burst + s * per_second` requests of a token are let through;
* processes that share their buckets let no more through than one would;
* a bucket holds at most `burst`; a name that has not come for so long that its bucket is full again takes no memory.
"""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import blake2b

from millpond.clock import Clock
from millpond.errors import Unavailable

__all__ = ("BUCKETS_BYTES", "RateLimits", "SharedRateLimits")

_NAMES_MAX = 1024
"""Names beside each other before full buckets are looked for."""
_SHARED_BUCKET = struct.Struct("Qd")
"""The hash of a name, and the monotonic time at which its bucket is full again."""
_SHARED_MAX = 4096
BUCKETS_BYTES = _SHARED_MAX * _SHARED_BUCKET.size
"""The memory of the buckets that processes share."""


@dataclass(slots=True)
class _Bucket:
    """The requests that a name has left, as of an instant of monotonic time."""

    left: float
    at: float


class RateLimits:
    """The buckets of all tokens of one node. With `per_second` 0 nothing is limited."""

    def __init__(self, per_second: int, burst: int, clock: Clock) -> None:
        self.per_second, self.burst = per_second, max(burst, 1)
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}
        self._lock = threading.Lock()

    def need(self, name: str) -> None:
        """Take one request from the bucket of a name.

        Raises:
            Unavailable: kind `rate_limited`, with the seconds after which it is sent again.
        """
        seconds = self.take(name)
        if seconds > 0:
            raise Unavailable(
                "the token sends more requests than it may", kind="rate_limited", token=name,
                per_second=self.per_second, retry_after=math.ceil(seconds),
                hint="wait a moment, send several keys in one request, or raise server.token_requests_per_second",
            )  # fmt: skip

    def take(self, name: str) -> float:
        """Take one request from the bucket of a name: 0.0, or the seconds until there is one."""
        if not self.per_second:
            return 0.0
        now = self._clock.monotonic()
        with self._lock:
            bucket = self._buckets.get(name)
            if bucket is None:
                self._forget_full(now)
                bucket = self._buckets[name] = _Bucket(self.burst, now)
            bucket.left, bucket.at = self._left(bucket, now), now
            if bucket.left >= 1:
                bucket.left -= 1
                return 0.0
            return (1 - bucket.left) / self.per_second

    def _left(self, bucket: _Bucket, now: float) -> float:
        return min(self.burst, bucket.left + (now - bucket.at) * self.per_second)

    def _forget_full(self, now: float) -> None:
        if len(self._buckets) >= _NAMES_MAX:
            buckets = {name: bucket for name, bucket in self._buckets.items() if self._left(bucket, now) < self.burst}
            self._buckets = buckets


class SharedRateLimits(RateLimits):
    """The same, of buckets that several processes share: in memory that begins with zeros, under a lock of theirs."""

    def __init__(
        self, per_second: int, burst: int, clock: Clock, buckets: Callable[[], AbstractContextManager[memoryview]]
    ) -> None:
        super().__init__(per_second, burst, clock)
        self._shared = buckets

    def take(self, name: str) -> float:
        if not self.per_second:
            return 0.0
        key = int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) or 1
        with self._lock, self._shared() as table:
            now = self._clock.monotonic()
            offset = _offset(table, key)
            full_at = max(now, _SHARED_BUCKET.unpack_from(table, offset)[1])
            # The bucket has `burst - (full_at - now) * per_second` left, and one is taken from it.
            missing = full_at - now - (self.burst - 1) / self.per_second
            if missing > 0:
                return float(missing)
            _SHARED_BUCKET.pack_into(table, offset, key, full_at + 1 / self.per_second)
            return 0.0


def _offset(table: memoryview, key: int) -> int:
    """The offset of a name's bucket, or of the free one that it takes; names beyond the last free one share theirs."""
    for step in range(_SHARED_MAX):
        offset = (key + step) % _SHARED_MAX * _SHARED_BUCKET.size
        if _SHARED_BUCKET.unpack_from(table, offset)[0] in (0, key):
            return offset
    return key % _SHARED_MAX * _SHARED_BUCKET.size
