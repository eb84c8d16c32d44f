"""The backend in Redis beyond the contract: servers that refuse, fail, forget scripts, lose answers or move slots."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

pytest.importorskip("redis")

import pyarrow.parquet as pq
import redis

import millpond
from millpond.clock import ManualClock, SystemClock
from millpond.errors import Invalid, Unavailable, Uncertain
from millpond.events.days import DAY_MS
from millpond.events.event import EventBatch, NewEvent
from millpond.events.ids import id_time_ms
from millpond.events.importing import import_file
from millpond.events.maintenance import EventMaintenance, MaintenanceRules
from millpond.events.names import StreamName
from millpond.events.protocol import Work
from millpond.events.redis.keys import PondKeys
from millpond.events.redis.servers import CHECK_SECONDS
from millpond.events.redis.store import RedisStore
from millpond.events.watchers import Watchers
from tests.harness.contracts.stream_site import NOON, RULES, TODAY, everything
from tests.harness.faulty_proxy import FaultyProxy, Trouble
from tests.redis_servers import RedisCluster, RedisServer, cluster, new_place, server

pytestmark = pytest.mark.usefixtures("process", "redis_server", "redis_cluster")

STREAM = StreamName("etl", "nightly")


def delivered(first: int, count: int, stream: StreamName = STREAM, time_ms: int = NOON) -> EventBatch:
    """Events of a source at positions that grow."""
    positions = range(first, first + count)
    return EventBatch(stream, [NewEvent(time_ms, b"%d" % number) for number in positions], "kafka:jobs/0", positions)


def numbers(store: RedisStore, stream: StreamName = STREAM) -> list[int]:
    return [int(event.payload) for event in everything(store, stream)]


@contextmanager
def opened(
    url: str, clock: ManualClock | SystemClock | None = None, password: str | None = None
) -> Iterator[RedisStore]:
    store = RedisStore(url, clock or ManualClock(now=NOON), RULES, password=password)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def own_server(*options: str) -> Iterator[RedisServer]:
    own = RedisServer(options)
    try:
        own.start()
        yield own
    finally:
        own.remove()


@pytest.fixture
def store() -> Iterator[RedisStore]:
    with opened(server().url(new_place())) as store:
        yield store


def keys_left(place: str) -> list[bytes]:
    """The keys of a place but for the marks of its shards."""
    with server().client() as client:
        return sorted(key for key in client.scan_iter(match=f"{place}:*", count=1000) if not key.endswith(b":lost"))


def test_a_server_that_evicts_keys_is_refused() -> None:
    with own_server("--maxmemory-policy", "allkeys-lru") as own, opened(own.url("p")) as store:
        with pytest.raises(Invalid) as caught:
            store.append([delivered(1, 1)])
        assert caught.value.kind == "redis_evicts" and "noeviction" in str(caught.value)


def test_a_full_server_stores_nothing_of_a_batch_and_everything_later() -> None:
    with own_server("--maxmemory", "1") as own, opened(own.url("p")) as store, own.client() as client:
        with pytest.raises(Unavailable) as caught:
            store.append([delivered(1, 3)])
        assert caught.value.kind == "redis_full" and not isinstance(caught.value, Uncertain)
        assert client.dbsize() == 0
        client.config_set("maxmemory", 0)
        assert store.append([delivered(1, 3)])[0].count == 3
        assert numbers(store) == [1, 2, 3]


def test_what_changes_at_a_running_server_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(now=NOON)
    with own_server() as own, opened(own.url("p"), clock) as store, own.client() as client:
        store.append([delivered(1, 1)])
        client.config_set("maxmemory-policy", "allkeys-lru")
        clock.advance(int(CHECK_SECONDS * 1000))
        for _ in range(2):
            with pytest.raises(Invalid) as caught:
                store.append([delivered(2, 1)])
            assert caught.value.kind == "redis_evicts" and len(store.losses.evicting) == 1
        client.config_set("maxmemory-policy", "noeviction")
        assert store.append([delivered(2, 1)])[0].count == 1 and not store.losses.evicting
        clock.advance(int(CHECK_SECONDS * 1000))
        assert numbers(store) == [1, 2] and not caplog.records and store.losses.count == 0
        client.flushall()
        clock.advance(int(CHECK_SECONDS * 1000))
        assert store.now_ms() == clock.now_ms() and store.streams(limit=1) == []
        assert "lost all of its keys" in caplog.text and store.losses.count == 1


def test_an_append_that_too_few_replicas_have_is_uncertain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.events.redis.servers.REPLICAS_MS", 1)
    place = new_place()
    with opened(f"redis://127.0.0.1:{server().port}/0?replicas=1#{place}") as store:
        with pytest.raises(Uncertain) as caught:
            store.append([delivered(1, 2)])
        assert (caught.value.kind, caught.value.values["lacking"]) == ("redis_replicas", 1)
        assert numbers(store) == [1, 2]


def test_a_password_is_needed_and_never_shown() -> None:
    with own_server("--requirepass", "open-sesame") as own:
        for password in (None, "guessed-it"):
            with opened(own.url("p"), password=password) as store, pytest.raises(Unavailable) as caught:
                store.append([delivered(1, 1)])
            assert caught.value.kind == "no_access" and "guessed-it" not in str(caught.value)
        with opened(own.url("p"), password="open-sesame") as store:
            assert store.append([delivered(1, 1)])[0].count == 1
            assert "open-sesame" not in store.location


def test_a_server_out_of_reach_is_unavailable_and_found_again() -> None:
    with own_server("--appendonly", "yes", "--appendfsync", "always") as own, opened(own.url("p")) as store:
        store.append([delivered(1, 2)])
        own.kill()
        with pytest.raises(Unavailable) as caught:
            store.append([delivered(3, 1)])
        assert caught.value.kind == "redis_unreachable"
        with pytest.raises(Unavailable):
            store.read(STREAM)
        own.start()
        assert numbers(store) == [1, 2]
        assert store.append([delivered(1, 4)])[0].count == 2
        assert numbers(store) == [1, 2, 3, 4]


def test_scripts_that_a_server_forgot_are_brought_again(store: RedisStore) -> None:
    for first in range(1, 10, 3):
        with server().client() as client:
            client.script_flush()
        store.append([delivered(first, 3)])
        assert numbers(store) == list(range(1, first + 3))
    index = store.index(STREAM)
    assert index is not None and index.count == 9


@pytest.mark.parametrize("stored", [False, True])
def test_a_lost_answer_is_uncertain_and_delivered_again_harmless(stored: bool) -> None:
    with FaultyProxy(server().port) as proxy, opened(server().url(new_place(), proxy.port)) as store:
        store.append([delivered(1, 2)])
        trouble = proxy.trouble(Trouble("cut", match=b"EVALSHA", down=stored))
        with pytest.raises(Uncertain):
            store.append([delivered(3, 2)])
        assert trouble.struck.is_set()
        proxy.mend()
        assert numbers(store) == ([1, 2, 3, 4] if stored else [1, 2])
        assert store.append([delivered(3, 2)])[0].count == (0 if stored else 2)
        assert numbers(store) == [1, 2, 3, 4]


def test_a_read_whose_answer_was_lost_is_made_again() -> None:
    with FaultyProxy(server().port) as proxy, opened(server().url(new_place(), proxy.port)) as store:
        store.append([delivered(1, 2)])
        proxy.trouble(Trouble("cut", match=b"EVALSHA", down=True))
        with pytest.raises(Unavailable):  # of one server, that is down it may be; a cluster is waited for
            store.read(STREAM)
        assert numbers(store) == [1, 2]


def test_batches_of_any_size_go_in_calls_of_bounded_size(store: RedisStore) -> None:
    streams = [StreamName("q", str(number)) for number in range(3)]
    batches = [
        EventBatch(stream, [NewEvent(NOON, bytes([turn, number]) * 100_000) for _ in range(3)])
        for turn in range(8) for number, stream in enumerate(streams)
    ]  # fmt: skip
    outcomes = store.append(batches)
    assert [outcome.count for outcome in outcomes] == [3] * 24
    for number, stream in enumerate(streams):
        found = [event.payload[:2] for event in everything(store, stream)]
        assert found == [bytes([turn, number]) for turn in range(8) for _ in range(3)]
    large = [NewEvent(NOON, bytes(16 << 20))] * 3
    assert store.append([EventBatch(STREAM, large)])[0].count == 3
    assert [len(event.payload) for event in everything(store)] == [16 << 20] * 3


def test_many_events_in_rows_of_one_are_read_in_pages(store: RedisStore) -> None:
    for first in range(0, 3000, 100):
        store.append([EventBatch(STREAM, [NewEvent(NOON, b"%d" % number)]) for number in range(first, first + 100)])
    assert numbers(store) == list(range(3000))
    events, after = 0, 0
    while page := store.read(STREAM, after, bytes_max=10_000).events:
        events, after = events + len(page), page[-1].number
        assert len(page) < 1000
    assert events == 3000


def test_the_registry_pages_over_all_shards(store: RedisStore) -> None:
    names = sorted(StreamName("q", f"{number:04}") for number in range(1500))
    store.append([EventBatch(name, [NewEvent(NOON, b"x")]) for name in names])
    listed, after = [], None
    while page := store.streams("q", after, limit=97):
        assert len(page) <= 97
        listed += page
        after = page[-1]
    assert listed == names
    due, last = [], None
    while found := store.due(Work.EXPIRE, TODAY, last, limit=300):
        due += found
        last = found[-1]
    assert [entry.stream for entry in due] == names


def test_followers_share_one_connection_and_are_woken(store: RedisStore) -> None:
    streams = [StreamName("q", str(number)) for number in range(30)]
    with ThreadPoolExecutor(60) as pool, server().client() as client:
        before = {connection["id"] for connection in client.client_list(_type="pubsub")}
        pending = [pool.submit(store.follow, {stream: 0}, None) for stream in streams * 2]
        channels = [PondKeys(store.location.partition("#")[2]).keys_of(stream).head for stream in streams]
        while not all(count for _, count in client.pubsub_shardnumsub(*channels)):
            threading.Event().wait(0.01)
        assert len({connection["id"] for connection in client.client_list(_type="pubsub")} - before) == 1
        store.append([EventBatch(stream, [NewEvent(NOON, b"x")]) for stream in streams])
        assert [future.result() for future in pending] == [{stream} for stream in streams * 2]


def test_a_follower_whose_messages_were_lost_is_woken_all_the_same() -> None:
    place = new_place()
    with FaultyProxy(server().port) as proxy:
        url = server().url(place, proxy.port)
        with opened(url, SystemClock()) as store, opened(server().url(place)) as other, ThreadPoolExecutor(1) as pool:
            assert store.follow({STREAM: 0}, 0.0) == set()
            waits = threading.Event()

            def interrupted() -> bool:
                waits.set()
                return False

            pending = pool.submit(store.follow, {STREAM: 0}, None, interrupted)
            waits.wait()
            proxy.cut()
            other.append([delivered(1, 1)])
            proxy.mend()
            assert pending.result(30) == {STREAM}


def test_a_machine_whose_clock_is_ahead_takes_no_stream_with_it() -> None:
    class Ahead(SystemClock):
        def now_ms(self) -> int:
            return super().now_ms() + 400 * DAY_MS

    real_ms = SystemClock().now_ms()
    with opened(server().url(new_place()), Ahead()) as store:
        appended = store.append([EventBatch(STREAM, [NewEvent(Ahead().now_ms(), b"ahead"), NewEvent(0, b"0")])])[0]
        assert abs(id_time_ms(appended.first_id) - real_ms) < 3_600_000 and abs(store.now_ms() - real_ms) < 3_600_000
        index = store.index(STREAM)
        assert index is not None and abs(index.last_day - real_ms // DAY_MS) <= 1
        report = EventMaintenance(store, Ahead(), MaintenanceRules(), RULES.forget_ms).expire()
        assert report.events == 0 and len(everything(store, STREAM)) == 2


def test_watchers_hear_on_after_a_failover_that_lost_events() -> None:
    place = new_place()
    with opened(server().url(place), SystemClock()) as store, server().client() as client:
        watchers = Watchers(store, SystemClock())
        try:
            store.append([delivered(0, 3)])
            replicated = {key: client.dump(key) for key in client.keys(f"{place}:*")}
            store.append([delivered(3, 3)])
            with watchers.watch(STREAM, 0) as watch:
                while not watch.caught_up:
                    watch.next_batch(None)
                for key, data in replicated.items():
                    client.restore(key, 0, data, replace=True)
                while not watch.gap:
                    watch.next_batch(None)
                assert store.append([delivered(3, 10)])[0].count == 10
                seen: list[int] = []
                while not seen or seen[-1] < 12:
                    seen += [int(event.payload) for event in watch.next_batch(None)]
                assert seen[-10:] == list(range(3, 13))
        finally:
            watchers.close()


def test_slots_that_move_are_followed() -> None:
    """A slot is migrated while streams in it are appended to: new keys go to the one server, old ones stay findable."""
    nodes, place = cluster().nodes, new_place()
    keys = PondKeys(place).keys_of(STREAM)
    slot = redis.crc.key_slot(keys.head)
    clients = [node.client() for node in nodes]
    ranges = clients[0].execute_command("CLUSTER SLOTS")
    (port,) = [owner[1] for first, last, owner, *_ in ranges if first <= slot <= last]
    source = [node.port for node in nodes].index(port)
    target = (source + 1) % len(nodes)
    ids = [client.execute_command("CLUSTER MYID").decode() for client in clients]
    with opened(cluster().url(place), SystemClock()) as store:
        store.append([delivered(1, 3)])
        clients[target].execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[source])
        clients[source].execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[target])
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(store.append, [delivered(2, 4)])
            while found := clients[source].execute_command("CLUSTER GETKEYSINSLOT", slot, 100):
                clients[source].execute_command("MIGRATE", "127.0.0.1", nodes[target].port, "", 0, 5000, "KEYS", *found)
            for client in clients:
                client.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[target])
            assert pending.result(60)[0].last_id == everything(store)[-1].number
        assert numbers(store) == [1, 2, 3, 4, 5]
        assert store.append([delivered(1, 6)])[0].count == 1
    for client in clients:
        client.close()


@pytest.mark.full
def test_a_replica_takes_over_and_what_was_uncertain_is_delivered_again() -> None:
    own = RedisCluster.start(primaries=3, replicas=3)
    try:
        with opened(own.url("p"), SystemClock()) as store:
            streams = [StreamName("q", str(number)) for number in range(12)]
            for stream in streams:
                store.append([delivered(1, 5, stream)])
            with own.nodes[0].client() as client:
                client.wait(1, 5000)
            own.nodes[0].kill()
            done: set[StreamName] = set()
            deadline = SystemClock().monotonic() + 60
            while len(done) < len(streams):
                assert SystemClock().monotonic() < deadline
                for stream in set(streams) - done:
                    try:
                        store.append([delivered(3, 5, stream)])
                    except Unavailable:
                        continue
                    done.add(stream)
            for stream in streams:
                assert numbers(store, stream) == [1, 2, 3, 4, 5, 6, 7]
    finally:
        own.remove()


def test_a_pond_has_its_streams_in_redis_and_remembers_that(tmp_path: object) -> None:
    url = server().url(new_place())
    with millpond.open(f"{tmp_path}/pond", events_store=url) as pond:
        assert isinstance(pond.events.store, RedisStore)
        pond.events.append("etl", "nightly", [b"a"])
    with millpond.open(f"{tmp_path}/pond") as pond:
        assert [event.payload for event in pond.events.read("etl", "nightly")] == [b"a"]
    with millpond.open(f"{tmp_path}/other") as pond:
        pond.events.append("etl", "nightly", [b"a"])
    with pytest.raises(Invalid) as caught:
        millpond.open(f"{tmp_path}/other", events_store=url)
    assert caught.value.kind == "events_place"
    with pytest.raises(Invalid):
        millpond.open(f"{tmp_path}/third", events_store="kafka://x")


def test_the_streams_of_a_pond_in_redis_are_exported_and_are_a_table(tmp_path: object) -> None:
    clock = ManualClock(now=NOON)
    with millpond.open(f"{tmp_path}/pond", events_store=server().url(new_place()), clock=clock) as pond:
        assert isinstance(pond, millpond.Pond)
        for kind in ("submitted", "running", "failed"):
            for job_set in ("nightly", "weekly/÷"):
                pond.events.append("etl", job_set, [NewEvent(clock.now, b"\xff", kind, {"job_id": kind[0]})] * 3)
            clock.advance(DAY_MS)
        assert pond.events.compress("1d").days == 4
        assert pond.events.export(f"{tmp_path}/etl.parquet", "etl", "week*", after="2023-11-15T00:00:00Z").events == 6
        wanted = [(event.id, event.kind) for event in pond.events.read("etl", "weekly/÷")]
        assert pond.sql("select job_set, count(*) as n from events group by all order by all").to_pylist() == [
            {"job_set": "nightly", "n": 9}, {"job_set": "weekly/÷", "n": 9},
        ]  # fmt: skip
        rows = pond.sql("select id, kind from events where job_set > 'o' order by id").to_pylist()
        exported = pq.read_table(f"{tmp_path}/etl.parquet", columns=["id", "kind"]).to_pylist()
        assert [(row["id"], row["kind"]) for row in rows] == wanted
        assert rows[3:] == exported
        instants = "select id, time, appended from events where job_set = 'weekly/÷' order by id"
        assert (
            pq.read_table(f"{tmp_path}/etl.parquet", columns=["id", "time", "appended"]).to_pylist()
            == (found := pond.sql(instants).to_pylist())[3:]
        )
        assert [(row["time"], row["appended"].timestamp() * 1_000) for row in found] == [
            (event.time, id_time_ms(event.number)) for event in pond.events.read("etl", "weekly/÷")
        ]
        one = "select day, headers['job_id'] as job from events where job = 'r' and queue = 'etl' and kind <> 'failed'"
        assert {(str(row["day"]), row["job"]) for row in pond.sql(one).to_pylist()} == {("2023-11-15", "r")}
        assert import_file(pond.events, f"{tmp_path}/etl.parquet", "again").events == 6


def test_a_user_without_the_right_to_scripts_has_no_access() -> None:
    with own_server() as own, own.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-script")
        with opened(own.url("p")) as store, pytest.raises(Unavailable) as caught:
            store.append([delivered(1, 1)])
        assert caught.value.kind == "no_access"
