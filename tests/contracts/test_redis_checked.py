"""`millpond verify` reads the streams of a pond wherever they are, and finds what is wrong there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("redis")

import redis

import millpond
from millpond.clock import ManualClock
from millpond.events.check import check_store
from millpond.events.compress import compress_stream
from millpond.events.days import DAY_MS
from millpond.events.names import StreamName
from millpond.events.protocol import Work
from millpond.events.redis.keys import PondKeys
from millpond.events.redis.store import RedisStore
from millpond.stores.memory import MemorySpace
from tests.contracts.test_redis_streams import RedisSite
from tests.contracts.test_streams import EmbeddedSite
from tests.harness.contracts.stream_site import NOON, STREAM, TODAY, append
from tests.redis_servers import cluster, new_place, server

pytestmark = pytest.mark.usefixtures("redis_server", "redis_cluster")


@pytest.fixture
def site() -> Iterator[RedisSite]:
    site = RedisSite(server().url(new_place()), server().client())
    yield site
    site.close()


def filled(site: RedisSite | EmbeddedSite) -> RedisStore:
    """Four days: two compressed, one closed, one open; and another stream."""
    store = site.open()
    for day in range(4):
        append(store, *(f"{day} {number}" * 40 for number in range(50)), time_ms=NOON + day * DAY_MS)
        site.clock.now += DAY_MS
    compress_stream(store, STREAM, TODAY + 1)
    store.close_day(STREAM, TODAY + 2)
    append(store, "x", stream=StreamName("etl", "names of any signs ÷ \x00 " * 20))
    return store  # type: ignore[return-value]


def keys(site: RedisSite) -> object:
    return PondKeys(site.url.rpartition("#")[2]).keys_of(STREAM)


def drop_an_entry(site: RedisSite) -> None:
    raw = keys(site).raw  # type: ignore[attr-defined]
    site.client.xdel(raw, site.client.xrange(raw)[1][0])


def damage_the_head(site: RedisSite) -> None:
    head = keys(site).head  # type: ignore[attr-defined]
    row = bytearray(site.client.get(head))
    row[1] = 7
    site.client.set(head, bytes(row))


def lose_the_batches(site: RedisSite) -> None:
    found = [key for key in site.client.keys("*") if site.client.type(key) == b"stream"]
    raw = keys(site).raw  # type: ignore[attr-defined]
    for key in found:
        if key != raw and site.url.rpartition("#")[2].encode() in key:
            site.client.delete(key)


def move_in_the_registry(site: RedisSite) -> None:
    due = keys(site).due[0]  # type: ignore[attr-defined]
    for member in site.client.zrange(due, 0, -1):
        site.client.zadd(due, {b"0000001" + member[7:]: 0})


def test_streams_that_are_whole_have_no_problems(site: RedisSite) -> None:
    here = EmbeddedSite(MemorySpace(), ManualClock(now=NOON))
    for one in (site, here):
        report = check_store(filled(one))
        assert report.ok, report.problems
        assert dict(report.counts)["stream"] == 2 and dict(report.counts)["registry"] == 4
    here.close()


@pytest.mark.parametrize("damage", [drop_an_entry, damage_the_head, lose_the_batches, move_in_the_registry])
def test_damage_is_found_and_other_streams_are_checked_all_the_same(
    site: RedisSite, damage: Callable[[RedisSite], None]
) -> None:
    store = filled(site)
    damage(site)
    report = check_store(store)
    assert not report.ok and dict(report.counts)["stream"] == 2, report


def test_changed_bytes_of_an_event_are_found(site: RedisSite) -> None:
    store = filled(site)
    site.damage(STREAM)
    (problem, *_) = check_store(store).problems
    assert str(STREAM) in problem.place and "damaged" in problem.found


def test_a_pond_whose_streams_are_in_redis_is_verified_there(tmp_path: Path, site: RedisSite) -> None:
    with millpond.open(tmp_path / "pond", events_store=site.url) as pond:
        pond.events.append("etl", "nightly", [b"one", b"two"])
        assert pond.verify().ok
        site.damage(STREAM)
        assert any("damaged" in problem.found for problem in pond.verify().problems)
        assert pond.events.store.due(Work.EXPIRE, 1 << 20, limit=1)


def lose_the_work(work: Work) -> Callable[[RedisSite], None]:
    def damage(site: RedisSite) -> None:
        site.client.delete(keys(site).due[list(Work).index(work)])  # type: ignore[attr-defined]

    return damage


def lose_the_name(site: RedisSite) -> None:
    site.client.zrem(keys(site).names, keys(site).name)  # type: ignore[attr-defined]


def lose_the_head(site: RedisSite) -> None:
    site.client.delete(keys(site).head)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lose_the_work(Work.COMPRESS), "lacks it under compress"),
        (lose_the_work(Work.EXPIRE), "lacks it under expire"),
        (lose_the_name, "list of streams"), (lose_the_head, "no head"),
    ],
    ids=["no work to compress", "no work to expire", "no name", "no head"],
)  # fmt: skip
def test_what_no_read_misses_is_found(site: RedisSite, damage: Callable[[RedisSite], None], found: str) -> None:
    store = filled(site)
    before = store.check()
    assert before.ok and before.checked, before.problems
    damage(site)
    assert any(found in problem.found for problem in store.check().problems)


def test_a_stream_that_is_to_be_forgotten_is_in_the_registry(site: RedisSite) -> None:
    store = filled(site)
    site.clock.now += 10 * DAY_MS
    assert store.expire(STREAM, TODAY + 4)
    assert store.due(Work.FORGET, TODAY + 400, limit=9) and store.check().ok and check_store(store).ok
    lose_the_work(Work.FORGET)(site)
    assert any("forget" in problem.found for problem in store.check().problems)


def test_all_nodes_of_a_cluster_are_looked_at() -> None:
    site = RedisSite(cluster().url(new_place()), redis.RedisCluster("127.0.0.1", cluster().nodes[0].port))
    store = site.open()
    assert isinstance(store, RedisStore)
    streams = [StreamName("etl", f"set-{number}") for number in range(60)]
    for stream in streams:
        append(store, "x", stream=stream)
    assert store.check().ok
    place = PondKeys(site.url.rpartition("#")[2])
    for stream in streams:
        site.client.delete(place.keys_of(stream).head)
    assert len(store.check().problems) == len(streams)
    site.close()
