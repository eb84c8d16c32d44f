"""Streams in Redis keep the contract, on one server and on a cluster of three."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("redis")

import redis

from millpond.clock import ManualClock
from millpond.events.redis.keys import PondKeys
from millpond.events.redis.store import RedisStore
from tests.harness.contracts.stream_site import NOON, RULES
from tests.harness.contracts.streams import StreamContract
from tests.redis_servers import cluster, new_place, server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.events.names import StreamName
    from millpond.events.protocol import StreamStore


@dataclass
class RedisSite:
    """Stores at a place of their own in a server or a cluster, which other tests share."""

    url: str
    client: redis.Redis | redis.RedisCluster
    clock: ManualClock = field(default_factory=lambda: ManualClock(now=NOON))
    stores: list[RedisStore] = field(default_factory=list)

    def open(self) -> StreamStore:
        self.stores.append(RedisStore(self.url, self.clock, RULES))
        return self.stores[-1]

    def damage(self, stream: StreamName) -> None:
        raw = PondKeys(self.url.rpartition("#")[2]).keys_of(stream).raw
        entries = self.client.xrange(raw)
        self.client.delete(raw)
        for id_, fields in entries:
            row = fields[b"e"]
            self.client.xadd(raw, {b"e": row[:-1] + bytes([row[-1] ^ 1])}, id=id_)

    def close(self) -> None:
        for store in self.stores:
            store.close()
        self.client.close()


@pytest.mark.usefixtures("redis_server")
class TestRedisStreams(StreamContract):
    @pytest.fixture
    def site(self) -> Iterator[RedisSite]:
        site = RedisSite(server().url(new_place()), server().client())
        yield site
        site.close()


@pytest.mark.sample(24, of="streams of a cluster of Redis")
@pytest.mark.usefixtures("redis_cluster")
class TestRedisClusterStreams(StreamContract):
    @pytest.fixture
    def site(self) -> Iterator[RedisSite]:
        client = redis.RedisCluster("127.0.0.1", cluster().nodes[0].port)
        site = RedisSite(cluster().url(new_place()), client)
        yield site
        site.close()
