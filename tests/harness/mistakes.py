"""Every mistake a user of a pond can make, and the error it is, wherever the pond lies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from millpond.errors import AlreadyExists, Invalid, MillpondError, NotFound
from tests.harness.contracts.maps import NamedMaps, fresh_name

if TYPE_CHECKING:
    from millpond.maps.protocols import MapLike, PondLike

__all__ = ("MISTAKES", "MistakesContract", "Stage")


@dataclass(frozen=True)
class Stage:
    """The target of mistakes: a pond, and a map of four kinds."""

    pond: PondLike
    timed: MapLike  # temporal_state of doubles
    fields: MapLike  # state of temp double, code string
    ranged: MapLike  # ranged_state
    sessions: MapLike

    def create(self, **settings: Any) -> MapLike:
        """Make one more map."""
        return self.pond.create_map(settings.pop("name", fresh_name()), **{"kind": "state", **settings})


Mistake = tuple[type[MillpondError], str, Callable[[Stage], object]]


def _row(**columns: Any) -> pa.Table:
    return pa.table({"key": ["a"], "effective_time": [0], "value": [1.0]} | columns)


_CATALOGUE: dict[str, Mistake] = {
    "kind": (Invalid, "kind_unknown", lambda s: s.create(kind="nothing")),
    "scheme": (Invalid, "scheme_unknown", lambda s: s.create(scheme="nothing")),
    "name": (Invalid, "map_name", lambda s: s.create(name="1x")),
    "empty name": (Invalid, "map_name", lambda s: s.create(name="")),
    "value type": (Invalid, "value_type_unknown", lambda s: s.create(value="number")),
    "field type": (Invalid, "value_type_unknown", lambda s: s.create(value="a number, b long")),
    "field name": (Invalid, "value_field_name", lambda s: s.create(value="key long")),
    "age": (Invalid, "duration", lambda s: s.create(condense="soon")),
    "retain": (Invalid, "duration", lambda s: s.create(retain="10 moons")),
    "hash bytes": (Invalid, "hash_bytes", lambda s: s.create(hash_bytes=5)),
    "retain by": (Invalid, "retain_by", lambda s: s.create(retain_by="mood")),
    "condense by": (Invalid, "condense_by", lambda s: s.create(condense_by="mood")),
    "session with value": (Invalid, "session_value", lambda s: s.create(kind="session", value="string")),
    "exists": (
        AlreadyExists, "map_exists", lambda s: s.create(name=s.timed.name, kind="temporal_state", value="double"),
    ),
    "exists otherwise": (AlreadyExists, "map_exists", lambda s: s.create(name=s.timed.name, exist_ok=True)),
    "no such map": (NotFound, "map_not_found", lambda s: s.pond.map("weathr")),
    "no map's name": (NotFound, "map_not_found", lambda s: s.pond.map("a/b")),
    "nameless": (NotFound, "map_not_found", lambda s: s.pond.map("")),
    "alter shape": (Invalid, "setting_fixed", lambda s: s.pond.alter_map(s.timed.name, value="long")),
    "alter age": (Invalid, "duration", lambda s: s.pond.alter_map(s.timed.name, retain="soon")),
    "alter retain by": (Invalid, "retain_by", lambda s: s.pond.alter_map(s.timed.name, retain_by="mood")),
    "alter condense by": (Invalid, "condense_by", lambda s: s.pond.alter_map(s.timed.name, condense_by="mood")),
    "alter nobody": (NotFound, "map_not_found", lambda s: s.pond.alter_map("nobody", retain="1d")),
    "drop nobody": (NotFound, "map_not_found", lambda s: s.pond.drop_map("nobody")),
}  # fmt: skip

_LOADS: dict[str, Mistake] = {
    "write nobody": (NotFound, "map_not_found", lambda s: s.pond.part_writer("nobody")),
    "no time": (Invalid, "column_missing", lambda s: s.timed.load(pa.table({"key": ["a"], "value": [1.0]}))),
    "naive text": (Invalid, "too_many_rejects", lambda s: s.timed.load(_row(effective_time=["2013-01-01T00:00"]))),
    "naive column": (Invalid, "time_naive", lambda s: s.timed.load(_row(effective_time=[datetime(2013, 1, 1)]))),  # noqa: DTZ001
    "no number": (Invalid, "too_many_rejects", lambda s: s.timed.load(_row(value=["warm"]))),
    "no time text": (Invalid, "too_many_rejects", lambda s: s.timed.load(_row(effective_time=["soon"]))),
    "list": (Invalid, "column_type", lambda s: s.timed.load(_row(value=[[1.0]]))),
    "mapping": (Invalid, "column_mapping", lambda s: s.timed.load(_row(), columns={"nokey": "a"})),
    "mapped twice": (
        Invalid, "column_mapping", lambda s: s.timed.load(_row(), columns={"time": "a", "effective_time": "b"})
    ),
    "mapped column": (Invalid, "column_missing", lambda s: s.timed.load(_row(), columns={"key": "b"})),
    "max rejects": (Invalid, "max_rejects", lambda s: s.timed.load(_row(), max_rejects=-1)),
    "zone": (Invalid, "zone_unknown", lambda s: s.timed.load(_row(), zone="Mars/Base")),
    "reject file": (NotFound, "rejects_file", lambda s: s.timed.load(_row(), rejects="/no/such/folder/file")),
    "reject file's name": (NotFound, "rejects_file", lambda s: s.timed.load(_row(), rejects="\0")),
    "reject file's long name": (NotFound, "rejects_file", lambda s: s.timed.load(_row(), rejects="x" * 2_000)),
    "long name": (NotFound, "file_not_found", lambda s: s.pond.load_files("x" * 2_000, s.timed.name)),
    "retry on no node": (Invalid, "node_unknown", lambda s: s.pond.parts.retry(node="nobody")),
    "entries of the log": (Invalid, "argument_negative", lambda s: s.pond.log.entries(0, -1)),
    "no data": (Invalid, "data_unknown", lambda s: s.timed.load(42)),
    "range": (
        Invalid, "too_many_rejects",
        lambda s: s.ranged.load(pa.table({"key_start": [5], "key_end": [1], "value": ["x"]})),
    ),
    "session": (
        Invalid, "too_many_rejects", lambda s: s.sessions.load(pa.table({"key": ["a"], "start": [5], "end": [1]})),
    ),
    "no file": (NotFound, "file_not_found", lambda s: s.pond.load_files("nothing.csv", s.timed.name)),
    "file for nobody": (NotFound, "map_not_found", lambda s: s.pond.load_files("nothing.csv", "nobody")),
    "no files": (Invalid, "no_input", lambda s: s.pond.load_files([], s.timed.name)),
}  # fmt: skip

_QUESTIONS: dict[str, Mistake] = {
    "number": (Invalid, "key_number", lambda s: s.ranged.get("abc")),
    "time": (Invalid, "time_unknown", lambda s: s.timed.get("a", at="yesterday")),
    "date": (Invalid, "time_naive", lambda s: s.timed.get("a", at="2013-01-01")),
    "naive": (Invalid, "time_naive", lambda s: s.timed.get("a", at=datetime(2013, 1, 1))),  # noqa: DTZ001
    "fewer times": (Invalid, "at_length", lambda s: s.timed.lookup(["a", "b"], at=[1])),
    "naive lookup": (Invalid, "time_naive", lambda s: s.timed.lookup(["a"], at="2013-01-01T00:00")),
    "times": (Invalid, "time_unknown", lambda s: s.timed.lookup(["a"], at=["soon"])),
    "seconds": (Invalid, "time_unknown", lambda s: s.timed.get("a", at=1_577_923_201)),
    "seconds of a lookup": (Invalid, "time_unknown", lambda s: s.timed.lookup(["a"], at=1_577_923_201)),
    "seconds in a column": (Invalid, "time_unknown", lambda s: s.timed.lookup(["a", "a"], at=[0, 1_577_923_201])),
    "microseconds": (Invalid, "time_unknown", lambda s: s.timed.lookup(["a"], at=[1_577_923_201_000_000])),
    "seconds in a condition": (
        Invalid, "time_unknown", lambda s: s.timed.scan([("effective_time", ">", 1_577_923_201)])
    ),
    "seconds in text": (Invalid, "time_unknown", lambda s: s.timed.scan("effective_time > 1577923201")),
    "seconds of a window": (Invalid, "time_unknown", lambda s: s.timed.snapshot(window=(1_577_923_201, None))),
    "seconds of a limit": (Invalid, "time_unknown", lambda s: s.timed.retain(1_577_923_201)),
    "numbers": (Invalid, "key_number", lambda s: s.ranged.lookup(["x"])),
    "fractions": (Invalid, "key_number", lambda s: s.timed.lookup([1.5], at=1)),
    "lists": (Invalid, "key_type", lambda s: s.timed.lookup(pa.array([[1]]), at=1)),
    "column": (Invalid, "column_unknown", lambda s: s.timed.scan("nothing = 1")),
    "condition": (Invalid, "condition", lambda s: s.timed.scan("value = ")),
    "text for number": (Invalid, "condition_value", lambda s: s.timed.scan("value = 'warm'")),
    "columns": (Invalid, "column_unknown", lambda s: s.timed.scan(columns=["nothing"])),
    "comparison": (Invalid, "condition", lambda s: s.timed.scan([("value", "near", 1)])),
    "unknown column": (Invalid, "column_unknown", lambda s: s.timed.scan([("nothing", "=", 1)])),
    "unknown value": (Invalid, "condition_value", lambda s: s.timed.scan([("value", "=", "x")])),
    "unknown time": (Invalid, "time_unknown", lambda s: s.timed.scan("effective_time > 'soon'")),
    "expression": (Invalid, "condition", lambda s: s.fields.scan(pc.field("key") == 5).read_all()),
    "no SQL": (Invalid, "sql", lambda s: s.pond.sql("selec 1")),
    "no table": (Invalid, "sql", lambda s: s.pond.sql("select * from nobody")),
    "no query": (Invalid, "sql_not_a_query", lambda s: s.pond.sql(f"drop table {s.timed.name}")),
    "two queries": (Invalid, "sql", lambda s: s.pond.sql("select 1; select 2")),
    "state of nobody": (NotFound, "map_not_found", lambda s: s.pond.sql("select get_state('nobody', 'a')")),
    "state of a column": (
        Invalid, "sql_get_state", lambda s: s.pond.sql(f"select get_state(key, 'a') from {s.timed.name}"),
    ),
    "file in SQL": (Invalid, "sql_not_a_map", lambda s: s.pond.sql("select * from 'x.csv'")),
    "column in SQL": (Invalid, "sql", lambda s: s.pond.sql(f"select nothing from {s.timed.name}")),
}  # fmt: skip

_MAINTENANCE: dict[str, Mistake] = {
    "condense": (Invalid, "maintenance_setting", lambda s: s.timed.condense()),
    "retain unset": (Invalid, "maintenance_setting", lambda s: s.timed.retain()),
    "condense before": (Invalid, "time_unknown", lambda s: s.timed.condense(before="soon")),
    "retain before": (Invalid, "time_naive", lambda s: s.timed.retain(before="2013-01-01")),
}

MISTAKES: dict[str, Mistake] = {**_CATALOGUE, **_LOADS, **_QUESTIONS, **_MAINTENANCE}
"""Mistakes by name: the act, and the class and kind of the error it gets."""


class MistakesContract(NamedMaps):
    """The same mistake is the same error everywhere."""

    @pytest.fixture(scope="class")
    def stage(self, pond: PondLike) -> Stage:
        """Maps to make mistakes with."""
        fields = pond.create_map(fresh_name("fields"), kind="state", value="temp double, code string")
        fields.load([{"key": "a", "temp": 1.0, "code": "x"}])
        return Stage(
            pond, pond.create_map(fresh_name("timed"), kind="temporal_state", value="double"), fields,
            pond.create_map(fresh_name("ranged"), kind="ranged_state"),
            pond.create_map(fresh_name("sessions"), kind="session"),
        )  # fmt: skip

    @pytest.mark.parametrize("mistake", MISTAKES)
    def test_a_mistake_is_told_by_class_and_kind(self, stage: Stage, mistake: str) -> None:
        cls, kind, make = MISTAKES[mistake]
        with pytest.raises(cls) as caught:
            make(stage)
        assert (type(caught.value), caught.value.kind) == (cls, kind)
        assert caught.value.message

    def test_after_all_mistakes_nothing_has_changed(self, stage: Stage) -> None:
        for pond_map in (stage.timed, stage.ranged, stage.sessions):
            assert pond_map.info()["rows"] == 0
            assert stage.pond.map(pond_map.name).definition == pond_map.definition
