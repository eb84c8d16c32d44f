"""PostgreSQL as the head of a pond in a bucket: it keeps the contract of spaces, and is never taken for another one."""

from __future__ import annotations

import os
from contextlib import closing
from itertools import count
from typing import TYPE_CHECKING, cast

import psycopg
import pytest
from typer.testing import CliRunner

import millpond
from millpond.cli.main import app
from millpond.clock import ManualClock, SystemClock
from millpond.errors import Corrupt, Fenced, Invalid, MillpondError, Unavailable
from millpond.kernel import steps
from millpond.kernel.keys import EVERYTHING
from millpond.maps.loads.bucket_location import bucket_location
from millpond.stores.bucket_space.batch_log import batch_name
from millpond.stores.bucket_space.forms import Trimmed
from millpond.stores.objects import MemoryObjects, open_objects
from millpond.stores.postgres import head
from millpond.stores.postgres.head import Home, claim, full_address, open_head, same_database
from millpond.stores.postgres.space import PostgresSpace
from millpond.testing.contracts.concurrent_spaces import ConcurrentSpaceContract
from millpond.testing.contracts.space_driver import SpaceDriver
from millpond.testing.contracts.spaces import SpaceContract
from tests.harness.buckets.headed import new_location, open_at
from tests.harness.buckets.served import look_into, put_into
from tests.harness.faulty_proxy import FaultyProxy, Trouble
from tests.postgres_server import server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond.kernel.space import Space, Transaction
    from millpond.pond import Pond
    from millpond.stores.bucket_space.space import BucketSpace

pytestmark = pytest.mark.usefixtures("process", "postgres_server")

_NUMBERS = count(1)


@pytest.mark.sample(6, of="spaces at home in a database")
class TestSpace(SpaceContract):
    @pytest.fixture
    def space(self, tmp_path: Path) -> Iterator[Space]:
        space = open_at(new_location(str(tmp_path)), max_staleness=1.0)
        yield space
        space.close()

    def look_behind(self, space: Space, key: bytes) -> bytes | None:
        return look_into(cast("BucketSpace", space).objects, key)

    def put_behind(self, space: Space, key: bytes, value: bytes) -> None:
        put_into(cast("BucketSpace", space).objects, key, value)
        cast("BucketSpace", space).follow()


@pytest.mark.full
class TestAtOnce(ConcurrentSpaceContract):
    driver = SpaceDriver("tests.harness.buckets.headed:open_at", locate=lambda folder: new_location(str(folder)))


# -- the two sides ------------------------------------------------------------------------------------


def opened(bucket: MemoryObjects, home: Home, **settings: object) -> BucketSpace:
    about = {"max_staleness": 0, "before_writing": lambda: None, **settings}
    return open_head(home, server().url(), bucket, SystemClock(), **about)  # type: ignore[arg-type]


def claimed(bucket: str = "s3://bucket/pond") -> Home:
    return claim(server().url(), bucket, SystemClock().random_id())


def sql(statement: str, home: Home, *values: object) -> None:
    with psycopg.connect(server().url(), autocommit=True) as connection:
        connection.execute(statement.encode(), (home.home.partition("#")[2], *values))


def counted(tx: Transaction) -> int:
    number = int(tx.get(b"count") or b"0") + 1
    tx.put(b"count", b"%d" % number)
    return number


def kind_of(act: object, expected: type[MillpondError]) -> str:
    with pytest.raises(expected) as caught:
        act()  # type: ignore[operator]
    assert caught.value.hint, caught.value
    return caught.value.kind


def test_trimmed_batches_leave_no_rows_and_their_names_stay_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "CHECKPOINT_BATCHES", 4)
    monkeypatch.setattr(head, "FOLLOWER_MS", 0)
    bucket, home = MemoryObjects(), claimed()
    with closing(opened(bucket, home)) as space, closing(opened(bucket, home, max_staleness=1e9)) as late:
        for number in range(1, 22):
            assert space.write(counted) == number
        names = [info.name for info in space.objects.list("log")]
        assert 0 < len(names) < 10 and names[-1] == batch_name(21)
        assert isinstance(head.DatabaseLog(space.objects, SystemClock()).read(1), Trimmed)  # type: ignore[arg-type]
        with pytest.raises(millpond.Conflict):
            space.objects.swap(batch_name(1), b"", None)
        late.follow()
        assert late.write(counted) == 22
    with closing(opened(bucket, home)) as space, space.read() as tx:
        assert list(tx.scan(EVERYTHING)) == [(b"count", b"22")]


def test_a_database_that_was_emptied_or_set_back_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket, home = MemoryObjects(), claimed()
    space = opened(bucket, home)
    for _ in range(3):
        space.write(counted)
    sql("DELETE FROM millpond_space WHERE space = %s AND key = %s", home, batch_name(3).encode())
    assert kind_of(lambda: space.write(counted), Corrupt) == "head_behind"  # it knows of more than is there
    space.close()
    bucket.put("space/witness", b'{"batch":3,"chain":"00","format":1}')
    assert kind_of(lambda: opened(bucket, home), Corrupt) == "head_behind"
    bucket.delete("space/witness")  # the owner goes on without it
    space = opened(bucket, home)
    assert space.write(counted) == 3
    space.close()
    bucket.put("space/witness", b'{"batch":3,"chain":"00","format":1}')
    assert kind_of(lambda: opened(bucket, home), Corrupt) == "head_behind"  # a copy that went on by itself
    bucket.put("space/witness", b"no")
    assert kind_of(lambda: opened(bucket, home), Corrupt) == "head_damaged"
    bucket.delete("space/witness")
    space = opened(bucket, home)
    sql("DELETE FROM millpond_space WHERE space = %s", home)
    for act in (lambda: space.write(counted), space.follow, lambda: opened(bucket, home)):
        assert kind_of(act, Corrupt) == "head_missing"
    space.close()


def test_a_witness_is_left_first_now_and_then_and_at_the_end() -> None:
    bucket, home, clock = MemoryObjects(), claimed(), ManualClock()

    def witnessed() -> bytes:
        return bucket.get("space/witness").to_pybytes().partition(b",")[0]

    space = open_head(home, server().url(), bucket, clock, max_staleness=0, before_writing=lambda: None)
    other = opened(bucket, home)
    space.write(counted)
    assert witnessed() == b'{"batch":1'
    space.write(counted)
    assert witnessed() == b'{"batch":1'
    clock.advance(11_000)
    other.write(counted)
    assert witnessed() == b'{"batch":3'
    other.write(counted)
    space.write(counted)
    assert witnessed() == b'{"batch":5'
    other.close()
    assert witnessed() == b'{"batch":5'
    space.write(counted)
    space.close()
    assert witnessed() == b'{"batch":6'


def test_commits_whose_answers_are_lost_double_nothing() -> None:
    with FaultyProxy(server().port) as proxy:
        url = server().url(proxy.port)
        home, bucket = claim(url, "s3://bucket/pond", SystemClock().random_id()), MemoryObjects()
        space = open_head(home, url, bucket, SystemClock(), max_staleness=0, before_writing=lambda: None)
        for number in range(1, 7):
            proxy.trouble(Trouble("cut", match=b"COMMIT", down=number % 2 == 1))
            assert space.write(counted) == number
            proxy.mend()
        assert len(list(space.objects.list("log"))) == 6
        space.close()


def test_ponds_never_share_a_database_by_accident() -> None:
    bucket, home = MemoryObjects(), claimed()
    assert claim(home.home.replace("millpond@", f"millpond:{server().password}@"), home.bucket, "0") == home
    named = full_address(server().url(), home.home.partition("#")[2])
    assert kind_of(lambda: claim(named, "s3://bucket/other", "0"), Invalid) == "head_other"
    mirrored = Home(home.id, "s3://mirror/pond", home.home)
    assert kind_of(lambda: opened(bucket, mirrored), Invalid) == "head_other"
    assert kind_of(lambda: opened(bucket, Home("0", home.bucket, home.home)), Invalid) == "head_other"
    with closing(opened(bucket, home)) as space:
        space.write(counted)
    assert kind_of(lambda: claim(named, home.bucket, "0"), Invalid) == "head_other"
    for stated in (f"{named}x", "postgresql://millpond@127.0.0.2/postgres"):
        with pytest.raises(Invalid) as caught:
            open_head(home, stated, bucket, SystemClock(), max_staleness=0, before_writing=lambda: None)
        assert caught.value.kind == "head_other" and server().password not in str(caught.value)
    assert kind_of(lambda: claim("mysql://ann:secret@db/rows", "b", "0"), Invalid) == "space_url"
    assert same_database("postgresql://ann@db:1/rows?sslmode=require", "postgresql://db:1/rows#x")


def test_a_move_ends_all_writes_to_the_old_database_and_may_be_cut_off_anywhere() -> None:
    before = claimed()
    bucket = MemoryObjects()
    space = opened(bucket, before)
    space.write(lambda tx: tx.put(b"large", bytes(100)))
    cuts, home = ["head.fenced", "head.rows_copied", "head.copied", ""], f"{server().url()}#{before.id}-moved"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PGPASSWORD", server().password)
        for cut in cuts:

            def stop(name: str, cut: str = cut) -> None:
                if name == cut:
                    raise KeyboardInterrupt

            with steps.listening(stop):
                if cut:
                    with pytest.raises(KeyboardInterrupt):
                        head.move(before, home)
                else:
                    after = head.move(before, home)
            assert kind_of(lambda: space.write(counted), Fenced) == "head_moved"
            assert kind_of(lambda: opened(bucket, before), Fenced) == "head_moved"
    space.close()
    with closing(opened(bucket, after)) as moved:
        assert moved.write(counted) == 1
        with moved.read() as tx:
            assert tx.get(b"large") == bytes(100)
    assert kind_of(lambda: claim(home, "s3://bucket/x", "0"), Invalid) == "head_other"


def test_a_move_whose_database_was_lost_is_made_again_to_another_one() -> None:
    before, bucket = claimed(), MemoryObjects()
    with closing(opened(bucket, before)) as space:
        assert space.write(counted) == 1

    def stop(name: str) -> None:
        if name == "head.copied":
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PGPASSWORD", server().password)
        with steps.listening(stop), pytest.raises(KeyboardInterrupt):
            head.move(before, f"{server().url()}#{before.id}-lost")
        after = head.move(before, f"{server().url()}#{before.id}-other")
        assert kind_of(lambda: opened(bucket, before), Fenced) == "head_moved"
        with closing(opened(bucket, after)) as moved:
            assert moved.write(counted) == 2
        # What the first move copied is old by now, and the rows are where they were.
        back = f"{server().url()}#{before.id}-lost"
        assert kind_of(lambda: head.move(after, back), Invalid) == "head_other"
    with closing(opened(bucket, after)) as moved:
        assert moved.write(counted) == 3


def test_no_write_is_under_way_when_a_move_reads() -> None:
    """A write that began before the row was changed is committed before it, or not at all."""
    import threading

    home = claimed()
    guard = head.Guard(b"pond", lambda row: None)
    inside, go_on = threading.Event(), threading.Event()
    with closing(PostgresSpace(full_address(server().url(), home.id), guard=guard)) as guarded:

        def slow(tx: Transaction) -> None:
            tx.put(b"k", b"v")
            inside.set()
            assert go_on.wait(60)

        writer = threading.Thread(target=guarded.write, args=(slow,))
        writer.start()
        assert inside.wait(60)
        with closing(PostgresSpace(full_address(server().url(), home.id))) as mover:
            changing = threading.Thread(target=mover.write_alone, args=(lambda tx: tx.put(b"pond", b"moved"),))
            changing.start()
            changing.join(0.05)
            assert changing.is_alive()
            go_on.set()
            changing.join()
            with mover.read() as tx:
                assert (tx.get(b"k"), tx.get(b"pond")) == (b"v", b"moved")
        writer.join()


# -- ponds --------------------------------------------------------------------------------------------


@pytest.fixture
def url(s3_server: object, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3_server.environment.items():  # type: ignore[attr-defined]
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PGPASSWORD", server().password)
    return f"{s3_server.make_bucket(f'heads-{os.getpid()}-{next(_NUMBERS)}')}/pond"  # type: ignore[attr-defined]


def pond_at(url: str, cache: Path, **settings: object) -> Pond:
    pond = millpond.open(url, cache=cache, max_staleness=0, **settings)
    assert isinstance(pond, millpond.Pond)
    return pond


def test_a_pond_is_found_by_its_bucket_alone(url: str, tmp_path: Path) -> None:
    with pond_at(url, tmp_path / "one", space=server().url()) as pond, pond_at(url, tmp_path / "two") as other:
        made = pond.create_map("m", kind="state", value="long")
        made.load([{"key": "a", "value": 1}])
        assert other.map("m").get("a") == 1
        pond.branch("b", source="main").map("m").load([{"key": "b", "value": 2}])
        other.branch("b").merge()
        assert made.lookup(["a", "b"]).to_pylist() == [1, 2]
        assert pond.repositories.create("flights", "local://flights").name == other.repository("flights").name
        pond.events.append("etl", "nightly", [b"one", b"x" * 100_000])
        assert [len(event.payload) for event in other.events.read("etl", "nightly")] == [3, 100_000]
        assert other.collect_garbage().busy == [] and other.verify(full=True).ok
        assert other.events.delete("etl", "nightly") == 2 and pond.collect_garbage().retained == 1
    names = {info.name for info in open_objects(url).list() if info.name.startswith(("space/", "pond.json"))}
    assert names == {"pond.json", "space/witness"}
    marker = open_objects(url).get("pond.json").to_pybytes().decode()
    assert server().password not in marker and "postgresql://millpond@" in marker
    assert kind_of(lambda: pond_at(url, tmp_path, space="postgresql://127.0.0.1:1/x"), Invalid) == "head_other"


def test_a_pond_in_the_bucket_alone_takes_no_database(url: str, tmp_path: Path) -> None:
    pond_at(url, tmp_path).close()
    assert kind_of(lambda: pond_at(url, tmp_path, space=server().url()), Invalid) == "head_other"
    location = bucket_location(url, SystemClock(), space=server().url())
    assert not location.move_head()


def test_a_database_that_is_away_is_named(url: str, tmp_path: Path) -> None:
    with FaultyProxy(server().port) as proxy:
        with pond_at(url, tmp_path, space=server().url(proxy.port)) as pond:
            pond.create_map("m", kind="state", value="long")
            proxy.cut()
            with pytest.raises(Unavailable):
                pond.space.follow()  # type: ignore[attr-defined]
            proxy.mend()
            pond.map("m").load([{"key": "a", "value": 1}])
        proxy.cut()
        assert kind_of(lambda: pond_at(url, tmp_path), Unavailable) == "space_unreachable"


def test_the_command_line_makes_and_moves_a_head(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("MILLPOND_POND", url)

    def run(*words: str) -> str:
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        return done.output

    assert "made a pond" in run("init", url, "--space", server().url())
    run("create", "m", "--kind", "state", "--value", "long")
    assert "were moved" in run("init", url, "--space", f"{server().url()}#moved-{os.getpid()}-{next(_NUMBERS)}")
    assert "already" in run("init", url)
    (tmp_path / "rows.csv").write_text("key,value\na,1\n")
    run("load", "m", str(tmp_path / "rows.csv"))
    assert run("get", "m", "a").split() == ["1"]
    refused = CliRunner().invoke(app, ["init", str(tmp_path / "p"), "--space", server().url()])
    assert isinstance(refused.exception, Invalid) or "only a pond in a bucket" in refused.output
