"""Loads into any pond: whole or not at all, in their order, once by default."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millpond.errors import Conflict, Invalid
from tests.harness.contracts.maps import NamedMaps, fresh_name, weather_rows
from tests.harness.rows import canonical_of

if TYPE_CHECKING:
    from pathlib import Path

    from millpond.maps.protocols import MapLike, PondLike

__all__ = ("LoadContract",)

XML = """<?xml version="1.0" encoding="UTF-8"?>
<referenceData xmlns="reference-data:2">
  <reference><map>{first}</map><key>a</key><value>one</value></reference>
  <reference><map>{second}</map><from>10</from><to>20</to><value>two</value></reference>
</referenceData>
"""


class LoadContract(NamedMaps):
    """The promises of `load`, `load_files`, `part_writer` and `commit_load`."""

    def test_a_load_says_what_it_did(self, pond: PondLike, fresh: str) -> None:
        made = pond.create_map(fresh, kind="state", value="long")
        result = made.load(pa.table({"key": ["a", "b", "a"], "value": [1, 2, 3]}), source="test")
        assert (result.rows, result.rejected, result.parts, result.duplicate_parts) == (2, 0, 1, 0)
        assert result.maps == {fresh: 2}
        assert result.load
        assert result.seconds > 0
        assert result.quarantined == ()
        assert made.get("a") == 3

    def test_rows_come_in_any_form(self, pond: PondLike) -> None:
        table = weather_rows()
        for data in (table, table.to_reader(), table.to_batches(), table.to_pylist(), iter(table.to_batches())):
            made = pond.create_map(
                fresh_name(), kind="temporal_state", value="temp double, wind_speed double, code string"
            )
            assert made.load(data).rows == 3
            assert made.scan().read_all().num_rows == 3

    def test_columns_are_mapped_and_zones_are_told(self, pond: PondLike, fresh: str) -> None:
        made = pond.create_map(fresh, kind="temporal_state", value="double")
        rows = pa.table({"airport": ["JFK"], "when": ["2013-07-01 12:00"], "t": [80.0]})
        made.load(rows, columns={"key": "airport", "time": "when", "value": "t"}, zone="America/New_York")
        assert made.get("JFK", at="2013-07-01T15:59:59Z") is None
        assert made.get("JFK", at="2013-07-01T16:00:00Z") == 80.0

    def test_a_later_load_wins_and_the_first_where_it_is_kept(self, pond: PondLike) -> None:
        for overwrite, expected in ((True, "second"), (False, "first")):
            made = pond.create_map(fresh_name(), kind="state", value="string", overwrite=overwrite)
            for value in ("first", "second"):
                made.load(pa.table({"key": ["a"], "value": [value]}))
            assert made.get("a") == expected
            assert made.info()["rows"] == 1

    def test_the_same_data_twice_is_one_load_unless_again(self, pond: PondLike, fresh: str) -> None:
        made = pond.create_map(fresh, kind="state", value="string")
        first = pa.table({"key": ["a"], "value": ["first"]})
        made.load(first)
        made.load(pa.table({"key": ["a"], "value": ["second"]}))
        result = made.load(first)
        assert (result.parts, result.duplicate_parts) == (0, 1)
        assert made.get("a") == "second"
        result = made.load(first, again=True)
        assert (result.parts, result.duplicate_parts) == (1, 0)
        assert made.get("a") == "first"

    def test_a_part_that_comes_twice_in_a_load_counts_in_the_place_of_its_rows(self, pond: PondLike) -> None:
        """Of rows with one address the last is kept, or the first: here both come from the part that comes twice."""
        for overwrite in (True, False):
            made = pond.create_map(fresh_name(), kind="state", value="long", overwrite=overwrite)
            parts = [part for value in (1, 2, 1) for part in _sealed(pond, made, [(("a",), value)])]
            result = pond.commit_load(parts)
            assert (result.parts, result.duplicate_parts) == (2, 1)
            assert made.get("a") == 1

    def test_null_and_empty_are_two_things(self, pond: PondLike, fresh: str) -> None:
        made = pond.create_map(fresh, kind="state", value="string")
        made.load(pa.table({"key": ["empty", "none"], "value": ["", None]}))
        assert made.get("empty") == ""
        assert made.get("none") is None
        assert made.lookup(["empty", "none"]).to_pylist() == ["", None]
        assert made.scan("value is null").read_all().column("key").to_pylist() == ["none"]

    def test_nothing_is_a_load_too(self, pond: PondLike, fresh: str) -> None:
        made = pond.create_map(fresh, kind="state", value="string")
        result = made.load(pa.table({"key": pa.array([], pa.string()), "value": pa.array([], pa.string())}))
        assert (result.rows, result.parts, result.maps) == (0, 0, {})

    def test_large_values_and_many_rows(self, pond: PondLike, fresh: str) -> None:
        made = pond.create_map(fresh, kind="temporal_state", value="string")
        count = 20_000
        made.load(
            pa.table(
                {"key": [f"k{n % 100}" for n in range(count)], "effective_time": list(range(count)),
                 "value": [f"v{n}" for n in range(count)]}
            )
        )  # fmt: skip
        made.load(pa.table({"key": ["big"], "effective_time": [0], "value": ["x" * 300_000]}))
        assert made.info()["rows"] == count + 1
        assert made.get("k7", at=5_050) == "v5007"
        assert made.get("big") == "x" * 300_000

    # -- rejects --------------------------------------------------------------------------------------

    def test_rows_that_cannot_be_stored_fail_the_load_as_a_whole(
        self, pond: PondLike, fresh: str, tmp_path: Path
    ) -> None:
        made = pond.create_map(fresh, kind="temporal_state", value="double")
        rows = pa.table(
            {"key": ["a", "b", "c"], "effective_time": ["soon", "1", "1970-01-01T00:00Z"], "value": [1.0, 2.0, 3.0]}
        )
        with pytest.raises(Invalid) as caught:
            made.load(rows, max_rejects=1, rejects=tmp_path / "rejects.jsonl")
        assert caught.value.kind == "too_many_rejects"
        assert made.info()["rows"] == 0
        assert len((tmp_path / "rejects.jsonl").read_text().splitlines()) == 2

    def test_some_rejects_are_allowed_and_written_down(self, pond: PondLike, fresh: str, tmp_path: Path) -> None:
        made = pond.create_map(fresh, kind="ranged_state", value="long")
        rows = pa.table({"key_start": [1, 9], "key_end": [2, 3], "value": [1, 2]})
        result = made.load(rows, max_rejects=1, rejects=tmp_path / "rejects.jsonl", source="ranges")
        assert (result.rows, result.rejected) == (1, 1)
        (reject,) = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_text().splitlines()]
        assert reject["row"] == 1
        assert reject["source"] == "ranges"
        assert "ends before" in reject["reason"]

    # -- files ----------------------------------------------------------------------------------------

    def test_files_of_every_format_are_one_load(self, pond: PondLike, fresh: str, tmp_path: Path) -> None:
        made = pond.create_map(fresh, kind="temporal_state", value="double")
        (tmp_path / "a.csv").write_text("airport,time,temp\nJFK,2013-01-01T00:00Z,30.5\nLGA,2013-01-01T00:00Z,\n")
        (tmp_path / "b.jsonl").write_text('{"airport": "EWR", "time": 1357002000000, "temp": 1}\n')
        pq.write_table(
            pa.table({"airport": ["BOS"], "time": [datetime(2013, 1, 1, tzinfo=UTC)], "temp": [2.0]}),
            tmp_path / "c.parquet",
        )
        counted: list[tuple[int, int]] = []
        result = pond.load_files(
            tmp_path, fresh.upper(), columns={"key": "airport", "time": "time", "value": "temp"},
            advance=lambda rows, size: counted.append((rows, size)),
        )  # fmt: skip
        assert (result.rows, result.maps) == (4, {fresh: 4})
        assert sum(rows for rows, _ in counted) == 4
        assert sum(size for _, size in counted) == sum(file.stat().st_size for file in tmp_path.iterdir())
        assert made.lookup(["JFK", "LGA", "EWR", "BOS"]).to_pylist() == [30.5, None, 1.0, 2.0]

    def test_one_file_feeds_several_maps(self, pond: PondLike, tmp_path: Path) -> None:
        first, second = fresh_name("first"), fresh_name("second")
        pond.create_map(first, kind="state", value="string")
        pond.create_map(second, kind="ranged_state", value="string")
        (tmp_path / "reference.xml").write_text(XML.format(first=first, second=second))
        result = pond.load_files(tmp_path / "reference.xml")
        assert result.maps == {first: 1, second: 1}
        assert (pond.map(first).get("a"), pond.map(second).get(15)) == ("one", "two")

    # -- parts ----------------------------------------------------------------------------------------

    def test_parts_of_several_maps_are_one_load(self, pond: PondLike) -> None:
        maps = [pond.create_map(fresh_name(), kind="state", value="long") for _ in range(3)]
        parts = [
            part for n, pond_map in enumerate(maps) for part in _sealed(pond, pond_map, [(("a",), n), (("b",), n + 10)])
        ]
        result = pond.commit_load(parts, source="several", rejected=3)
        assert (result.parts, result.rows, result.rejected) == (3, 6, 3)
        assert result.maps == {pond_map.name: 2 for pond_map in maps}
        assert [pond_map.get("b") for pond_map in maps] == [10, 11, 12]

    def test_of_parts_of_one_load_the_later_wins(self, pond: PondLike, fresh: str) -> None:
        made = pond.create_map(fresh, kind="state", value="long")
        parts = [part for n in range(4) for part in _sealed(pond, made, [(("a",), n), ((f"k{n}",), n)])]
        assert pond.commit_load(parts).parts == 4
        assert made.get("a") == 3
        assert made.info()["rows"] == 5

    def test_a_part_of_a_map_that_was_dropped_is_refused(self, pond: PondLike, fresh: str) -> None:
        made = pond.create_map(fresh, kind="state", value="long")
        other = pond.create_map(fresh_name(), kind="state", value="long")
        parts = _sealed(pond, other, [(("a",), 1)]) + _sealed(pond, made, [(("a",), 1)])
        pond.drop_map(fresh)
        pond.create_map(fresh, kind="state", value="long")
        with pytest.raises(Conflict) as caught:
            pond.commit_load(parts)
        assert caught.value.kind == "map_incarnation"
        assert pond.map(fresh).get("a") is None
        assert other.get("a") is None

    def test_merging_when_nothing_waits_is_no_harm(self, pond: PondLike, weather: MapLike) -> None:
        pond.merge()
        assert weather.info()["parts_queued"] == 0


def _sealed(pond: PondLike, target: MapLike, rows: list[tuple[Any, Any]]) -> list[Any]:
    writer = pond.part_writer(target.name, source="test")
    writer.write(canonical_of(target.definition, rows))
    return writer.finish()
