"""LookupService of a node: by whichever way they come, they are those of the map as it is now."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond.clock import ManualClock
from millpond.errors import Closed, Invalid, NotFound
from millpond.kernel.patience import patient
from millpond.kernel.steps import listening
from millpond.maps.map import Map
from millpond.maps.model.definition import PLAIN_KINDS, Kind
from millpond.maps.model.json_values import typed_value
from millpond.maps.snapshots.freeze import KEEP_MS
from millpond.maps.snapshots.leased import MapSnapshots
from millpond.maps.snapshots.leases import SnapshotLease
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.memory_bound import MEMORY_MAX
from millpond.nodes.lookup_service import LookupService, _from_shard, arrow_stream, read_arrow_stream
from millpond.nodes.replication.local_peer import LocalPeer
from millpond.pond import Pond
from millpond.stores.objects import FolderObjects
from tests.harness import strategies
from tests.harness.models import bits_of
from tests.harness.rows import table_of
from tests.harness.scratch import scratch_folder
from tests.rings.sampling import examples

pytestmark = pytest.mark.sample(3, of="file")


def as_stream(**columns: Any) -> bytes:
    batch = pa.RecordBatch.from_pydict(columns)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


# -- from the shard, from a snapshot, from a layer over it --------------------------------------------


@pytest.mark.parametrize("kind", PLAIN_KINDS)
@given(data=st.data())
@settings(max_examples=examples(4, 8), suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_every_way_to_answer_answers_alike(kind: Kind, data: st.DataObject) -> None:
    definition = data.draw(strategies.definitions(kind=kind))
    pools = data.draw(strategies.pools(definition))
    parts = [data.draw(strategies.rows(definition, pools, most=6)) for _ in range(3)]
    questions: list[Any] = [*data.draw(strategies.questions(definition, pools)), None]
    with scratch_folder() as folder, Pond(folder / "pond", create=True, clock=ManualClock(5)) as pond:
        pond_map = pond.create_map(
            "m", kind=kind, value=definition.value, scheme=definition.scheme, hash_bytes=definition.hash_bytes,
            hash_bits=definition.hash_bits, overwrite=definition.overwrite,
        )  # fmt: skip
        answers = LookupService(pond.clock)
        keys = pa.array([question and question[0] for question in questions], pa.string() if kind.keyed else pa.int64())
        times = pa.array([question and question[1] for question in questions], pa.int64())
        table = pa.table({"key": keys, "at": times} if kind.timed else {"key": keys})
        for part in parts:
            pond_map.load(table_of(definition, part), max_rejects=len(part))
            pond_map = pond.map("m")
            at = times if kind.timed else None
            from_shard = _from_shard(pond_map, keys, at)
            laid_over = answers.snapshot(pond_map).lookup(keys, at)
            from_shard.validate(full=True)
            with Snapshot.open(pond_map.objects, pond_map.freeze()) as whole:
                expected = whole.lookup(keys, at)
            assert from_shard.type == laid_over.type == expected.type
            assert bits_of(from_shard.to_pylist()) == bits_of(expected.to_pylist())
            assert bits_of(laid_over.to_pylist()) == bits_of(expected.to_pylist())
            assert bits_of(answers.lookup(pond.map("m"), table).to_pylist()) == bits_of(expected.to_pylist())
        answers.close()


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    with Pond(tmp_path / "pond", create=True, clock=ManualClock(1_000)) as made:
        yield made


def fill(pond_map: Any, keys: range, value: int) -> None:
    names = [f"k{key:05d}" for key in keys]
    pond_map.load(pa.table({"key": names, "value": pa.array([value] * len(names), pa.int64())}), again=True)


def test_what_was_merged_since_is_laid_over_in_memory(pond: Pond) -> None:
    pond_map = pond.create_map("m", kind="state", value="long")
    fill(pond_map, range(2_000), 0)
    first = pond_map.freeze()
    answers = LookupService(pond.clock)
    everything = pa.table({"key": [f"k{key:05d}" for key in range(3_000)]})
    for value in range(1, 4):
        fill(pond_map, range(value, value + 1), value)
        steps: list[str] = []
        with listening(steps.append):
            found = answers.lookup(pond.map("m"), everything).to_pylist()
        assert found[: value + 2] == [0, *range(1, value + 1), 0]
        assert found[2_000:] == [None] * 1_000
        assert "freeze.switched" not in steps
    assert pond_map.info()["snapshot"] == first.id
    assert len(list((Path(pond_map.objects.where) / "manifests").iterdir())) == 1


def test_a_layer_of_too_much_is_frozen_instead(pond: Pond, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.nodes.fresh_snapshots.OVERLAY_KEYS_MAX", 10)
    pond_map = pond.create_map("m", kind="state", value="long")
    fill(pond_map, range(1_000), 0)
    pond_map.freeze()
    fill(pond_map, range(11), 1)
    answers = LookupService(pond.clock)
    found = answers.lookup(pond.map("m"), pa.table({"key": [f"k{key:05d}" for key in range(1_000)]}))
    assert found.to_pylist() == [1] * 11 + [0] * 989
    assert pond_map.info()["snapshot_current"]


def test_answers_are_those_of_now_while_others_load(pond: Pond) -> None:
    pond_map = pond.create_map("m", kind="state", value="long")
    fill(pond_map, range(1_000), 0)
    answers = LookupService(pond.clock)
    query = pa.table({"key": [f"k{key:05d}" for key in range(1_000)]})

    def look(_: int) -> int:
        before = pond.map("m").shard.version
        found = answers.lookup(pond.map("m"), query).to_pylist()
        assert len(set(found)) == 1, "one version at a time"
        assert found[0] >= before - 1, "never an older one than at the time of the query"
        return int(found[0])

    with ThreadPoolExecutor(3) as threads:
        looking = threads.map(look, range(60))
        for value in range(1, 15):
            fill(pond_map, range(1_000), value)
        assert max(looking) <= 14
    assert look(0) == 14


def test_a_snapshot_that_nobody_asks_is_let_go(pond: Pond) -> None:
    pond_map = pond.create_map("m", kind="state", value="long")
    fill(pond_map, range(1_000), 0)
    answers = LookupService(pond.clock, idle_ms=60_000)
    query = pa.table({"key": [f"k{key:05d}" for key in range(1_000)]})
    answers.lookup(pond.map("m"), query)
    assert answers.release_idle() == 0
    assert isinstance(pond.clock, ManualClock)
    pond.clock.advance(60_000)
    assert answers.release_idle() == 1
    assert answers.lookup(pond.map("m"), query).to_pylist() == [0] * 1_000
    answers.close()


def test_nothing_is_known_of_maps_that_nobody_asks_any_more(pond: Pond) -> None:
    answers, local_peer = LookupService(pond.clock, idle_ms=60_000), LocalPeer(pond, pond.clock, "http://here")
    query = pa.table({"key": [f"k{key:05d}" for key in range(1_000)]})
    for number in range(5):
        fill(pond.create_map(f"m{number}", kind="state", value="long"), range(300), number)
        answers.lookup(pond.map(f"m{number}"), query)
        local_peer.digest(f"m{number}")
        pond.drop_map(f"m{number}")
    fill(pond.create_map("m", kind="state", value="long"), range(300), 7)
    local_peer.digest("m")
    assert (len(local_peer._orders), len(local_peer._digests._known), len(local_peer._digests._busy)) == (1, 1, 1)
    assert isinstance(pond.clock, ManualClock)
    pond.clock.advance(60_000)
    answers.release_idle()
    assert answers._fresh._slots == {}
    answers.close()


def test_what_is_closed_begins_nothing_again(pond: Pond) -> None:
    """Not even when its thread is about to look, or a question is under way."""
    others = set(threading.enumerate())
    fill(pond.create_map("m", kind="state", value="long"), range(1_000), 0)
    answers = LookupService(pond.clock, idle_ms=60_000)
    query = pa.table({"key": [f"k{key:05d}" for key in range(1_000)]})
    begun = answers.snapshot(pond.map("m"))
    with answers._fresh._slot("m"):  # as who asks holds it
        answers.close()
    for thread in set(threading.enumerate()) - others:
        thread.join()
    assert answers._fresh._slots == {}
    assert begun.lookup(["k00001"]).to_pylist() == [0], "who has it reads to the end"
    with pytest.raises(Closed):
        answers.lookup(pond.map("m"), query)
    answers.close()
    assert set(threading.enumerate()) <= others


class _Replaced(FolderObjects):
    """The snapshots of a map that is frozen, and its old one collected, just before anybody takes a lease."""

    def __init__(self, pond_map: Map, replace: Callable[[], object], times: int) -> None:
        super().__init__(Path(pond_map.objects.where))
        self._replace, self.left = replace, times

    def local_path(self, name: str) -> Path | None:
        if name.startswith("leases/") and self.left > 0:
            self.left, left = 0, self.left - 1
            self._replace()
            self.left = left
        return super().local_path(name)


@pytest.mark.parametrize("again", [False, True])
def test_a_snapshot_that_is_chosen_cannot_be_collected(pond: Pond, again: bool) -> None:
    """However often it is replaced, and what it was collected, before it is leased: far more often than retries."""
    pond_map = pond.create_map("m", kind="state", value="long")
    values = iter(range(1, 100))

    def replace() -> None:
        assert isinstance(pond.clock, ManualClock)
        pond.clock.advance(KEEP_MS + 1)
        fill(pond_map, range(10), next(values))
        pond_map.freeze()
        pond.clock.advance(KEEP_MS + 1)
        fill(pond_map, range(10), next(values))
        pond_map.freeze()

    fill(pond_map, range(10), 0)
    pond_map.freeze()
    objects = _Replaced(pond_map, replace, 8)
    snapshots = MapSnapshots(pond.space, pond.clock, objects, pond_map.shard, MEMORY_MAX)
    leased = snapshots.refreeze() if again else snapshots.current()
    assert leased is not None
    assert objects.left == 0
    with leased:
        replace()
        with Snapshot.open(pond_map.objects, leased.manifest) as snapshot:
            assert snapshot.lookup(["k00001"]).to_pylist() == [16]
    replace()
    with pytest.raises(NotFound):
        SnapshotLease(pond_map.objects, leased.manifest.id)


def test_a_map_made_again_is_another(pond: Pond) -> None:
    answers = LookupService(pond.clock)
    query = pa.table({"key": [f"k{key:05d}" for key in range(1_000)]})
    for value in (1, 2):
        pond_map = pond.create_map("m", kind="state", value="long")
        fill(pond_map, range(1_000), value)
        assert answers.lookup(pond.map("m"), query).to_pylist() == [value] * 1_000
        pond.drop_map("m")
    with pytest.raises(NotFound):
        answers.lookup(pond.map("m"), query)


@pytest.mark.parametrize("body", [b"", b"hello", as_stream(key=["a"])[:-40], b"\xff\xff\xff\xff\xff\xff\xff\x7f"])
def test_a_body_that_is_no_stream_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid):
        read_arrow_stream(body).column("key")


@given(data=st.data())
def test_a_body_that_was_damaged_never_reaches_a_kernel(data: st.DataObject) -> None:
    whole = as_stream(key=pa.array(["a", "bcd", None, "efgh"]).dictionary_encode(), at=[1, 2, 3, 4])
    spoilt = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        spoilt[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        table = read_arrow_stream(bytes(spoilt))
    except Invalid:
        return
    table.validate(full=True)


def test_a_stream_ends_with_its_reader() -> None:
    ended = []

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            while True:
                yield pa.record_batch({"a": [1]})
        finally:
            ended.append(True)

    stream = arrow_stream(pa.RecordBatchReader.from_batches(pa.schema([("a", pa.int64())]), batches()))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert ended


def test_large_and_small_answers_hold_the_same_rows(pond: Pond, monkeypatch: pytest.MonkeyPatch) -> None:
    pond_map = pond.create_map("m", kind="state", value="long")
    fill(pond_map, range(2_000), 0)
    pond_map.freeze()
    fill(pond_map, range(1_000), 1)
    answers = LookupService(pond.clock)
    for where in (None, "value = 1", [["key", "<", "k00007"]]):
        small = answers.scan(pond.map("m"), where, ["key", "value"]).read_all().sort_by("key")
        with monkeypatch.context() as patched:
            patched.setattr("millpond.nodes.lookup_service.SHARD_ROWS_BYTES", 0)
            patched.setattr("millpond.nodes.lookup_service.BATCH_ROWS", 7)
            large = answers.scan(pond.map("m"), where, ["key", "value"]).read_all().sort_by("key")
        assert large.equals(small)
    assert small.num_rows == 7


def test_a_scan_ends_between_batches_when_nobody_waits_for_it(tmp_path: Path) -> None:
    def check() -> None:
        raise Closed("nobody waits", kind="snapshot_closed")

    with Pond(tmp_path / "pond", create=True, clock=ManualClock(5)) as pond:
        pond_map = pond.create_map("m", kind="state", value="string")
        pond_map.load([{"key": f"k{number}", "value": "v"} for number in range(10)])
        lookups = LookupService(pond.clock)
        with patient(check), pytest.raises(Closed):
            lookups.scan(pond.map("m"), "value = 'none'", None)
        with patient(check), pytest.raises(Closed):
            next(lookups._rows(pond_map, "value = 'none'", ["key"]))
        lookups.close()


def test_a_value_is_read_by_the_fields_of_then_whoever_changes_them_meanwhile(pond: Pond) -> None:
    made = pond.create_map("fields", kind="state", value="n long, t string", store="layers")
    made.load([{"key": "a", "n": 1, "t": "x"}])
    stored = made.rows.get(b"a", None)
    pond.alter_map("fields", drop=["n"])
    assert made.get("a") == {"t": "x"}
    assert typed_value(*stored)["value"] == {"n": {"type": "long", "value": 1}, "t": {"type": "string", "value": "x"}}
    found = LookupService(pond.clock).get(made, "a")
    assert found["value"] == {"t": {"type": "string", "value": "x"}}
