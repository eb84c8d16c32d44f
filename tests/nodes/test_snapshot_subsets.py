"""Snapshot subsets: inside of their bounds they answer as the whole one, outside they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import Invalid, NotFound
from millpond.kernel.steps import listening
from millpond.maps.model.columns import canonical_schema
from millpond.maps.model.definition import PLAIN_KINDS, Kind, MapDefinition, parse_value_type
from millpond.maps.snapshots import subset as subsets_of_snapshots
from millpond.maps.snapshots.bounds import SnapshotBounds, snapshot_bounds
from millpond.maps.snapshots.freeze import collect, freeze
from millpond.maps.snapshots.leases import SnapshotLease, pin
from millpond.maps.snapshots.manifest import SnapshotManifest, list_manifests
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.maps.snapshots.subset import collect_subsets, subset_objects
from millpond.stores.objects import FolderObjects
from tests.harness import strategies
from tests.harness.models import MapModel, bits_of
from tests.harness.rows import canonical_of
from tests.harness.scratch import scratch_folder

if TYPE_CHECKING:
    from tests.harness.strategies import Pools, Question

pytestmark = pytest.mark.sample(3, of="file")

KEEP = 600_000


def subset_manifest(
    objects: FolderObjects, base: SnapshotManifest, bounds: SnapshotBounds, *, now_ms: int
) -> SnapshotManifest:
    """The manifest of a snapshot subset, its lease released at once."""
    with subsets_of_snapshots.leased_subset(objects, base, bounds, now_ms=now_ms) as leased:
        return leased.manifest


def frozen(objects: FolderObjects, definition: MapDefinition, model: MapModel, version: int = 1) -> SnapshotManifest:
    rows = canonical_of(definition, model.scan())
    return freeze(objects, definition, [rows], shard_version=version, created_ms=version)


def inside(bounds: SnapshotBounds, question: Question) -> bool:
    key, at = question
    encoded = key.encode() if isinstance(key, str) else key
    lower, upper = (bound.encode() if isinstance(bound, str) else bound for bound in (bounds.lower, bounds.upper))
    return (
        (lower is None or encoded >= lower)  # type: ignore[operator]
        and (upper is None or encoded < upper)  # type: ignore[operator]
        and (bounds.since is None or at >= bounds.since)
        and (bounds.until is None or at < bounds.until)
    )


@st.composite
def some_bounds(draw: st.DrawFn, definition: MapDefinition, pools: Pools) -> SnapshotBounds:
    keyed = definition.kind.keyed
    keys = st.none() | (strategies.keys() | st.sampled_from(pools.keys) if keyed else st.sampled_from(pools.numbers))
    times = st.none() | st.sampled_from(pools.times) if definition.kind.timed else st.none()
    by_keys, by_times = (_ordered(draw(bounds), draw(bounds)) for bounds in (keys, times))
    return snapshot_bounds(definition, by_keys, by_times) or SnapshotBounds()


def _ordered(low: str | int | None, high: str | int | None) -> tuple[str | int | None, str | int | None]:
    if low is None or high is None:
        return low, high
    if low == high:
        return low, None
    return tuple(sorted((low, high), key=lambda bound: bound.encode() if isinstance(bound, str) else bound))  # type: ignore[return-value, arg-type]


@pytest.mark.parametrize("kind", PLAIN_KINDS)
@given(data=st.data())
def test_inside_it_answers_as_the_whole_snapshot_and_outside_it_refuses(kind: Kind, data: st.DataObject) -> None:
    definition = data.draw(strategies.definitions(kind=kind))
    pools = data.draw(strategies.pools(definition))
    model = MapModel(kind)
    model.put(data.draw(strategies.rows(definition, pools, most=20)))
    bounds = data.draw(some_bounds(definition, pools))
    questions = data.draw(strategies.questions(definition, pools, most=20))
    with scratch_folder() as folder:
        objects = FolderObjects(folder)
        base = frozen(objects, definition, model)
        manifest = subset_manifest(objects, base, bounds, now_ms=1)
        place = subset_objects(objects, bounds)
        with Snapshot.open(objects, base) as whole, Snapshot.open(place, manifest, verify=True) as part:
            held = [question for question in questions if inside(bounds, question)]
            assert bits_of(ask(part, held)) == bits_of(ask(whole, held))
            for question in questions:
                if not inside(bounds, question):
                    with pytest.raises(Invalid) as refused:
                        ask(part, [question])
                    assert refused.value.kind == "outside_snapshot"


def ask(snapshot: Snapshot, questions: list[Question]) -> list[object]:
    keyed = snapshot.definition.kind.keyed
    keys = pa.array([key for key, _ in questions], pa.string() if keyed else pa.int64())
    times = pa.array([at for _, at in questions], pa.int64()) if snapshot.definition.kind.timed else None
    return list(snapshot.lookup(keys, times).to_pylist())


# -- what it holds ------------------------------------------------------------------------------------


@pytest.fixture
def weather(tmp_path: Path) -> tuple[FolderObjects, MapDefinition, MapModel]:
    definition = MapDefinition(
        name="weather", kind=Kind.TEMPORAL_STATE, incarnation="1" * 16, value=parse_value_type("long")
    )
    model = MapModel(Kind.TEMPORAL_STATE)
    model.put(((f"k{key:04d}", time * 1000), key * time) for key in range(200) for time in range(50))
    return FolderObjects(tmp_path / "weather"), definition, model


def test_it_holds_what_it_must_and_no_more(weather: tuple[FolderObjects, MapDefinition, MapModel]) -> None:
    objects, definition, model = weather
    base = frozen(objects, definition, model)
    bounds = snapshot_bounds(definition, ("k0010", "k0020"), (10_500, 12_000))
    assert bounds is not None
    manifest = subset_manifest(objects, base, bounds, now_ms=1)
    assert manifest.groups == 10
    assert manifest.size < base.size / 20
    assert manifest.bounds == bounds
    with Snapshot.open(subset_objects(objects, bounds), manifest) as snapshot:
        answers = snapshot.lookup(["k0010", "k0019", "k0010"], [10_500, 11_999, 11_000]).to_pylist()
        assert answers == [100, 209, 110]
        rows = sum(len(batch.column("rows").flatten()) for batch in snapshot._open_finder().groups.batches)
        assert rows == 10 * 2


def test_an_error_names_the_query_and_the_bounds(
    weather: tuple[FolderObjects, MapDefinition, MapModel],
) -> None:
    objects, definition, model = weather
    bounds = snapshot_bounds(definition, ("k0010", "k0020"), ("1970-01-01T00:00:10Z", 12_000))
    assert bounds is not None
    manifest = subset_manifest(objects, frozen(objects, definition, model), bounds, now_ms=1)
    with Snapshot.open(subset_objects(objects, bounds), manifest) as snapshot:
        with pytest.raises(Invalid, match=r"the key is outside.*value='k0020' lower=k0010 upper=k0020"):
            snapshot.lookup(["k0010", "k0020"], 11_000)
        with pytest.raises(Invalid, match=r"the time is outside.*value=9999 lower=10000 upper=12000"):
            snapshot.lookup(["k0010", "k0011"], [11_000, 9_999])
        # A null is no query, nor is an entry of a dictionary that is not used.
        some = pa.DictionaryArray.from_arrays(pa.array([1, None], pa.int32()), pa.array(["zebra", "k0011"]))
        assert snapshot.lookup(some, 11_000).to_pylist() == [121, None]
        assert snapshot.lookup(pa.array(["k0011", "k0011"]), pa.array([11_000, None])).to_pylist() == [121, None]
        assert snapshot.lookup(pa.array([], pa.string()), 11_000).to_pylist() == []


@pytest.mark.parametrize(
    ("kind", "keys", "window"),
    [
        (Kind.STATE, None, (1, 2)),
        (Kind.STATE, ("b", "a"), None),
        (Kind.STATE, ("a", "a"), None),
        (Kind.STATE, "ab", None),
        (Kind.STATE, (1, 2), None),
        (Kind.STATE, ("\ud800", None), None),
        (Kind.RANGED_STATE, ("a", "b"), None),
        (Kind.RANGED_STATE, (1.5, 2), None),
        (Kind.RANGED_STATE, (1 << 63, None), None),
        (Kind.SESSION, None, (2, 1)),
        (Kind.SESSION, None, (1,)),
        (Kind.SESSION, None, ("2013-01-01T00:00:00", None)),
    ],
)
def test_bounds_that_make_no_sense_are_refused(kind: Kind, keys: tuple[str, str] | None, window: object) -> None:
    definition = MapDefinition(name="m", kind=kind, incarnation="1" * 16)
    with pytest.raises(Invalid):
        snapshot_bounds(definition, keys, window)  # type: ignore[arg-type]


def test_no_bounds_are_no_subset() -> None:
    definition = MapDefinition(name="m", kind=Kind.SESSION, incarnation="1" * 16)
    assert snapshot_bounds(definition) is None
    assert snapshot_bounds(definition, (None, None), (None, None)) is None


def test_numbers_may_come_as_text() -> None:
    definition = MapDefinition(name="m", kind=Kind.RANGED_STATE, incarnation="1" * 16)
    assert snapshot_bounds(definition, ("-5", "7")) == SnapshotBounds(lower=-5, upper=7)


# -- caching and collecting ---------------------------------------------------------------------------


def test_it_is_made_once_for_every_version(weather: tuple[FolderObjects, MapDefinition, MapModel]) -> None:
    objects, definition, model = weather
    bounds = SnapshotBounds(upper="k0100")
    base = frozen(objects, definition, model)
    steps: list[str] = []
    with listening(steps.append):
        first = subset_manifest(objects, base, bounds, now_ms=1)
        assert subset_manifest(objects, base, bounds, now_ms=1) == first
    assert steps.count("narrow.written") == 1
    model.put([(("k0001", 7), 7)])
    second = subset_manifest(objects, frozen(objects, definition, model, 2), bounds, now_ms=2)
    assert second.shard_version == 2
    assert second.id != first.id


def test_old_ones_go_with_their_base(weather: tuple[FolderObjects, MapDefinition, MapModel]) -> None:
    objects, definition, model = weather
    bounds, other = SnapshotBounds(upper="k0100"), SnapshotBounds(upper="k0050")
    base = frozen(objects, definition, model)
    for chosen in (bounds, other):
        subset_manifest(objects, base, chosen, now_ms=1)
    assert collect_subsets(objects, base, now_ms=KEEP * 2) == 0
    model.put([(("k0001", 7), 7)])
    following = frozen(objects, definition, model, 2)
    subset_manifest(objects, following, bounds, now_ms=2)
    assert collect_subsets(objects, following, now_ms=3) == 0
    place = subset_objects(objects, other)
    held = SnapshotLease(place, next(list_manifests(place)).id)
    assert collect_subsets(objects, following, now_ms=3 + KEEP) == 0
    held.release()
    assert collect_subsets(objects, following, now_ms=3 + KEEP) == 1
    assert not (objects.root / "subsets" / other.spec).exists()
    assert (objects.root / "subsets" / bounds.spec).exists()


def test_the_oldest_of_too_many_go(weather: tuple[FolderObjects, MapDefinition, MapModel]) -> None:
    objects, definition, model = weather
    base = frozen(objects, definition, model)
    for key in range(4):
        subset_manifest(objects, base, SnapshotBounds(upper=f"k{key}"), now_ms=1)
    assert collect_subsets(objects, base, now_ms=1, most=1) == 3


# -- pins ---------------------------------------------------------------------------------------------


def test_a_pin_keeps_a_snapshot_for_a_job_that_has_not_begun(
    weather: tuple[FolderObjects, MapDefinition, MapModel],
) -> None:
    objects, definition, model = weather
    first = frozen(objects, definition, model)
    pin(objects, first.id, 10 * KEEP)
    pin(objects, first.id, 5 * KEEP)  # the later one stays
    model.put([(("k0001", 7), 7)])
    second = frozen(objects, definition, model, 2)
    collect(objects, second, now_ms=9 * KEEP)
    Snapshot.open(objects, first, verify=True).close()
    assert collect(objects, second, now_ms=10 * KEEP + 1).snapshots == 1
    assert not list(objects.list("pins"))
    with pytest.raises(NotFound):
        pin(objects, first.id, 20 * KEEP)


def test_pinning_what_is_gone_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        pin(FolderObjects(tmp_path), "0" * 40, 1)


def test_a_subset_of_a_large_map_is_arithmetic_on_columns(tmp_path: Path) -> None:
    definition = MapDefinition(
        name="m", kind=Kind.TEMPORAL_RANGED_STATE, incarnation="1" * 16, value=parse_value_type("long")
    )
    starts = np.repeat(np.arange(0, 30_000, 10), 4)
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array(starts), pa.array(starts + 9), pa.array(np.tile([0, 10, 20, 30], 3000)),
            pa.array(np.arange(12_000)),
        ],
        names=["key_start", "key_end", "effective_time", "value"],
    )  # fmt: skip
    objects = FolderObjects(tmp_path)
    base = freeze(objects, definition, [rows.cast(canonical_schema(definition))], shard_version=1, created_ms=1)
    bounds = SnapshotBounds(lower=995, upper=1015, since=15, until=25)
    manifest = subset_manifest(objects, base, bounds, now_ms=1)
    assert manifest.groups == 3
    with Snapshot.open(subset_objects(objects, bounds), manifest) as snapshot:
        assert snapshot.lookup([995, 1000, 1014], [15, 20, 24]).to_pylist() == [397, 402, 406]
