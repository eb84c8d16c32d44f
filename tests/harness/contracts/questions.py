"""Questions to maps, in any pond: one key, many keys, rows, SQL. All of them tell what the model tells."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond.maps.model.columns import INSTANT, presented_schema
from millpond.maps.model.definition import PLAIN_KINDS, Kind
from millpond.maps.snapshots.snapshot import answer_type
from tests.harness import strategies
from tests.harness.audit import audit_answers, audit_sql
from tests.harness.contracts.maps import MIXED, NamedMaps, fresh_name, like
from tests.harness.models import MapModel
from tests.harness.rows import canonical_of
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from millpond.maps.protocols import MapLike, PondLike

__all__ = ("QuestionContract",)

EXAMPLES = examples(2, 30)


class QuestionContract(NamedMaps):
    """The promises of `get`, `lookup`, `scan` and `sql`."""

    @pytest.mark.usefixtures("processor")
    @pytest.mark.parametrize("kind", PLAIN_KINDS)
    @settings(max_examples=EXAMPLES, suppress_health_check=[*HealthCheck], deadline=None)
    @given(data=st.data())
    def test_every_way_of_asking_tells_what_the_model_tells(
        self, pond: PondLike, kind: Kind, data: st.DataObject
    ) -> None:
        definition = data.draw(strategies.definitions(kind=kind))
        pools = data.draw(strategies.pools(definition))
        made = like(pond, definition)
        model = MapModel(kind, overwrite=definition.overwrite)
        parts = data.draw(st.lists(strategies.rows(definition, pools), min_size=1, max_size=3))
        sealed = []
        for part in parts:
            writer = pond.part_writer(made.name)
            writer.write(canonical_of(made.definition, part))
            sealed += [(file, part) for file in writer.finish()]
        pond.commit_load([file for file, _ in sealed])
        model.load((file.manifest.id, part) for file, part in sealed)
        questions = data.draw(strategies.questions(definition, pools))
        audit_answers(made, model, questions)
        audit_sql(pond, made, model, questions)
        pond.drop_map(made.name)

    # -- one key --------------------------------------------------------------------------------------

    def test_one_key_at_one_time(self, weather: MapLike) -> None:
        first = {"temp": 33.1, "wind_speed": 20.7, "code": ""}
        second = {"temp": 32.0, "wind_speed": None, "code": "OVC"}
        assert weather.get("JFK", at="2013-02-08T16:59:59.999Z") is None
        assert weather.get("JFK", at="2013-02-08T17:00Z") == first
        berlin = timezone(timedelta(hours=1))
        assert weather.get("JFK", at=datetime(2013, 2, 8, 18, 59, 59, tzinfo=berlin)) == first
        assert weather.get(b"JFK", at=1360346400000) == second
        assert weather.get("JFK") == second
        assert weather.get("EWR") is None

    def test_undeclared_values_keep_their_types(self, mixed: MapLike) -> None:
        for key, value in MIXED.items():
            value_ = mixed.get(key)
            assert value_ == value
            assert type(value_) is type(value)
        assert mixed.get("nobody") is None

    def test_declared_values_come_as_python_has_them(self, pond: PondLike) -> None:
        instant = datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)
        examples: dict[str, list[Any]] = {
            "timestamp": [instant, None], "binary": [b"", b"\x00"], "json": ['{"a": [1]}', "null"],
            "double": [float("inf"), -0.0, 5e-324], "long": [-(1 << 63), (1 << 63) - 1], "boolean": [True, False, None],
        }  # fmt: skip
        for kind, values in examples.items():
            made = pond.create_map(fresh_name(), kind="state", value=kind)
            made.load([{"key": str(n), "value": value} for n, value in enumerate(values)])
            assert [repr(made.get(str(n))) for n in range(len(values))] == [repr(value) for value in values]

    def test_nan_stays_what_it_is(self, pond: PondLike, fresh: str) -> None:
        made = pond.create_map(fresh, kind="state", value="double")
        made.load(pa.table({"key": ["a"], "value": [float("nan")]}))
        answer = made.get("a")
        assert answer != answer

    @pytest.mark.parametrize("key", ["", "\0", "a b&c=d/e?f#g%h+i", "é\U0001f600", "k" * 512, "\0" * 65_536])
    @pytest.mark.parametrize("scheme", ["auto", "lookup"])
    def test_keys_of_any_letters_and_length(self, pond: PondLike, fresh: str, key: str, scheme: str) -> None:
        made = pond.create_map(fresh, kind="state", value="long", scheme=scheme)
        made.load(pa.table({"key": [key, "other"], "value": [1, 2]}))
        assert made.get(key) == 1
        assert made.get(key.encode()) == 1
        assert made.lookup([key, "other", key + "x"]).to_pylist() == [1, 2, None]
        assert made.scan([("key", "=", key)]).read_all().num_rows == 1

    def test_keys_that_are_no_text_are_asked_as_bytes(self, pond: PondLike, fresh: str) -> None:
        made = pond.create_map(fresh, kind="state", value="long")
        made.load(pa.table({"key": ["a"], "value": [1]}))
        assert made.get(b"\xff\x00") is None
        assert made.lookup(pa.array([b"\xff", b"a"])).to_pylist() == [None, 1]

    def test_ranges_are_asked_by_number(self, pond: PondLike, fresh: str) -> None:
        made = pond.create_map(fresh, kind="ranged_state", value="string")
        made.load(pa.table({"key_start": [-10, 10, 12], "key_end": [-1, 30, 13], "value": ["low", "wide", "narrow"]}))
        assert [made.get(n) for n in (-11, -10, -1, 9, 10, 12, 13, 14, 30, 31)] == [
            None, "low", "low", None, "wide", "narrow", "narrow", "wide", "wide", None,
        ]  # fmt: skip
        assert made.get("12") == "narrow"
        assert made.get(" -5 ") == "low"
        assert made.get(1 << 63) is None
        assert made.lookup(["12", None]).to_pylist() == ["narrow", None]

    def test_sessions_answer_with_their_ends(self, pond: PondLike, fresh: str) -> None:
        made = pond.create_map(fresh, kind="session")
        made.load(pa.table({"key": ["a", "a"], "start": [-2000, 0], "end": [5000, 1000]}))
        outer = {"start": _at(-2000), "end": _at(5000)}
        inner = {"start": _at(0), "end": _at(1000)}
        assert [made.get("a", at=at) for at in (-2001, -2000, 0, 1000, 1001, 5000, 5001)] == [
            None, outer, inner, inner, outer, outer, None,
        ]  # fmt: skip
        assert made.lookup(["a", "b"], at=500).to_pylist() == [inner, None]

    def test_before_1970_is_a_time_like_any_other(self, pond: PondLike, fresh: str) -> None:
        made = pond.create_map(fresh, kind="temporal_state", value="string")
        made.load(
            pa.table(
                {
                    "key": ["a", "a"],
                    "effective_time": ["1900-01-01T00:00Z", "1969-12-31T23:59:59.999Z"],
                    "value": ["old", "eve"],
                }
            )
        )
        assert made.get("a", at="1899-12-31T23:59:59.999Z") is None
        assert made.get("a", at="1969-12-31T23:59:59.998Z") == "old"
        assert made.get("a", at=0) == "eve"
        assert made.lookup(["a"] * 3, at=[-(1 << 42), -2, -1]).to_pylist() == [None, "old", "eve"]

    def test_early_1970_is_a_time_like_any_other(self, pond: PondLike, fresh: str) -> None:
        made = pond.create_map(fresh, kind="temporal_state", value="string")
        instant = "1970-01-19T06:18:43.201Z"  # 1,577,923,201 milliseconds: as a number it is refused
        made.load([{"key": "a", "effective_time": instant, "value": "early"}])
        assert made.get("a", at=instant) == "early"
        assert made.lookup(["a"], at=instant).to_pylist() == ["early"]
        at = pa.array([1_577_923_200, 1_577_923_201, None]).cast(INSTANT)
        assert made.lookup(["a"] * 3, at=at).to_pylist() == [None, "early", None]
        assert made.snapshot(window=(instant, None)).lookup(["a"], at=instant).to_pylist() == ["early"]
        assert made.scan([("effective_time", ">=", instant)]).read_all().num_rows == 1
        made.retain(before=instant)
        assert made.get("a", at=instant) == "early"

    # -- many keys ------------------------------------------------------------------------------------

    def test_many_keys_at_one_time_or_at_their_own(self, weather: MapLike) -> None:
        keys = ["JFK", "LGA", "JFK", "EWR"]
        answers = weather.lookup(keys, at="2013-02-08T17:30Z")
        assert answers.type == answer_type(weather.definition)
        assert [answer and answer["temp"] for answer in answers.to_pylist()] == [33.1, None, 33.1, None]
        times = pa.array([1360346400000, 1360346400000, 0, 0], pa.int64())
        for at in (times, times.cast(INSTANT), times.cast(INSTANT).cast(pa.timestamp("us", "Asia/Tokyo"))):
            assert [answer and answer["temp"] for answer in weather.lookup(keys, at).to_pylist()] == [
                32.0,
                None,
                None,
                None,
            ]
        assert weather.lookup(keys).to_pylist() == weather.lookup(keys, at="2099-01-01T00:00Z").to_pylist()

    def test_keys_come_in_any_form_of_column(self, weather: MapLike) -> None:
        keys = pa.array(["JFK", None, "LGA"])
        expected = weather.lookup(keys, at=1360346400000).to_pylist()
        assert expected[1] is None
        for form in (
            keys.to_pylist(), keys.cast(pa.large_string()), keys.cast(pa.binary()), keys.dictionary_encode(),
            pa.chunked_array([keys[:1], keys[1:]]), keys.to_numpy(zero_copy_only=False),
        ):  # fmt: skip
            assert weather.lookup(form, at=1360346400000).to_pylist() == expected
        assert len(weather.lookup([], at=0)) == 0
        assert len(weather.lookup(pa.array([], pa.string()), at=pa.array([], pa.int64()))) == 0

    def test_a_frame_is_enriched(self, pond: PondLike, weather: MapLike) -> None:
        frame = pa.table({"origin": ["JFK", "EWR"], "hour": ["2013-02-08T18:30Z"] * 2})
        answer = pond.enrich(frame, map=weather.name, key="origin", at="hour", into="weather")
        assert answer.drop_columns("weather").equals(frame)
        assert [found and found["temp"] for found in answer.column("weather").to_pylist()] == [32.0, None]

    def test_a_column_of_times_may_have_holes(self, weather: MapLike) -> None:
        answers = weather.lookup(["JFK", "JFK"], at=pa.array([None, 1360346400000], pa.timestamp("ms", "UTC")))
        assert [answer and answer["temp"] for answer in answers.to_pylist()] == [None, 32.0]

    @pytest.mark.usefixtures("processor")
    def test_more_keys_than_fit_a_page(self, pond: PondLike, fresh: str) -> None:
        made = pond.create_map(fresh, kind="state", value="long")
        count = 30_000
        made.load(pa.table({"key": [f"key-{n}" for n in range(count)], "value": list(range(count))}))
        keys = [f"key-{(7 * n) % (2 * count)}" for n in range(count)]
        answers = made.lookup(keys).to_pylist()
        assert answers == [n if n < count else None for n in ((7 * n) % (2 * count) for n in range(count))]

    def test_undeclared_values_are_looked_up_as_text(self, mixed: MapLike) -> None:
        answers = mixed.lookup(list(MIXED))
        assert answers.type == pa.string()
        assert answers.to_pylist() == ["é", None, "", str(1 << 62), "0.1", "true", "AP8="]

    # -- rows -----------------------------------------------------------------------------------------

    def test_a_scan_shows_rows_as_people_read_them(self, weather: MapLike) -> None:
        reader = weather.scan()
        assert reader.schema.equals(presented_schema(weather.definition))
        assert reader.read_all().sort_by([("key", "ascending"), ("effective_time", "ascending")]).to_pylist() == [
            {"key": "JFK", "effective_time": _utc(17), "temp": 33.1, "wind_speed": 20.7, "code": ""},
            {"key": "JFK", "effective_time": _utc(18), "temp": 32.0, "wind_speed": None, "code": "OVC"},
            {"key": "LGA", "effective_time": _utc(17), "temp": None, "wind_speed": 18.4, "code": None},
        ]

    @pytest.mark.parametrize(
        ("where", "temps"),
        [
            (None, [32.0, 33.1, None]),
            ([], [32.0, 33.1, None]),
            ("key = 'JFK' and effective_time >= '2013-02-08T18:00Z'", [32.0]),
            ("temp > 32.5 or code is null", [33.1, None]),
            ("key like 'J%' and not (temp < 33)", [33.1]),
            ([("key", "in", ["LGA", "EWR"])], [None]),
            ([("effective_time", "<", datetime(2013, 2, 8, 18, tzinfo=UTC)), ("temp", "!=", 5)], [33.1]),
            (pc.field("key") == "JFK", [32.0, 33.1]),
            ((pc.field("temp") * 2 > 65) | pc.field("code").is_null(), [33.1, None]),
            (pc.utf8_lower(pc.field("code")) == "ovc", [32.0]),
            (pc.field("effective_time") == pa.scalar(datetime(2013, 2, 8, 17, tzinfo=UTC), INSTANT), [33.1, None]),
        ],
        ids=[str(n) for n in range(11)],
    )
    def test_conditions_take_the_rows_they_say(self, weather: MapLike, where: Any, temps: list[Any]) -> None:
        rows = weather.scan(where, ["temp"]).read_all()
        assert rows.column_names == ["temp"]
        assert sorted(rows.column("temp").to_pylist(), key=lambda temp: (temp is None, temp)) == temps

    def test_columns_come_in_the_order_they_are_named(self, weather: MapLike) -> None:
        assert weather.scan("temp > 33", ["temp", "key"]).read_all().to_pydict() == {"temp": [33.1], "key": ["JFK"]}

    def test_a_scan_that_is_dropped_is_no_harm(self, pond: PondLike, fresh: str) -> None:
        made = pond.create_map(fresh, kind="state", value="string")
        made.load(pa.table({"key": [f"{n}" for n in range(50_000)], "value": ["some text to carry"] * 50_000}))
        for _ in range(5):
            reader = made.scan()
            assert reader.read_next_batch().num_rows
            reader.close()
            del reader
        assert sum(batch.num_rows for batch in made.scan()) == 50_000
        assert made.get("7") == "some text to carry"

    # -- SQL ------------------------------------------------------------------------------------------

    @pytest.mark.usefixtures("processor")
    def test_every_map_is_a_table(self, pond: PondLike, weather: MapLike) -> None:
        name = weather.name
        table = pond.sql(f"select key, count(*) as n, max(temp) as warmest from {name} group by key order by key")
        assert table.to_pydict() == {"key": ["JFK", "LGA"], "n": [2, 1], "warmest": [33.1, None]}
        assert pond.sql(f"select count(*) as n from {name} where temp > 32.5").to_pydict() == {"n": [1]}
        joined = f"select a.key from {name} a join {name} b using (key) where a.temp = 32 and b.temp > 33"
        assert pond.sql(joined).to_pydict() == {"key": ["JFK"]}

    @pytest.mark.usefixtures("processor")
    def test_keys_are_looked_up_in_sql(self, pond: PondLike, weather: MapLike) -> None:
        call = f"get_state('{weather.name}', k, timestamptz '2013-02-08 18:00:00+00')"
        table = pond.sql(f"select {call}.temp as temp from (values ('JFK'), ('EWR'), (null)) t(k)")
        assert table.to_pydict() == {"temp": [32.0, None, None]}
        many = pond.sql(f"select count(get_state('{weather.name}', 'JFK').code) as n from range(5000)")
        assert many.to_pydict() == {"n": [5000]}


def _at(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def _utc(hour: int) -> datetime:
    return datetime(2013, 2, 8, hour, tzinfo=UTC)
