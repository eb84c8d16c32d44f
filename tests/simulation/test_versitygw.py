"""The space in a bucket of a real server with atomic conditions, behind proxies that drop answers and cut bodies."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.clock import SystemClock
from millpond.errors import Conflict
from millpond.kernel.keys import KeyRange
from millpond.stores.bucket_space.batch_log import batch_name
from millpond.stores.bucket_space.space import BucketSpace
from millpond.stores.objects import open_objects
from tests.harness.buckets.campaign import WRITES, Writer
from tests.harness.faulty_proxy import FaultyProxy
from tests.versity_server import running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.s3_server import S3Server

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("process")]

ROUNDS, RACERS = 60, 12
WRITERS = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running(tmp_path_factory.mktemp("versitygw")) as server:
        yield server


def _content(number: int, tag: str | None) -> bytes:
    """Bytes of a racer; other ones than those that the tag is of, which would leave the tag as it is."""
    return f"{number} after {tag}".encode() + bytes(300 * number)


def test_of_racers_one_wins(server: S3Server) -> None:
    objects = open_objects(server.make_bucket("racers"), **server.config())

    def put(name: str, tag: str | None, number: int) -> bool:
        try:
            objects.swap(name, _content(number, tag), tag)
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(RACERS) as threads:
        for number in range(ROUNDS):
            name, tag = f"race/{number}", None
            for _ in ("if there is none", "if it has the tag"):
                firsts = list(threads.map(partial(put, name, tag), range(RACERS)))
                tagged = objects.get_tagged(name)
                assert firsts.count(True) == 1
                assert tagged.data.to_pybytes() == _content(firsts.index(True), tag)
                tag = tagged.tag


def test_a_pond_is_made_and_used(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    with millpond.open(f"{server.make_bucket('ponds')}/pond", cache=tmp_path, max_staleness=0) as pond:
        made = pond.create_map("m", kind="state", value="long")
        made.load([{"key": "a", "value": 1}])
        made.load([{"key": "b", "value": 2}])
        assert made.lookup(["a", "b", "c"]).to_pylist() == [1, 2, None]
        assert pond.collect_garbage().busy == [] and pond.verify(full=True).ok


def test_no_write_is_lost_or_doubled_behind_faulty_proxies(server: S3Server) -> None:
    where, port = f"{server.make_bucket('campaign')}/pond/space", int(server.url.rpartition(":")[2])
    with ExitStack() as proxies:
        writers = []
        for number in range(WRITERS):
            proxy = proxies.enter_context(FaultyProxy(port))
            writers.append(Writer(number, proxy, open_objects(where, **{**server.config(), "endpoint": proxy.url})))
        threads = [threading.Thread(target=writer.run) for writer in writers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    objects = open_objects(where, **server.config())
    with BucketSpace(objects, SystemClock()).read() as tx:
        rows = {key: int(value) for key, value in tx.scan(KeyRange(b"token", b"total"))}
        assert int(tx.get(b"total") or b"0") == len(rows)
    assert sorted(rows.values()) == list(range(1, len(rows) + 1))
    for writer in writers:
        assert not [token for token in writer.acknowledged if token not in rows], "acknowledged, and not there"
        places = [rows[token] for token in writer.acknowledged]
        assert places == sorted(places)
        assert not rows.keys() & set(writer.refused), "refused, and there"
    known = {token for writer in writers for token in (*writer.acknowledged, *writer.unknown)}
    assert rows.keys() <= known and sum(len(writer.acknowledged) for writer in writers) > WRITERS * WRITES // 2
    names = [named.name for named in objects.list("log")]
    assert names == [batch_name(number) for number in range(1, len(names) + 1)]
