"""Maintenance in any pond: what is repeated, joined, old or wasted, and the check of it all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from millpond.errors import Invalid
from millpond.maps.model.definition import Scheme
from tests.harness.contracts.maps import HOUR, NamedMaps, fresh_name

if TYPE_CHECKING:
    from millpond.maps.predicates.predicate import Where
    from millpond.maps.protocols import MapLike, PondLike

__all__ = ("MaintenanceContract",)


def _hourly(pond: PondLike, scheme: str = "auto", **settings: object) -> MapLike:
    """Two keys, each with the same value for ten hours, on both sides of 1970."""
    made = pond.create_map(fresh_name("hourly"), kind="temporal_state", value="string", scheme=scheme, **settings)  # type: ignore[arg-type]
    times = [n * HOUR for n in range(-5, 5)]
    made.load(pa.table({"key": ["a"] * 10 + ["b"] * 10, "effective_time": times * 2, "value": ["same"] * 20}))
    return made


class MaintenanceContract(NamedMaps):
    """The promises of `condense`, `retain`, `compact` and `verify`. `verified`: what verifying a map counts."""

    verified = "shard"

    @pytest.mark.parametrize("scheme", Scheme)
    def test_repeats_are_dropped_before_a_time(self, pond: PondLike, scheme: Scheme) -> None:
        made = _hourly(pond, scheme)
        report = made.condense(before=1)
        assert (report.rows_before, report.rows_removed, report.rows_after) == (20, 10, 10)
        assert report.map == made.name
        assert not report.suspended
        assert made.get("a", at=-5 * HOUR) == "same"
        assert made.condense(before=1).rows_removed == 0
        assert made.scan("key = 'a'").read_all().num_rows == 5

    def test_sessions_are_joined(self, pond: PondLike, fresh: str) -> None:
        made = pond.create_map(fresh, kind="session")
        made.load(pa.table({"key": ["a"] * 3, "start": [-HOUR, 0, 5 * HOUR], "end": [0, HOUR, 6 * HOUR]}))
        assert made.condense(before="2000-01-01T00:00Z").rows_removed == 1
        answers = made.lookup(["a", "a"], at=[0, 3 * HOUR]).to_pylist()
        assert answers[1] is None
        assert (answers[0]["end"] - answers[0]["start"]).total_seconds() == 2 * HOUR / 1000

    @pytest.mark.parametrize("scheme", Scheme)
    def test_old_rows_are_deleted(self, pond: PondLike, scheme: Scheme) -> None:
        made = _hourly(pond, scheme)
        assert made.retain(before=0).rows_removed == 10
        assert made.get("a", at=-1) is None
        assert made.get("a", at=0) == "same"
        assert made.lookup(["a", "b"], at=-1).to_pylist() == [None, None]

    def test_the_setting_says_what_is_old(self, pond: PondLike) -> None:
        made = _hourly(pond, condense="1d", retain="1d")
        assert made.condense().rows_removed == 18
        assert made.retain().rows_after == 0
        assert made.info()["rows"] == 0

    @pytest.mark.parametrize("scheme", Scheme)
    def test_rows_of_a_condition_are_deleted(self, pond: PondLike, scheme: Scheme) -> None:
        made = _hourly(pond, scheme)
        report = made.delete("key = 'a' and effective_time < '1970-01-01T00:00Z'")
        assert (report.map, report.rows_removed, report.rows_after, report.purged) == (made.name, 5, 15, False)
        assert [made.get("a", at=-1), made.get("a", at=0), made.get("b", at=-1)] == [None, "same", "same"]
        assert made.delete([("key", "=", "a")], now=True).rows_removed == 5
        assert made.lookup(["a", "b"], at=0).to_pylist() == [None, "same"]
        again = made.delete("key = 'a'")
        assert (again.rows_removed, again.rows_after) == (0, 10)
        conditions: tuple[Where, ...] = (None, [], "nothing = 1")
        for condition in conditions:
            with pytest.raises(Invalid):
                made.delete(condition)

    def test_what_a_late_load_brought_is_not_condensed_yet_by_update(self, pond: PondLike) -> None:
        made = _hourly(pond, condense="1d", condense_by="update_time")
        assert made.condense().rows_removed == 0
        assert made.condense(before="2999-01-01T00:00Z").rows_after == 2
        assert made.lookup(["a", "b"], at=[-5 * HOUR, 9 * HOUR]).to_pylist() == ["same", "same"]

    def test_rows_grow_old_by_their_update_too(self, pond: PondLike) -> None:
        made = _hourly(pond, retain="1d", retain_by="update_time")
        assert made.retain().rows_removed == 0
        assert made.retain(before="2999-01-01T00:00Z").rows_after == 0

    def test_suspended_care_does_nothing_and_says_so(self, pond: PondLike) -> None:
        made = _hourly(pond, condense="1d", retain="1d")
        pond.alter_map(made.name, maintenance_suspended=True)
        for report in (pond.map(made.name).condense(), pond.map(made.name).retain()):
            assert report.suspended
            assert report.rows_removed == 0
        pond.alter_map(made.name, maintenance_suspended=False)
        assert pond.map(made.name).condense().rows_removed == 18

    def test_a_load_after_care_goes_on_as_before(self, pond: PondLike) -> None:
        made = _hourly(pond)
        made.condense(before=1)
        made.load(pa.table({"key": ["a", "c"], "effective_time": [-5 * HOUR, 0], "value": ["other", "new"]}))
        assert made.get("a", at=-5 * HOUR) == "other"
        assert made.get("c") == "new"
        made.retain(before=HOUR)
        assert made.get("c") is None

    def test_compacting_changes_no_answer(self, pond: PondLike) -> None:
        made = _hourly(pond)
        made.retain(before=3 * HOUR)
        before = made.scan().read_all()
        report = made.compact()
        assert report.rows_before == report.rows_after == 4
        assert report.bytes_after <= report.bytes_before
        assert made.scan().read_all().equals(before)

    @pytest.mark.usefixtures("process")
    def test_all_is_well(self, pond: PondLike, weather: MapLike) -> None:
        weather.lookup(["JFK"])
        for full in (False, True):
            report = pond.verify(full=full)
            assert report.ok, report.problems
            assert report.checked
            assert dict(report.counts)[self.verified] >= 1

    def test_a_snapshot_shows_what_was_merged_before(self, weather: MapLike) -> None:
        manifest = weather.freeze()
        assert manifest.map == weather.name
        with weather.snapshot() as snapshot:
            assert snapshot.manifest.id == manifest.id
            assert snapshot.lookup(["LGA"], at="2099-01-01T00:00Z").to_pylist()[0]["wind_speed"] == 18.4
            weather.load(
                [{"key": "LGA", "effective_time": "2013-02-09T00:00Z", "temp": 1.0, "wind_speed": 2.0, "code": "x"}]
            )
            assert snapshot.lookup(["LGA"], at="2099-01-01T00:00Z").to_pylist()[0]["wind_speed"] == 18.4
        assert weather.freeze().id != manifest.id
        assert weather.lookup(["LGA"]).to_pylist()[0]["code"] == "x"
