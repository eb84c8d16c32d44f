"""Maps whose fields change, and loads that bring columns a map lacks: what is shown, what is refused, and races."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from pyarrow import parquet

import millpond
from millpond.clock import ManualClock
from millpond.errors import Conflict, Invalid
from millpond.kernel.steps import listening
from millpond.maps.inputs.formats import delimited
from millpond.maps.inputs.mapping import ColumnMapping
from tests.harness.rows import canonical_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from millpond import Map, Pond

BIG = 2**53 + 1


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond", clock=ManualClock(now=1_700_000_000_000)) as opened:
        yield opened


@pytest.fixture
def weather(pond: Pond) -> Map:
    made = pond.create_map("weather", kind="state", value="temp long, visib double", store="layers")
    made.load([{"key": "JFK", "temp": 70, "visib": 10.0}])
    return made


def ranges_of(pond_map: Map) -> set[str]:
    return {named.name for named in pond_map.objects.list("ranges")}


@pytest.mark.usefixtures("process")
def test_fields_change_and_no_row_is_rewritten(pond: Pond, weather: Map) -> None:
    before = ranges_of(weather)
    changed = pond.alter_map(
        "weather", add={"gust": "double"}, default={"gust": 3}, drop=["visib"], rename={"temp": "t"},
        widen={"temp": "double"}, condense="30d",
    )  # fmt: skip
    assert ranges_of(weather) == before
    assert (str(changed.definition.value), changed.definition.condense_ms) == ("t double, gust double", 30 * 86_400_000)
    for handle in (weather, changed):
        assert handle.get("JFK") == {"t": 70.0, "gust": 3.0}
    weather.load([{"key": "LGA", "t": 71.5, "gust": None}])
    assert changed.lookup(["LGA", "JFK"]).to_pylist() == [{"t": 71.5, "gust": None}, {"t": 70.0, "gust": 3.0}]
    assert pond.sql("select sum(t) as s, max(gust) as g from weather").to_pylist() == [{"s": 141.5, "g": 3.0}]
    assert weather.scan("gust = 3").read_all()["key"].to_pylist() == ["JFK"]
    assert pond.verify().ok


def test_a_name_that_is_taken_again_is_another_field(pond: Pond, weather: Map) -> None:
    pond.alter_map("weather", drop=["visib"])
    pond.alter_map("weather", add={"visib": "double"})
    assert weather.get("JFK") == {"temp": 70, "visib": None}
    pond.alter_map("weather", rename={"temp": "visib", "visib": "temp"})
    assert weather.get("JFK") == {"visib": 70, "temp": None}
    weather.compact()
    assert weather.get("JFK") == {"visib": 70, "temp": None}


def test_compacting_writes_the_fields_in_force(pond: Pond, weather: Map) -> None:
    pond.alter_map("weather", add={"gust": "string"}, default={"gust": "none"})
    weather.compact()
    layers = weather.layers
    assert layers is not None
    manifest = layers.head().manifest
    assert manifest is not None
    assert [manifest.projection(layer) for layer in manifest.layers] == [None]
    assert weather.get("JFK") == {"temp": 70, "visib": 10.0, "gust": "none"}


def test_a_change_that_changes_nothing_is_no_entry(pond: Pond, weather: Map) -> None:
    position = pond.log.position()
    pond.alter_map("weather", widen={"temp": "long"}, rename={"temp": "temp"})
    assert pond.log.position() == position


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"drop": ["gust"]}, "value_field_unknown"),
        ({"rename": {"gust": "g"}}, "value_field_unknown"),
        ({"widen": {"visib": "long"}}, "field_narrowed"),
        ({"widen": {"temp": "boolean"}}, "field_narrowed"),
        ({"add": {"temp": "long"}}, "value_field_name"),
        ({"add": {"key": "long"}}, "value_field_name"),
        ({"rename": {"temp": "visib"}}, "value_field_name"),
        ({"add": {"gust": "decimal"}}, "value_type_unknown"),
        ({"add": {"gust": "long"}, "default": {"gust": "fast"}}, "field_default"),
        ({"default": {"gust": 1}}, "field_change"),
        ({"drop": ["temp", "visib"]}, "field_change"),
        ({"drop": "temp"}, "field_change"),
        ({"add": ["gust"]}, "field_change"),
        ({"drop": ["temp"], "widen": {"temp": "double"}}, "field_change"),
    ],
)
def test_what_cannot_be_is_refused_by_name(pond: Pond, weather: Map, change: dict[str, Any], kind: str) -> None:
    with pytest.raises(Invalid) as refused:
        pond.alter_map("weather", **change)
    assert refused.value.kind == kind
    assert refused.value.values["field" if kind != "value_type_unknown" else "type"]
    assert weather.get("JFK") == {"temp": 70, "visib": 10.0}


def test_single_values_widen_where_none_is_lost(pond: Pond) -> None:
    numbers = pond.create_map("numbers", kind="ranged_state", value="long", store="layers")
    numbers.load([{"key_start": 1, "key_end": 5, "value": 7}, {"key_start": 6, "key_end": 7, "value": BIG}])
    with pytest.raises(Invalid, match="does not tell this number") as refused:
        pond.alter_map("numbers", widen={"value": "double"})
    assert refused.value.kind == "field_narrowed"
    with pytest.raises(Invalid, match="single values"):
        pond.alter_map("numbers", add={"more": "long"})
    pond.alter_map("numbers", widen={"value": "string"})
    assert numbers.lookup([1, 6, 8]).to_pylist() == ["7", str(BIG), None]


@pytest.mark.parametrize("change", [{"rename": {"temp": "t"}}, {"add": {"gust": "long"}}])
def test_a_change_of_fields_is_taken_back_whatever_was_loaded_since(pond: Pond, weather: Map, change: Any) -> None:
    pond.alter_map("weather", **change)
    altered = pond.refs.resolve("main")
    for key in ("LGA", "EWR"):
        weather.load(
            [{"key": key, change.get("rename", {}).get("temp", "temp"): 5, "visib": 1.0, "gust": 2}], extra="ignore"
        )
    pond.refs.revert(altered)
    assert weather.lookup(["JFK", "EWR"]).to_pylist() == [{"temp": 70, "visib": 10.0}, {"temp": 5, "visib": 1.0}]


@pytest.mark.parametrize("branch", ["main", "fix"])
def test_a_field_that_is_added_again_after_a_revert_is_another_one(pond: Pond, weather: Map, branch: str) -> None:
    fix = pond.branch("fix", source="main")
    place: Any = pond if branch == "main" else fix
    for _ in range(2):  # the second field is taken back, too
        place.alter_map("weather", add={"gust": "long"})
        added = pond.refs.resolve(branch)
        place.map("weather").load([{"key": "LGA", "temp": 5, "visib": 1.0, "gust": 2}], again=True)
        pond.refs.revert(added, branch)
    place.alter_map("weather", drop=["visib"])
    pond.refs.revert(pond.refs.resolve(branch), branch)
    fields = place.alter_map("weather", add={"gust": "long"}).definition.fields
    assert place.map("weather").get("LGA") == {"temp": 5, "visib": 1.0, "gust": None}
    if branch == "fix":
        place.merge()
    weather.compact()
    assert pond.map("weather").get("LGA") == {"temp": 5, "visib": 1.0, "gust": None}
    assert pond.map("weather").definition.fields == fields
    other = pond.branch("other", source="main")  # made from it: both give what they add one id
    for side in (pond, other):
        side.alter_map("weather", add={"rain": "long"})
    other.map("weather").load([{"key": "EWR", "temp": 5, "visib": 1.0, "gust": 2, "rain": 3}])
    other.merge()
    assert pond.map("weather").get("EWR") == {"temp": 5, "visib": 1.0, "gust": 2, "rain": 3}


def test_no_value_is_narrowed_where_a_widening_is_taken_back(pond: Pond, weather: Map) -> None:
    pond.branch("fix", source="main")
    pond.alter_map("weather", widen={"temp": "double"})
    widened = pond.refs.resolve("main")
    weather.load([{"key": "LGA", "temp": 1.5, "visib": 1.0}])
    for act in (lambda: pond.refs.revert(widened), lambda: pond.refs.cherry_pick("main", "fix")):
        with pytest.raises(Invalid, match="wider type") as refused:
            act()
        assert (refused.value.kind, refused.value.values["field"]) == ("field_narrowed", "temp")
    moment = pond.clock.now_ms()
    cast("ManualClock", pond.clock).advance(1_000)
    assert weather.get("LGA") == {"temp": 1.5, "visib": 1.0}
    pond.refs.restore(f"{widened}~1")
    assert weather.lookup(["LGA", "JFK"]).to_pylist() == [None, {"temp": 70, "visib": 10.0}]
    with pytest.raises(Invalid, match="wider type"):
        weather.lookup(["LGA"], known_at=[moment])
    with pytest.raises(Invalid, match="wider type"):
        weather.scan(known_at=moment).read_all()


@pytest.mark.parametrize("timed", [False, True])
def test_a_map_of_ranges_without_rows_answers_nothing(pond: Pond, timed: bool) -> None:
    """An alteration before the first load, and a revert of it, leave no layer, and no sections."""
    kind, at = ("temporal_ranged_state", 0) if timed else ("ranged_state", None)
    pond.create_map("blocks", kind=kind, value="owner string", store="layers")
    fix, now = pond.branch("fix", source="main"), {"effective_time": [pond.clock.now_ms()]} if timed else {}
    fix.map("blocks").load({"key_start": [1], "key_end": [5], "owner": ["x"]} | now)
    pond.refs.revert("fix", "fix")
    blocks = pond.alter_map("blocks", add={"more": "long"})
    for empty in (fix.map("blocks"), blocks):
        assert empty.lookup([1, None], at).to_pylist() == [None, None]
        assert empty.get(1, at) is None
    assert blocks.lookup([1], at, known_at=[pond.clock.now_ms()]).to_pylist() == [None]


@pytest.mark.parametrize("default", [BIG, -(2**63)])
def test_a_default_is_widened_as_the_values_of_rows_are(pond: Pond, weather: Map, default: int) -> None:
    pond.alter_map("weather", add={"count": "long", "few": "long"}, default={"count": default, "few": 3})
    with pytest.raises(Invalid, match="does not tell this number") as refused:
        pond.alter_map("weather", widen={"count": "double"})
    assert refused.value.kind == "field_narrowed"
    pond.alter_map("weather", widen={"count": "string", "few": "double"})
    assert weather.get("JFK") == {"temp": 70, "visib": 10.0, "count": str(default), "few": 3.0}


def test_maps_in_shards_and_without_a_type_keep_their_fields(pond: Pond) -> None:
    pond.create_map("owner", kind="state", value="long")
    with pytest.raises(Invalid, match="alter owner --store layers") as refused:
        pond.alter_map("owner", widen={"value": "double"})
    assert refused.value.kind == "store_unsupported"
    pond.create_map("mixed", kind="state", store="layers")
    with pytest.raises(Invalid, match="no declared type"):
        pond.alter_map("mixed", add={"gust": "long"})


def at_step(name: str, act: Callable[[], object]) -> Any:
    def listen(step: str) -> None:
        if step == name and acts:
            acts.pop()()

    acts = [act]
    return listening(listen)


def test_a_load_that_began_before_a_change_comes_after_it(pond: Pond, weather: Map) -> None:
    def change() -> None:
        pond.alter_map("weather", rename={"temp": "t"}, drop=["visib"], widen={"temp": "double"})

    with at_step("layers.layer_written", change):
        weather.load([{"key": "LGA", "temp": 71, "visib": 9.0}])
    assert weather.lookup(["JFK", "LGA"]).to_pylist() == [{"t": 70.0}, {"t": 71.0}]


def test_a_load_that_the_wider_type_does_not_tell_is_refused(pond: Pond, weather: Map) -> None:
    with (
        at_step("layers.layer_written", lambda: pond.alter_map("weather", widen={"temp": "double"})),
        pytest.raises(Invalid, match="does not tell this number"),
    ):
        weather.load([{"key": "LGA", "temp": BIG, "visib": 9.0}])
    assert weather.lookup(["JFK", "LGA"]).to_pylist() == [{"temp": 70.0, "visib": 10.0}, None]


def test_a_change_gives_way_to_a_load_and_to_another_change(pond: Pond, weather: Map) -> None:
    with at_step("alter.stored", lambda: weather.load([{"key": "LGA", "temp": 71, "visib": 9.0}])):
        pond.alter_map("weather", drop=["visib"])
    with at_step("alter.stored", lambda: pond.alter_map("weather", rename={"temp": "t"})):
        pond.alter_map("weather", add={"gust": "long"})
    assert weather.lookup(["JFK", "LGA"]).to_pylist() == [{"t": 70, "gust": None}, {"t": 71, "gust": None}]


def test_an_open_snapshot_keeps_its_fields_and_a_scan_says_that_they_changed(pond: Pond, weather: Map) -> None:
    snapshot, rows = weather.snapshot(), weather.scan()
    pond.alter_map("weather", drop=["visib"])
    assert snapshot.lookup(["JFK"]).to_pylist() == [{"temp": 70, "visib": 10.0}]
    with pytest.raises(Conflict, match="changed meanwhile"):
        rows.read_all()


# -- columns that a map lacks -------------------------------------------------------------------------

WIDE = [{"key": "LGA", "temp": 1, "visib": 2.0, "gust": 3.5}]


@pytest.mark.parametrize("store", ["layers", "shard"])
def test_columns_that_a_map_lacks_are_refused_by_name(pond: Pond, store: str) -> None:
    made = pond.create_map("m", kind="state", value="temp long, visib double", store=store)
    with pytest.raises(Invalid, match="gust") as refused:
        made.load(WIDE)
    assert refused.value.kind == "column_extra"
    assert made.load(WIDE, extra="ignore").rows == 1
    value = {key: value for key, value in WIDE[0].items() if key != "key"}
    with pytest.raises(Invalid, match="unexpected=gust"):
        made.load([{"key": "a", "value": value}])
    assert made.load([{"key": "a", "value": value}], extra="ignore").rows == 1
    assert made.get("a") == made.get("LGA") == {"temp": 1, "visib": 2.0}


def test_a_load_that_names_its_columns_leaves_out_the_others(pond: Pond) -> None:
    made = pond.create_map("m", kind="state", value="long")
    assert made.load(WIDE, columns={"value": "temp"}).rows == 1
    spread = pond.create_map("spread", kind="state", value="t long")
    assert spread.load(WIDE, columns={"value": {"t": "temp"}}).rows == 1
    with pytest.raises(Invalid, match="extra is not understood"):
        made.load(WIDE, extra="drop")
    assert ColumnMapping().extra == "refuse"


def test_fields_are_added_for_columns_that_a_layered_map_lacks(pond: Pond, weather: Map, tmp_path: Path) -> None:
    weather.load(WIDE, extra="add")
    assert weather.lookup(["LGA", "JFK"]).field("gust").to_pylist() == [3.5, None]
    weather.load([{"key": "SFO", "value": {"temp": 1, "visib": 1.0, "gust": 1.0, "sky": "clear"}}], extra="add")
    columns = {"key": ["a"], "temp": [5], "visib": [1.0], "gust": [1.0], "sky": ["-"], "wet": [True]}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    pond.load_files(tmp_path / "a.parquet", "weather", extra="add")
    assert str(pond.map("weather").definition.value) == "temp long, visib double, gust double, sky string, wet boolean"
    assert weather.get("a") == {"temp": 5, "visib": 1.0, "gust": 1.0, "sky": "-", "wet": True}
    (tmp_path / "a.csv").write_text("key,temp,visib,gust,sky,wet,ice\nb,1,2,3,x,true,4\n")
    pond.load_files(tmp_path / "a.csv", "weather", extra="add")
    assert pond.map("weather").get("b") == {
        "temp": 1, "visib": 2.0, "gust": 3.0, "sky": "x", "wet": True, "ice": 4,
    }  # fmt: skip
    with pytest.raises(Invalid, match="no value that tells its type"):
        weather.load([{**WIDE[0], "sky": "", "wet": True, "ice": 1, "fog": None}], extra="add")
    pond.create_map("owner", kind="state", value="temp long, visib double")
    with pytest.raises(Invalid, match="--store layers"):
        pond.map("owner").load(WIDE, extra="add")


TYPED = {
    "long": ["0", "-12", "123456789012345678"], "double": ["1", "2.5", "-3e7"], "boolean": ["true", "false"],
    "timestamp": ["2024-01-01T00:00Z", "2024-01-01 00:00:00.5+01:00"],
    "string": ["007", "1", "x"],
}  # fmt: skip
ODD = ("1234567890123456789", "1.", ".5", "+1", "True", "2024-01-01", "2024-01-01T00:00", "nan", "1,5", " 1")


@pytest.mark.parametrize("kind", TYPED)
def test_texts_tell_the_type_of_a_field_that_all_of_them_have(pond: Pond, tmp_path: Path, kind: str) -> None:
    pond.create_map("m", kind="state", value="a long, b string", store="layers")
    files = [tmp_path / f"{number}.csv" for number in range(len(TYPED[kind]))]
    for number, (file, text) in enumerate(zip(files, TYPED[kind], strict=True)):
        file.write_text(f"key,a,b,new\nk{number},1,x,{text}\nother,1,x,\n")
    pond.load_files(files, "m", extra="add")
    assert str(pond.map("m").definition.value) == f"a long, b string, new {kind}"
    assert pond.map("m").scan("new is not null").read_all().num_rows == len(files)


@pytest.mark.parametrize("text", ODD)
def test_odd_texts_stay_text(pond: Pond, tmp_path: Path, text: str) -> None:
    pond.create_map("m", kind="state", value="a long, b string", store="layers")
    (tmp_path / "a.csv").write_text(f'key,a,b,new\nk,1,x,"{text}"\n')
    pond.load_files(tmp_path / "a.csv", "m", extra="add")
    assert pond.map("m").get("k") == {"a": 1, "b": "x", "new": text}


def test_files_that_add_fields_do_it_together_or_not_at_all(pond: Pond, tmp_path: Path) -> None:
    before = pond.create_map("m", kind="state", value="a long, b string", store="layers").definition
    (tmp_path / "a.jsonl").write_text('{"key":"j","a":1,"b":"x","n":1,"on":true,"s":"007"}\n')
    (tmp_path / "a.csv").write_text("key,a,b,n,on,s\nc,1,x,2.5,,8\n")
    (tmp_path / "bad.csv").write_text("key,a,b,new,empty\nc,1,x,2.5,\n")
    with pytest.raises(Invalid, match="no value that tells its type") as refused:
        pond.load_files(tmp_path / "bad.csv", "m", extra="add")
    assert (refused.value.values["column"], pond.map("m").definition) == ("empty", before)
    with pytest.raises(Invalid, match="no place for columns"):
        pond.load_files(tmp_path / "a.csv", "m")
    assert pond.load_files(tmp_path / "bad.csv", "m", extra="ignore").rows == 1
    pond.load_files([tmp_path / "a.jsonl", tmp_path / "a.csv"], "m", extra="add", again=True)
    assert str(pond.map("m").definition.value) == "a long, b string, n double, on boolean, s string"
    assert pond.map("m").get("j") == {"a": 1, "b": "x", "n": 1.0, "on": True, "s": "007"}
    assert pond.map("m").get("c") == {"a": 1, "b": "x", "n": 2.5, "on": None, "s": "8"}


def test_what_the_beginning_of_a_file_does_not_tell_is_a_reject(
    pond: Pond, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 4096)
    pond.create_map("m", kind="state", value="a long, b string", store="layers")
    lines = "".join(f"k{number},1,x,{number}\n" for number in range(1000))
    (tmp_path / "a.csv").write_text(f"key,a,b,late\n{lines}z,1,x,none\n")
    result = pond.load_files(tmp_path / "a.csv", "m", extra="add", max_rejects=1)
    assert (result.rejected, pond.map("m").get("k7")) == (1, {"a": 1, "b": "x", "late": 7})


def test_parts_that_were_written_before_a_change_are_taken_as_rows_of_today(pond: Pond, weather: Map) -> None:
    writers = [pond.part_writer("weather") for _ in range(2)]
    for writer, row in zip(writers, ((("LGA",), {"temp": 71, "visib": 9.0}), (("a",), {"temp": BIG, "visib": None})),
                           strict=True):  # fmt: skip
        writer.write(canonical_of(weather.definition, [row]))
    parts, others = (writer.finish() for writer in writers)
    pond.alter_map("weather", rename={"temp": "t"}, drop=["visib"], widen={"temp": "double"})
    pond.commit_load(parts)
    assert weather.lookup(["JFK", "LGA"]).to_pylist() == [{"t": 70.0}, {"t": 71.0}]
    with pytest.raises(Invalid, match="does not tell this number"):
        pond.commit_load(others)


def test_commits_show_the_fields_that_they_had_and_branches_go_on_from_a_change(pond: Pond, weather: Map) -> None:
    pond.alter_map("weather", rename={"temp": "t"}, add={"gust": "double"}, default={"gust": 1}, drop=["visib"])
    weather.load([{"key": "LGA", "t": 60, "gust": 2.0}])
    branch = pond.branch("fix", source="main")
    branch.map("weather").load([{"key": "JFK", "t": 71, "gust": None}])
    difference = pond.refs.diff("main", "fix", map="weather")
    assert difference["old"].to_pylist() == [{"t": 70, "gust": 1.0}]
    branch.merge()
    assert weather.lookup(["JFK", "LGA"]).to_pylist() == [{"t": 71, "gust": None}, {"t": 60, "gust": 2.0}]
    before = pond.at("main~3").map("weather")
    assert before.get("JFK") == {"temp": 70, "visib": 10.0}
    assert before.scan().read_all()["visib"].to_pylist() == [10.0]
    difference = pond.refs.diff("main~3", "main", map="weather").select(["key", "old", "new"])
    assert difference.to_pylist() == [
        {"key": "JFK", "old": {"t": 70, "gust": 1.0}, "new": {"t": 71, "gust": None}},
        {"key": "LGA", "old": None, "new": {"t": 60, "gust": 2.0}},
    ]


@pytest.mark.parametrize("folded", [False, True])
def test_a_field_that_was_restored_is_a_difference_whatever_was_folded(pond: Pond, weather: Map, folded: bool) -> None:
    pond.alter_map("weather", drop=["visib"])
    if folded:
        weather.compact()
    dropped = pond.refs.resolve("main")
    pond.refs.restore("main~1")
    old, new = {"temp": 70, "visib": None}, {"temp": 70, "visib": 10.0}
    assert pond.refs.diff(dropped, "main", map="weather").select(["old", "new"]).to_pylist() == [
        {"old": old, "new": new}
    ]
    assert pond.refs.diff("main", dropped, map="weather").num_rows == 0


@pytest.mark.parametrize("store", ["layers", "shard"])
def test_fields_of_an_aggregate_do_not_change_in_either_store(pond: Pond, store: str) -> None:
    pond.create_map("sales", kind="aggregate", value="n long count", resolution="1 hour", store=store)
    with pytest.raises(Invalid) as refused:
        pond.alter_map("sales", add={"gust": "double"})
    assert (refused.value.kind, refused.value.hint) == (
        "aggregate_unsupported", "make a new map with these fields, and load it again",
    )  # fmt: skip
    with pytest.raises(Invalid) as refused:
        pond.create_map("more", kind="aggregate", value="time long count", resolution="1 hour")
    assert "time" in str(refused.value.hint).replace("effective_time", "")
