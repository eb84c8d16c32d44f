"""Odd arguments of every public call of maps and snapshots: an answer or a `MillpondError`, never another exception."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond
from millpond.errors import MillpondError
from millpond.maps.model.definition import PLAIN_KINDS, Kind
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond import Pond

NOON = datetime.datetime(2013, 2, 8, 12)
AWARE = NOON.replace(tzinfo=datetime.UTC)


class Belying:
    """An object that looks like a column and is none."""

    def __array__(self, *_: object, **__: object) -> Any:
        raise ValueError("not really")

    def __len__(self) -> int:
        return 2


VALUES: list[Any] = [
    None, True, False, 0, 5, -1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**64), 10**100, 10**5000, 1.5, 5.0, float("nan"),
    float("inf"), 1j, Decimal("1.50"), Decimal("NaN"), Decimal("1E+100"), Fraction(1, 2), "", "a", "5", "٣", "\ud800",
    "a\0b", "x" * 70_000, "9" * 5000, "soon", "2013-02-08", "2013-02-08T12:00Z", "9999-12-31T23:59:59Z", b"a", b"\xff",
    bytearray(b"a"), memoryview(b"a"), NOON, AWARE, NOON.date(), NOON.time(), datetime.timedelta(1),
    NOON.replace(year=9999, month=12, day=31),
    NOON.replace(year=1, month=1, day=1, tzinfo=datetime.timezone(datetime.timedelta(hours=23))), uuid.UUID(int=5),
    pd.NaT, pd.NA, pd.Timestamp("2013-02-08", tz="UTC"), pd.Timestamp("2013-02-08"), pd.Timedelta(1), pd.Period("2013"),
    np.int64(5), np.uint64(2**64 - 1), np.float16(5), np.float64("nan"), np.bool_(True), np.str_("a"), np.bytes_(b"a"),
    np.datetime64("2013-02-08"), np.datetime64("NaT"), np.datetime64("2013-02-08T12:00", "ns"), np.timedelta64(1, "s"),
    np.array(5), np.array("a"), np.void(b"a"), [], {}, (), set(), {"a": 1}, {"a"}, [[]], [None], object(), Belying(),
    int,    range(2), slice(1), len, Kind.STATE, ..., NotImplemented, pa.scalar(5), pa.scalar("a"), pa.scalar(None),
    pa.scalar(NOON), pa.scalar(AWARE), pa.scalar([1]), pa.scalar({"a": 1}), pa.scalar(uuid.UUID(int=5), pa.uuid()),
    pc.field("key") == "a", pc.field("nokey") > 5, pc.field("value"), pc.scalar(True),
]  # fmt: skip

ARRAYS: list[Any] = [
    pa.array(["a", None]), pa.array([5, 6], pa.uint64()), pa.array([2**64 - 1] * 2, pa.uint64()), pa.nulls(2),
    pa.array(["a", "b"]).dictionary_encode(), pa.array([5, 5]).dictionary_encode(), pa.array([b"a", b"\xff"]),
    pc.run_end_encode(pa.array(["a", "a"])), pc.run_end_encode(pa.array([5, 5])), pa.array([True, False]),
    pa.array(["a", "b"], pa.string_view()), pa.array([b"a", b"b"], pa.binary_view()),
    pa.array([b"a", b"b"], pa.binary(1)),    pa.array([NOON, NOON]), pa.array([AWARE, AWARE]),
    pa.array([AWARE, AWARE], pa.timestamp("s", tz="UTC")),
    pa.array([2**60, 2**60], pa.timestamp("s", tz="UTC")), pa.array([2**62, 2**62]), pa.array([NOON.date()] * 2),
    pa.array([NOON.date()] * 2, pa.date64()), pa.array([NOON.time()] * 2), pa.array([datetime.timedelta(1)] * 2),
    pa.array([1.5, 5.0]), pa.array([1, 2], pa.float16()), pa.array([Decimal(5), Decimal(6)]), pa.array([[1], []]),
    pa.array([[1, 2]] * 2, pa.list_(pa.int64(), 2)), pa.array([[1], []], pa.list_view(pa.int64())),
    pa.array([{"a": 1}] * 2), pa.array([[("a", 1)]] * 2, pa.map_(pa.string(), pa.int64())),
    pa.array([uuid.UUID(int=5)] * 2, pa.uuid()), pa.array(["{}", "{}"], pa.json_()),
    pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([5, 6]), pa.array(["a", "b"])]),
    pa.UnionArray.from_dense(
        pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32()), [pa.array([5]), pa.array([[1]])]
    ),
    pa.DictionaryArray.from_arrays(pa.array([0, None]), pa.array([[1], [2]])), pa.array([], pa.int64()), pa.array([]),
    pa.chunked_array([["a"], ["b"]]), pa.chunked_array([], pa.string()), pa.chunked_array([pa.array([5, 6])]),
    pa.array(["a", "b", "c"])[1:], pa.array([1, 2, None])[1:], pa.record_batch({"a": [1, 2]}), pa.table({"a": [1, 2]}),
    np.array([5, 6]), np.array(["a", "b"]), np.array([b"a", b"b"]), np.array([[1, 2]]), np.array([1.5, np.nan]),
    np.array(["2013", "2014"], "datetime64[Y]"), np.array(["2013-02-08", "NaT"], "datetime64[D]"), np.array([1j, 2j]),
    np.array(["2013-02-08T12:00"] * 2, "datetime64[ns]"), np.array([1, "a"], object), np.array([1, 2], ">i4"),
    np.array([(1, 2)] * 2, "i4,i4"), np.ma.array([1, 2], mask=[0, 1]), pd.Series(["a", None]), pd.Series([1, 2]),
    pd.Series([NOON, pd.NaT]), pd.Series([AWARE, pd.NaT]), pd.Categorical(["a", "b"]), pd.Index([1, 2]),
    pd.array([1, None], "Int64"), pd.interval_range(0, 2), pd.DataFrame({"a": [1, 2]}),
    pd.Series([pd.NA, "a"], dtype=object),    [1, "1"], ["a", "b"],
    [np.datetime64("2013-02-08"), None], [pd.NaT, pd.NA], [1.0, 2], [object()] * 2, [[], {}],
    [Decimal(1), "a"], [2**64, 1], ["\ud800", "a"], [10**100, 1], [b"a", "a"], [NOON, AWARE], [AWARE, AWARE],
]  # fmt: skip

NAMES = ("key", "key_start", "key_end", "effective_time", "value", "start", "end")

value, column = st.sampled_from(VALUES), st.sampled_from([*ARRAYS, *VALUES])
anything = st.one_of(value, column, st.lists(value, max_size=3))
conditions = st.one_of(
    anything,
    st.tuples(st.sampled_from(["key", "key_start", "effective_time", "value", "no", 5]),
              st.sampled_from(["=", "!=", "<", ">=", "in", "not in", "near"]), anything).map(lambda one: [one]),
    st.text("()'\"=<>, key1andornotlikinul%", max_size=30),
)  # fmt: skip
rows = st.one_of(
    anything,
    st.dictionaries(st.sampled_from(NAMES), column),
    st.lists(st.dictionaries(st.sampled_from(NAMES), value), max_size=3),
)  # fmt: skip


@pytest.fixture(scope="module")
def pond(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pond]:
    with millpond.open(tmp_path_factory.mktemp("odd") / "pond") as opened:
        for kind in PLAIN_KINDS:
            opened.create_map(kind.value, kind=kind)
        opened.map("state").load([{"key": "a", "value": 1}])
        opened.map("temporal_state").load([{"key": "a", "effective_time": 1000, "value": 1}])
        opened.map("ranged_state").load([{"key_start": 0, "key_end": 9, "value": 1}])
        opened.map("session").load([{"key": "a", "start": 1000, "end": 2000}])
        opened.create_map("typed", kind="state", value="long")
        yield opened


KINDS = [*(kind.value for kind in PLAIN_KINDS), "typed"]


def ours(act: Callable[[], Any]) -> None:
    """Make a call that may fail, in our own words, which can be written down."""
    with suppress(MillpondError):
        act()


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=examples(15, 60))
@given(key=anything, at=anything)
def test_get(pond: Pond, name: str, key: Any, at: Any) -> None:
    ours(lambda: pond.map(name).get(key))
    ours(lambda: pond.map(name).get("a" if pond.map(name).kind.keyed else 5, at=at))


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=examples(15, 60))
@given(keys=anything, at=anything, on_invalid=st.sampled_from(["error", "miss"]))
def test_lookup(pond: Pond, name: str, keys: Any, at: Any, on_invalid: Any) -> None:
    map = pond.map(name)
    ours(lambda: map.lookup(keys, on_invalid=on_invalid))
    ours(lambda: map.lookup(keys, at, on_invalid=on_invalid))
    ours(lambda: map.lookup(["a", "b"] if map.kind.keyed else [5, 6], at, on_invalid=on_invalid))


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=examples(10, 40))
@given(where=conditions, columns=st.one_of(st.none(), anything))
def test_scan(pond: Pond, name: str, where: Any, columns: Any) -> None:
    ours(lambda: pond.map(name).scan(where).read_all())
    ours(lambda: pond.map(name).scan(None, columns).read_all())


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=examples(5, 15))
@given(data=rows, zone=st.sampled_from([None, "UTC"]))
def test_load(pond: Pond, name: str, data: Any, zone: Any) -> None:
    ours(lambda: pond.map(name).load(data, zone=zone))


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=examples(4, 8))
@given(keys=anything, window=anything)
def test_snapshot(pond: Pond, name: str, keys: Any, window: Any) -> None:
    ours(lambda: pond.map(name).snapshot(keys=keys).close())
    ours(lambda: pond.map(name).snapshot(window=window).close())


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=examples(5, 25))
@given(one=anything, other=anything)
def test_methods_of_snapshots(pond: Pond, name: str, one: Any, other: Any) -> None:
    with pond.map(name).snapshot() as snapshot:
        ours(lambda: snapshot.get(one, other))
        ours(lambda: snapshot.value(one, other))
        ours(lambda: snapshot.lookup(one, other))
        ours(lambda: snapshot.lookup(one, between=other))
        ours(lambda: snapshot.take(snapshot.find(one, other)))
        ours(lambda: snapshot.take(one, other))
        key: Any = b"a" if snapshot.definition.kind.keyed else 5
        ours(lambda: snapshot.get(key, other))
        ours(lambda: snapshot.value(key, other))


@pytest.mark.usefixtures("processor")
@settings(max_examples=examples(10, 30))
@given(text=anything, before=anything)
def test_sql_and_maintenance(pond: Pond, text: Any, before: Any) -> None:
    ours(lambda: pond.sql(text))
    ours(lambda: pond.map("temporal_state").condense(before=before))
    ours(lambda: pond.map(text))


@pytest.mark.parametrize(
    "call",
    [
        lambda pond: pond.map("temporal_state").get("a", at=pd.NaT),
        lambda pond: pond.map("temporal_state").lookup(["a"], at=[np.datetime64("2013-02-08")]),
        lambda pond: pond.map("state").lookup(None),
        lambda pond: pond.map("state").lookup("JFK"),
        lambda pond: pond.map("ranged_state").lookup([pc.run_end_encode(pa.array([5]))]),
    ],
    ids=["no time", "a time without a zone", "nothing", "one text", "a column in a list"],
)
def test_what_is_wrong_is_said(pond: Pond, call: Callable[[Pond], Any]) -> None:
    with pytest.raises(millpond.Invalid):
        call(pond)
    assert pond.map("state").lookup([1, "a"]).to_pylist() == [None, "1"]
    assert pond.map("state").lookup(pc.run_end_encode(pa.array(["a", "a"]))).to_pylist() == ["1", "1"]
