"""Streams in Redis against the model, on one server and on a cluster."""

from __future__ import annotations

import pytest

pytest.importorskip("redis")

import redis

from millpond.events.check import check_store
from millpond.events.protocol import Checkable
from tests.contracts.test_redis_streams import RedisSite
from tests.harness.contracts.stream_machine import machine_case
from tests.redis_servers import cluster, new_place, server
from tests.rings.sampling import examples

pytestmark = pytest.mark.usefixtures("redis_server", "redis_cluster")


class CheckedSite(RedisSite):
    """A site whose keys are checked at the end."""

    def close(self) -> None:
        store = self.open()
        assert isinstance(store, Checkable)
        report = check_store(store) + store.check()
        assert report.ok, report.problems
        super().close()


def _on_a_server() -> RedisSite:
    return CheckedSite(server().url(new_place()), server().client())


def _on_a_cluster() -> RedisSite:
    return CheckedSite(cluster().url(new_place()), redis.RedisCluster("127.0.0.1", cluster().nodes[0].port))


TestRedisStreams = machine_case(_on_a_server, max_examples=examples(5, 15), stateful_step_count=30)


@pytest.mark.full
class TestManyRedisStreams(machine_case(_on_a_server, max_examples=300, stateful_step_count=50)):  # type: ignore[misc]
    """The same at length."""


@pytest.mark.full
class TestRedisClusterStreams(machine_case(_on_a_cluster, max_examples=50, stateful_step_count=40)):  # type: ignore[misc]
    """The same on a cluster."""
