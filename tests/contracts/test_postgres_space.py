"""PostgreSQL's driver keeps the contract of spaces, and what is its own."""

from __future__ import annotations

import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("psycopg")

import psycopg

from millpond.errors import Invalid, Unavailable, Uncertain
from millpond.kernel.keys import EVERYTHING, KeyRange
from millpond.kernel.space import KEY_BYTES_MAX, WouldBlock
from millpond.stores.postgres.sessions import NAME_BYTES_MAX
from millpond.stores.postgres.space import RUNS_MAX, PostgresSpace
from millpond.stores.postgres.transaction import PAGE_ROWS_MAX
from millpond.testing.contracts.spaces import SpaceContract
from tests.harness.faulty_proxy import FaultyProxy, Trouble
from tests.postgres_server import PostgresServer, new_location, server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from millpond.kernel.space import Space, Transaction

pytestmark = pytest.mark.usefixtures("process", "postgres_server")


class _Losing:
    """Cuts the connections of a block's commits, before the server has them or when it has answered."""

    def __init__(self, proxy: FaultyProxy, *, committed: bool) -> None:
        self.proxy, self.committed = proxy, committed

    def __enter__(self) -> None:
        self.proxy.trouble(Trouble("cut", match=b"COMMIT", down=self.committed))

    def __exit__(self, *_: object) -> None:
        self.proxy.mend()


class TestPostgresSpace(SpaceContract):
    @pytest.fixture(scope="class")
    def proxy(self) -> Iterator[FaultyProxy]:
        with FaultyProxy(server().port) as proxy:
            yield proxy

    @pytest.fixture
    def space(self, proxy: FaultyProxy) -> Iterator[Space]:
        name = new_location().rpartition("#")[2]
        self.proxy = proxy
        space = PostgresSpace(f"{server().url(proxy.port)}#{name}")
        yield space
        space.close()

    def losing_results(self, space: Space, *, committed: bool) -> AbstractContextManager[None]:
        return _Losing(self.proxy, committed=committed)

    def look_behind(self, space: Space, key: bytes) -> bytes | None:
        assert isinstance(space, PostgresSpace)
        with psycopg.connect(server().url()) as connection:
            sql = "SELECT value FROM millpond_space WHERE space = %s AND key = %s"
            found = connection.execute(sql, (space.name, key)).fetchone()
        return None if found is None else found[0]

    def put_behind(self, space: Space, key: bytes, value: bytes) -> None:
        assert isinstance(space, PostgresSpace)
        with psycopg.connect(server().url()) as connection:
            connection.execute("INSERT INTO millpond_space VALUES (%s, %s, %s)", (space.name, key, value))


@pytest.fixture
def location() -> str:
    return new_location()


@pytest.fixture
def space(location: str) -> Iterator[PostgresSpace]:
    space = PostgresSpace(location)
    yield space
    space.close()


@pytest.mark.parametrize("reverse", [False, True])
def test_scans_of_many_pages_meet_every_row_once(space: PostgresSpace, reverse: bool) -> None:
    keys = [b"%06d" % number for number in range(3 * PAGE_ROWS_MAX)]

    def fill(tx: Transaction) -> None:
        for key in keys:
            tx.put(key, key)

    space.write(fill)
    with space.read() as tx:
        assert list(tx.scan(EVERYTHING, reverse=reverse)) == sorted(zip(keys, keys, strict=True), reverse=reverse)
        assert list(tx.keys(KeyRange(keys[1], keys[-1]), reverse=reverse)) == sorted(keys[1:-1], reverse=reverse)
        assert tx.get_many(keys) == keys
    assert space.write(lambda tx: tx.delete_range(EVERYTHING, 5000)) == 5000
    with space.read() as tx:
        assert next(tx.keys(EVERYTHING)) == keys[5000]


def test_the_longest_key_fits_beside_the_longest_name_however_random(location: str) -> None:
    server_url = location.rpartition("#")[0]
    space = PostgresSpace(f"{server_url}#{location[-1] * NAME_BYTES_MAX}")
    generator = np.random.default_rng(1)
    keys = sorted(generator.bytes(KEY_BYTES_MAX) for _ in range(50))  # random bytes cannot be compressed

    def fill(tx: Transaction) -> None:
        for key in keys:
            tx.put(key, key * 4)

    space.write(fill)
    with space.read() as tx:
        assert list(tx.scan(EVERYTHING)) == [(key, key * 4) for key in keys]
    space.close()


def test_large_values_are_stored_and_read_back_in_small_pages(space: PostgresSpace) -> None:
    def fill(tx: Transaction) -> None:
        for number in range(40):
            tx.put(b"%02d" % number, bytes([number]) * 1_000_000)

    space.write(fill)
    with space.read() as tx:
        assert [(value[0], len(value)) for _, value in tx.scan(EVERYTHING)] == [(n, 1_000_000) for n in range(40)]


def test_spaces_of_one_database_do_not_see_each_other(space: PostgresSpace) -> None:
    other = PostgresSpace(new_location())
    space.write(lambda tx: tx.put(b"k", b"one"))
    other.write(lambda tx: tx.put(b"k", b"other"))
    assert other.write(lambda tx: tx.delete_range(EVERYTHING)) == 1
    with space.read() as tx:
        assert list(tx.scan(EVERYTHING)) == [(b"k", b"one")]
    other.close()


def test_a_write_that_is_overtaken_each_time_gives_up_and_changes_nothing(space: PostgresSpace, location: str) -> None:
    other = PostgresSpace(location)
    runs = 0

    def change(tx: Transaction) -> None:
        nonlocal runs
        runs += 1
        number = int(tx.get(b"n") or b"0")
        other.write(lambda tx: tx.put(b"n", b"%d" % (number + 1)))
        tx.put(b"n", b"lost")

    with pytest.raises(Unavailable) as caught:
        space.write(change)
    assert caught.value.kind == "space_contended"
    assert runs == RUNS_MAX
    with space.read() as tx:
        assert tx.get(b"n") == b"%d" % RUNS_MAX
    other.close()


def test_a_function_that_ignores_an_error_of_the_server_commits_nothing(space: PostgresSpace) -> None:
    def change(tx: Transaction) -> None:
        tx.put(b"k", b"v")
        with psycopg.connect(server().url(), autocommit=True) as killer:
            killer.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%SERIALIZABLE%'"
                           " AND pid <> pg_backend_pid()")  # fmt: skip
        with pytest.raises(Unavailable):
            tx.get(b"other")

    with pytest.raises(Unavailable) as caught:
        space.write(change)
    assert caught.value.kind == "space_unreachable"
    assert not isinstance(caught.value, Uncertain)
    with space.read() as tx:
        assert tx.get(b"k") is None


def test_a_reader_that_may_not_wait_neither_connects_nor_queues_for_a_lock(space: PostgresSpace) -> None:
    with space.read(), pytest.raises(WouldBlock), space.read(wait=False):
        pass  # the one connection is in use
    with psycopg.connect(server().url()) as other:
        other.execute("LOCK TABLE millpond_space IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(WouldBlock), space.read(wait=False):
            pass
        waits = threading.Thread(target=lambda: space.write(lambda tx: tx.put(b"k", b"v")))
        waits.start()
        other.rollback()
        waits.join()
    with space.read(wait=False) as tx:
        assert tx.get(b"k") == b"v"


def test_rows_and_last_keys_are_read_together(space: PostgresSpace) -> None:
    def fill(tx: Transaction) -> None:
        for key in (b"a", b"b1", b"b2", b"c"):
            tx.put(key, b"of " + key)

    space.write(fill)
    ranges = [KeyRange(b"b", b"c"), KeyRange(b"b", b"b"), KeyRange(b"", b"zz"), KeyRange(b"b1\0", b"b2")]
    rows, last = space.read_together([b"a", b"none", b"c"], ranges)
    assert rows == {b"a": b"of a", b"c": b"of c"}
    assert last == [b"b2", None, b"c", None]
    assert space.read_together([b"b1"], []) == ({b"b1": b"of b1"}, [])
    other = PostgresSpace(new_location())
    assert other.read_together([b"a"], ranges) == ({}, [None] * 4), "spaces are apart"
    other.close()


def test_a_scan_that_was_not_begun_is_over_with_its_transaction(space: PostgresSpace) -> None:
    space.write(lambda tx: tx.put(b"k", b"v"))
    with space.read() as tx:
        scan = tx.scan(EVERYTHING)
    with pytest.raises(Exception, match="transaction is over"):
        next(scan)


def test_a_server_that_was_started_anew_is_used_again() -> None:
    with _own_server() as own:
        space = PostgresSpace(f"{own.url()}#pond")
        space.write(lambda tx: tx.put(b"k", b"v"))
        own.stop()
        with pytest.raises(WouldBlock), space.read(wait=False):
            pass
        with pytest.raises(Unavailable) as caught, space.read():
            pass
        assert caught.value.kind == "space_unreachable"
        with pytest.raises(Unavailable) as caught:
            space.write(lambda tx: tx.put(b"k", b"v"))
        assert not isinstance(caught.value, Uncertain)
        own.start()
        with space.read() as tx:
            assert tx.get(b"k") == b"v"
        own.stop()
        own.start()
        space.write(lambda tx: tx.put(b"k", b"again"))  # its idle connection was lost
        own.stop()
        with pytest.raises(Unavailable) as caught:
            space.read_together([b"k"], [])
        assert caught.value.kind == "space_unreachable"
        own.start()
        assert space.read_together([b"k"], []) == ({b"k": b"again"}, [])
        own.stop()
        own.start()
        assert space.read_together([b"k"], []) == ({b"k": b"again"}, []), "its idle connection was lost"
        space.close()


@contextmanager
def _own_server() -> Iterator[PostgresServer]:
    own = PostgresServer(Path(tempfile.mkdtemp(prefix="millpond-postgres-")))
    try:
        own.make()
        own.start()
        yield own
    finally:
        own.remove()


@pytest.mark.parametrize("url", ["postgresql://127.0.0.1/db", "#name", "nonsense#name", "postgresql://h/d#" + "n" * 64])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        PostgresSpace(url)
    assert caught.value.kind == "space_url"


def test_a_wrong_password_is_no_access_and_is_not_shown(location: str) -> None:
    with pytest.raises(Unavailable) as caught:
        PostgresSpace(location.replace(server().password, "guessed-it"))
    assert "guessed-it" not in str(caught.value)
    assert caught.value.kind == "no_access" and "check the user, and the password" in str(caught.value)


@pytest.mark.parametrize(("old", "new", "kind", "words"), [
    ("//millpond:", "//nobody:", "no_access", "PGPASSWORD"),
    (":{password}@", "@", "no_access", "PGPASSWORD"),
    ("/postgres", "/other", "space_not_found", "no such database"),
    ("/postgres", "/postgres?sslmode=require", "no_access", "sslmode"),
    ("127.0.0.1:{port}", "127.0.0.1:9", "space_unreachable", "the server cannot be reached"),
    ("127.0.0.1", "nowhere.invalid", "space_unreachable", "the server cannot be reached"),
])  # fmt: skip
def test_a_connection_that_is_refused_says_why(location: str, old: str, new: str, kind: str, words: str) -> None:
    with pytest.raises(Unavailable) as caught:
        PostgresSpace(location.replace(old.format(password=server().password, port=server().port), new))
    assert caught.value.kind == kind and words in str(caught.value)
