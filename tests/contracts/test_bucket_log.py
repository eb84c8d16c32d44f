"""The command log in a bucket: processes that race, answers that are lost, kills at any step, a lease on its work."""

from __future__ import annotations

import random  # noqa: TID251 - each run has its seed
import threading
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("littlehorse")

from millpond.clock import ManualClock, SystemClock
from millpond.errors import Corrupt, MillpondError, NotFound, Uncertain
from millpond.kernel.steps import listening
from millpond.stores.memory import MemorySpace
from millpond.stores.objects import MemoryObjects
from millpond.workflows.logs.bucket import BucketLog
from millpond.workflows.logs.bucket_batches import PartitionBatches
from millpond.workflows.logs.bucket_owner import IN_PROCESS, LEASE_SECONDS, BucketOwner
from tests.harness.buckets.model_bucket import BucketClient, ModelBucket
from tests.harness.buckets.simulation import SimulatedClock

if TYPE_CHECKING:
    from collections.abc import Sequence

SECONDS = 30.0


def read(log: BucketLog, after: int = 0) -> dict[int, bytes]:
    """All entries of partition 0 behind a position."""
    end, found = log.end(0), dict[int, bytes]()
    with closing(log.follow(0, after)) as following:
        while len(found) < end - after:
            found |= {entry.position: entry.data for entry in following.next(100, SECONDS)}
    return found


@pytest.mark.usefixtures("process")
def test_processes_that_append_at_once_make_one_order() -> None:
    objects, made = MemoryObjects(), dict[int, bytes]()
    logs = [BucketLog(objects, 1, SystemClock()) for _ in range(3)]

    def append(number: int) -> None:
        for block in range(8):
            datas = [b"%d %d %d" % (number, block, entry) for entry in range(4)]
            futures = [logs[number].append(0, data) for data in datas]
            made.update(zip([future.result(SECONDS) for future in futures], datas, strict=True))

    threads = [threading.Thread(target=append, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert sorted(made) == list(range(1, 97))
    for log in logs:
        assert read(log) == made
        assert read(log, 90) == {position: data for position, data in made.items() if position > 90}
        log.close()


def appended(seed: int, count: int) -> None:
    """Entries that two processes append, one after another, to a bucket that loses, repeats and delays."""
    bucket = ModelBucket(seed)
    clients = [BucketClient(bucket, name, lambda: None) for name in ("here", "away")]
    for client in clients:
        client.calm = True
    clocks = [SimulatedClock(random.Random(seed), client.name, 0) for client in clients]
    parts = [PartitionBatches(0, client, clock) for client, clock in zip(clients, clocks, strict=True)]
    for client in clients:
        client.calm = False
    acknowledged, unknown = dict[int, bytes](), set[bytes]()
    for number in range(count):
        data = b"%d" % number
        try:
            acknowledged[parts[number % 2].put([data])[0]] = data
        except Uncertain:
            unknown.add(data)
        except MillpondError:
            pass
        if number % 11 == 10 and acknowledged:
            with suppress(MillpondError):
                parts[number % 2].trim(max(acknowledged) - 5)
    bucket.land()
    for client in clients:
        client.calm = True
    after, log = max(acknowledged) - 5, BucketLog(_Under(clients[0]), 1, ManualClock())
    found = read(log, after)
    log.close()
    assert {position: data for position, data in acknowledged.items() if position > after}.items() <= found.items()
    assert set(found.values()) - set(acknowledged.values()) <= unknown
    assert len(set(found.values())) == len(found), "none is there twice"


class _Under(BucketClient):
    """The same bucket, whose partition lies at its root."""

    def __init__(self, client: BucketClient) -> None:
        super().__init__(client.bucket, "reader", lambda: None)
        self.calm = True

    def get_tagged(self, name: str):  # type: ignore[no-untyped-def]
        return super().get_tagged(name.removeprefix("0/"))

    def list(self, under: str = "", *, prefix: str = "", after: str = ""):  # type: ignore[no-untyped-def]
        cut = [text.removeprefix("0/") for text in (under, prefix, after)]
        for info in super().list(cut[0], prefix=cut[1], after=cut[2]):
            yield type(info)(f"0/{info.name}", info.size)


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(4))
def test_what_was_acknowledged_is_there_once(seed: int) -> None:
    appended(seed, 40)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(100, 200))
def test_what_was_acknowledged_is_there_once_in_many_runs(seed: int) -> None:
    appended(seed, 150)


class _Killed(BaseException):
    """The process ends here."""


def killed(part: PartitionBatches, name: str) -> None:
    """Put a batch, then trim, and die at a step."""

    def listen(step: str) -> None:
        if step == name:
            raise _Killed

    with listening(listen), pytest.raises(_Killed):
        part.put([b"last"])
        part.trim(5)


@pytest.mark.parametrize(
    ("name", "made", "gone"),
    [
        ("workflows.entries_built", False, 0), ("workflows.entries_put", True, 0), ("workflows.log_started", True, 4),
        ("workflows.log_marked", True, 4),
    ],
)  # fmt: skip
def test_a_kill_loses_nothing_that_was_acknowledged(name: str, made: bool, gone: int) -> None:
    objects, clock = MemoryObjects(), ManualClock()
    part = PartitionBatches(0, objects, clock)
    assert [part.put([b"%d" % number])[0] for number in range(6)] == [1, 2, 3, 4, 5, 6]
    killed(part, name)
    again = PartitionBatches(0, objects, clock)
    assert again.learn(0.0) == 6 + made
    found = [entry.data for batch in again.entries(again.number_behind(gone)) for entry in batch]
    assert found == [b"%d" % number for number in range(gone, 6)] + [b"last"] * made
    if gone:
        with pytest.raises(NotFound, match="no longer reaches back"):
            again.number_behind(gone - 1)
    again.trim(5)  # what was cut off is done
    assert again.put([b"more"]) == range(7 + made, 8 + made)
    later = PartitionBatches(0, objects, clock)
    assert later.learn(0.0) == 7 + made
    assert {objects.get(f"log/{number:020d}").to_pybytes()[:4] for number in range(1, 5)} == {b"MPtr"}


def test_whoever_was_asleep_learns_that_the_log_was_trimmed() -> None:
    objects, clock = MemoryObjects(), ManualClock()
    asleep, part = BucketLog(objects, 1, clock), BucketLog(objects, 1, clock)
    with closing(asleep.follow(0, 0)) as following:
        for number in range(8):
            part.append(0, b"%d" % number).result(SECONDS)
        part.trim(0, 6)
        with pytest.raises(NotFound, match="no longer reaches back"):
            following.next(10, 0.0)
    assert asleep.append(0, b"late").result(SECONDS) == 9
    asleep.close()
    part.close()


def test_a_log_that_lost_its_start_is_named() -> None:
    objects, clock = MemoryObjects(), ManualClock()
    part = PartitionBatches(0, objects, clock)
    part.put([b"a"])
    part.trim(2)
    objects.delete("start")
    with pytest.raises(Corrupt) as caught:
        PartitionBatches(0, objects, clock)
    assert (caught.value.kind, caught.value.values["object"]) == ("space_damaged", "start")


# -- the lease ----------------------------------------------------------------------------------------


def owners(*names: str) -> tuple[ManualClock, Sequence[BucketOwner]]:
    clock, space = ManualClock(1_700_000_000_000), MemorySpace()
    return clock, [BucketOwner(space, name, clock, 2, lambda: None) for name in names]


def test_one_process_owns_until_it_gives_back() -> None:
    _, (one, other) = owners("one:1", "other:1")
    assert one.take()
    assert not other.take()
    assert (one.own, other.own) == ({0, 1}, frozenset())
    assert other.owner(0) == one.owner(0) == "one:1"
    one.stop()
    assert other.take()
    assert (one.own, other.own) == (frozenset(), {0, 1})


def test_a_dead_owner_is_missed_when_its_lease_is_over_and_knows_it_later() -> None:
    clock, (one, other) = owners("one:1", "other:1")
    assert one.take()
    clock.advance(7_000)
    one._look()  # it renews
    assert not other.take()
    clock.advance(int(1000 * LEASE_SECONDS) - 1)
    assert not other.take()
    clock.advance(1)
    assert other.take()
    one._look()
    assert (one.own, other.own) == (frozenset(), {0, 1})


def test_a_process_that_comes_back_has_its_lease_at_once_and_a_dead_run_ends() -> None:
    _, (one, again, run, other) = owners("one:1", "one:1", f"{IN_PROCESS}host-1-a", "other:1")
    assert one.take()
    assert again.take()
    again.stop()
    assert run.take()
    assert other.owner(0) is None
    assert not other.take()
    assert other.owner(0) is None, "it takes no calls"
    assert other.take(dead=lambda holder: holder.startswith(IN_PROCESS))
