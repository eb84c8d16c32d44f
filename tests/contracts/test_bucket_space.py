"""The space in a bucket keeps the contract of spaces, over a folder and over S3, and what is its own."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from millpond.clock import ManualClock, SystemClock
from millpond.errors import Corrupt, Invalid, Unavailable, Uncertain
from millpond.json_forms import parse_object
from millpond.kernel.keys import EVERYTHING
from millpond.kernel.space import WouldBlock, moment_of
from millpond.stores.bucket_space.batch_log import batch_name
from millpond.stores.bucket_space.forms import NO_CHAIN, Batch, Trimmed, framed
from millpond.stores.bucket_space.space import BucketSpace
from millpond.stores.objects import MemoryObjects, ObjectStore, open_objects
from millpond.testing.contracts.concurrent_spaces import ConcurrentSpaceContract
from millpond.testing.contracts.space_driver import SpaceDriver
from millpond.testing.contracts.space_machine import space_machine
from millpond.testing.contracts.spaces import SpaceContract
from tests.harness.buckets.served import look_into, new_location, open_at, put_into
from tests.harness.faulty_proxy import FaultyProxy, Trouble
from tests.rings.servers import shared

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from millpond.kernel.space import Space, Transaction
    from tests.s3_server import S3Server

pytestmark = pytest.mark.usefixtures("process")

FOLDER = SpaceDriver("tests.harness.buckets.served:open_at")
SERVER = SpaceDriver("tests.harness.buckets.served:open_at", locate=lambda _: new_location(shared("s3")))

TestFolderMachine = space_machine(FOLDER).TestCase


class _BehindContract(SpaceContract):
    def look_behind(self, space: Space, key: bytes) -> bytes | None:
        assert isinstance(space, BucketSpace)
        return look_into(space.objects, key)

    def put_behind(self, space: Space, key: bytes, value: bytes) -> None:
        assert isinstance(space, BucketSpace)
        put_into(space.objects, key, value)
        space.follow()


class TestOverAFolder(_BehindContract):
    @pytest.fixture
    def space(self, tmp_path: Path) -> Iterator[Space]:
        space = open_at(str(tmp_path / "bucket"), max_staleness=1.0)
        yield space
        space.close()


class TestOverS3(_BehindContract):
    @pytest.fixture
    def space(self, bucket: ObjectStore) -> Iterator[Space]:
        space = BucketSpace(bucket, SystemClock())
        yield space
        space.close()


@pytest.mark.sample(3, of="writers of a folder")
class TestFolderAtOnce(ConcurrentSpaceContract):
    """Processes overtake each other, and run their writes again."""

    driver = FOLDER


@pytest.mark.sample(3, of="writers of a bucket")
class TestS3AtOnce(ConcurrentSpaceContract):
    """The same through a server."""

    driver = SERVER


# -- what is its own ----------------------------------------------------------------------------------


class _Lossy(MemoryObjects):
    """Objects whose conditional puts land, or not, and are not answered."""

    lands: bool | None = None

    def swap(self, name: str, data: object, expected: str | None) -> str:
        if self.lands is None:
            return super().swap(name, data, expected)  # type: ignore[arg-type]
        lands, self.lands = self.lands, None
        if lands:
            super().swap(name, data, expected)  # type: ignore[arg-type]
        raise Uncertain("the answer was lost", kind="objects_uncertain")


@pytest.mark.parametrize("lands", [True, False])
def test_a_lost_answer_is_settled_by_reading_the_number_and_nothing_is_doubled(lands: bool) -> None:
    objects = _Lossy()
    space = BucketSpace(objects, SystemClock())
    objects.lands = lands
    assert space.write(_counted) == 1
    assert space.write(_counted) == 2
    assert [named.name for named in objects.list("log")] == [batch_name(1), batch_name(2)]


def _counted(tx: Transaction) -> int:
    count = int(tx.get(b"count") or b"0") + 1
    tx.put(b"count", b"%d" % count)
    return count


def test_reads_are_as_old_as_they_may_be() -> None:
    objects, clock = MemoryObjects(), ManualClock()
    other, space = BucketSpace(objects, clock), BucketSpace(objects, clock, max_staleness=2.0)
    with space.read() as tx:
        assert moment_of(tx) == 0
    other.write(_counted)
    clock.advance(1_000)
    with space.read() as tx:
        assert tx.get(b"count") is None
    clock.advance(1_500)
    with pytest.raises(WouldBlock), space.read(wait=False):
        pass
    with space.read() as tx:
        assert (tx.get(b"count"), moment_of(tx)) == (b"1", 1)
    assert space.last_change() == 1


def test_a_write_that_changes_nothing_counts_on_the_newest_rows() -> None:
    objects, clock = MemoryObjects(), ManualClock()
    other, space = BucketSpace(objects, clock), BucketSpace(objects, clock, max_staleness=1e9)
    with space.read():
        pass
    clock.advance(1)
    other.write(_counted)
    clock.advance(1)
    assert space.write(lambda tx: tx.get(b"count")) == b"1"


def test_who_opens_begins_at_the_checkpoint_and_a_late_follower_too() -> None:
    objects, clock = MemoryObjects(), ManualClock()
    space = BucketSpace(objects, clock, checkpoint_batches=4, follower_ms=1_000)
    late = BucketSpace(objects, clock, max_staleness=0)
    for number in range(1, 41):
        space.write(lambda tx, number=number: tx.put(b"%03d" % number, bytes(100_000)))  # type: ignore[misc]
        clock.advance(400)
    kinds = [objects.get(named.name).to_pybytes()[:4] for named in objects.list("log")]
    assert len(kinds) == 40, "a number that was taken stays taken"
    assert kinds[:30] == [b"MPtr"] * 30
    assert kinds[-4:] == [b"MPba"] * 4
    expected = [b"%03d" % number for number in range(1, 41)]
    for opened in (BucketSpace(objects, clock), late, space):
        with opened.read() as tx:
            assert list(tx.keys(EVERYTHING)) == expected
    assert late.write(_counted) == 1
    # Rows that did not change lie in pieces that were put once.
    pieces = {named.name.partition("-")[0] for named in objects.list("rows")}
    assert len(pieces) > 3


@pytest.mark.parametrize("damage", ["bytes", "gone", "other"])
def test_a_damaged_batch_is_named_and_never_skipped(damage: str) -> None:
    objects = MemoryObjects()
    space = BucketSpace(objects, SystemClock())
    for _ in range(3):
        space.write(_counted)
    name = batch_name(2)
    data = bytearray(objects.get(name).to_pybytes())
    if damage == "gone":
        objects.delete(name)
    elif damage == "bytes":
        data[40] ^= 1
        objects.put(name, bytes(data))
    else:
        objects.put(name, Batch(2, 0, bytes(16), NO_CHAIN, ((b"count", b"9"),)).encode())
    with pytest.raises(Corrupt) as caught:
        BucketSpace(objects, ManualClock() if damage != "gone" else SystemClock())
    assert (caught.value.kind, caught.value.values["object"]) == ("space_damaged", name)


def test_a_checkpoint_that_is_gone_with_its_batches_is_named() -> None:
    objects, clock = MemoryObjects(), ManualClock()
    space = BucketSpace(objects, clock, checkpoint_batches=4, follower_ms=1_000)
    late = BucketSpace(objects, clock, max_staleness=0)
    for _ in range(16):
        space.write(_counted)
        clock.advance(400)
    objects.delete("checkpoint")
    for act in (lambda: BucketSpace(objects, clock), late.follow):
        with pytest.raises(Corrupt) as caught:
            act()
        assert (caught.value.kind, caught.value.values["object"]) == ("space_damaged", "checkpoint")
    space.write_checkpoint()  # of one that had all rows
    with BucketSpace(objects, clock).read() as tx:
        assert tx.get(b"count") == b"16"


class _Away(MemoryObjects):
    """Objects of which one cannot be read."""

    name = ""

    def get(self, name: str) -> pa.Buffer:
        if name == self.name:
            raise Unavailable("the bucket does not answer", kind="objects_unavailable")
        return super().get(name)


def test_a_write_that_was_overtaken_makes_no_old_rows_fresh() -> None:
    objects, clock = _Away(), ManualClock()
    other, space = BucketSpace(objects, clock), BucketSpace(objects, clock)
    space.follow()
    clock.advance(10_000)
    for _ in range(2):
        other.write(_counted)
    clock.advance(5_000)
    objects.name = batch_name(2)
    with pytest.raises(Unavailable):
        space.write(_counted)  # batch 1 is another's, and what came behind it cannot be read
    with pytest.raises(Unavailable), space.read():
        pass
    objects.name = ""
    assert space.write(_counted) == 3


def test_a_newer_format_is_told_from_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = MemoryObjects()
    BucketSpace(objects, SystemClock()).write(_counted)
    with monkeypatch.context() as patched:
        patched.setattr("millpond.stores.bucket_space.forms.FORMAT", 2)
        objects.put(batch_name(1), framed(b"MPba", bytes(48)))
    with pytest.raises(Invalid) as caught:
        BucketSpace(objects, SystemClock())
    assert (caught.value.kind, caught.value.values["found"]) == ("space_format", 2)


def test_a_number_that_was_trimmed_is_never_written_again() -> None:
    objects, clock = MemoryObjects(), SystemClock()
    stale = BucketSpace(objects, clock, max_staleness=1e9)
    space = BucketSpace(objects, clock)
    stale.follow()
    for _ in range(4):
        space.write(_counted)
    space.write_checkpoint()
    for number in (1, 2, 3):
        objects.put(batch_name(number), Trimmed(number).encode())
    with pytest.raises(Uncertain):  # whose number 1 was is not known any more: it is not put a second time
        stale.write(_counted)
    assert stale.write(_counted) == 5


def test_who_wrote_and_closes_leaves_a_checkpoint_to_those_who_open() -> None:
    objects = MemoryObjects()
    for _ in range(5):
        space = BucketSpace(objects, SystemClock(), checkpoint_batches=16)
        assert space.write(_counted) > 0
        space.close()
        space.close()
    reader = BucketSpace(objects, SystemClock(), checkpoint_batches=16)
    with reader.read() as tx:
        assert tx.get(b"count") == b"5"
    before = objects.get("checkpoint").to_pybytes()
    reader.close()
    assert objects.get("checkpoint").to_pybytes() == before, "who only read writes nothing"
    assert b'"number":4' in before.replace(b" ", b"")


def test_answers_that_a_network_loses_double_nothing(s3_server: S3Server) -> None:
    about = parse_object(new_location(s3_server))
    where = about.pop("where")
    with FaultyProxy(urlsplit(s3_server.url).port) as proxy:
        through = open_objects(where, **{**about, "endpoint": f"http://127.0.0.1:{proxy.port}"})
        space, other = BucketSpace(through, SystemClock()), BucketSpace(open_objects(where, **about), SystemClock())
        for number in range(1, 25, 2):
            proxy.trouble(Trouble("cut", match=b"PUT ", down=number % 4 == 1))
            assert space.write(_counted) == number
            assert other.write(_counted) == number + 1
            proxy.mend()
    assert len(list(other.objects.list("log"))) == 24


def test_many_threads_share_batches() -> None:
    import threading

    objects = MemoryObjects()
    space = BucketSpace(objects, SystemClock())
    start, results = threading.Barrier(16), list[int]()

    def work() -> None:
        start.wait()
        results.extend(space.write(_counted) for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(1, 81))
    assert len(list(objects.list("log"))) <= 80
