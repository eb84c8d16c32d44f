"""Maps by name, in any pond: made, found, listed, altered, dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from millpond.errors import AlreadyExists, Invalid, NotFound
from millpond.maps.model.definition import PLAIN_KINDS, Kind, Scheme
from tests.harness.contracts.maps import HOUR, NamedMaps, fresh_name
from tests.harness.durations import ACCEPTED, OFF, REFUSED

if TYPE_CHECKING:
    from millpond.maps.protocols import PondLike

__all__ = ("CatalogueContract",)


class CatalogueContract(NamedMaps):
    """The promises of `maps.api.CatalogueLike`."""

    @pytest.mark.parametrize("kind", PLAIN_KINDS)
    @pytest.mark.parametrize("scheme", Scheme)
    def test_a_map_is_what_it_was_made_as(self, pond: PondLike, fresh: str, kind: Kind, scheme: Scheme) -> None:
        value = None if kind is Kind.SESSION else "temp double, `wind speed` long"
        made = pond.create_map(
            fresh, kind=kind, value=value, scheme=scheme, hash_bytes=4, overwrite=False, condense="30d", retain="1y",
            retain_by="update_time", condense_by="update_time",
        )  # fmt: skip
        definition = made.definition
        assert (made.name, made.kind, definition.scheme, definition.hash_bytes) == (fresh, kind, scheme, 4)
        assert definition.value is None or [name for name, _ in definition.value.fields] == ["temp", "wind speed"]
        assert (definition.overwrite, definition.condense_ms, definition.retain_ms) == (
            False,
            30 * 86_400_000,
            365 * 86_400_000,
        )
        assert (definition.retain_by, definition.condense_by) == ("update_time", "update_time")
        assert pond.alter_map(fresh, condense_by="effective_time").definition.condense_by == "effective_time"
        definition = pond.alter_map(fresh, condense_by="update_time").definition
        assert definition == made.definition
        assert pond.map(fresh).definition == definition

    def test_names_are_found_in_any_case_of_letters(self, pond: PondLike, fresh: str) -> None:
        made = pond.create_map(fresh.upper(), kind="state")
        assert made.name == fresh
        assert pond.map(fresh.title()).definition == made.definition

    def test_maps_are_listed_by_name(self, pond: PondLike) -> None:
        names = {fresh_name("zebra"), fresh_name("ape")}
        for name in names:
            pond.create_map(name, kind="state")
        listed = [pond_map.name for pond_map in pond.maps()]
        assert listed == sorted(listed)
        assert names <= set(listed)

    def test_a_map_made_twice_is_one_when_that_is_wanted(self, pond: PondLike, fresh: str) -> None:
        made = pond.create_map(fresh, kind="state", value="long")
        again = pond.create_map(fresh, kind="state", value="bigint", exist_ok=True, condense="1d")
        assert again.definition == made.definition
        with pytest.raises(AlreadyExists):
            pond.create_map(fresh, kind="state", value="long")
        with pytest.raises(AlreadyExists):
            pond.create_map(fresh, kind="state", value="string", exist_ok=True)

    def test_settings_are_altered_and_nothing_else(self, pond: PondLike, fresh: str) -> None:
        before = pond.create_map(fresh, kind="temporal_state", condense="30d").definition
        altered = pond.alter_map(fresh, condense=None, retain="10d", maintenance_suspended=True).definition
        assert (altered.condense_ms, altered.retain_ms, altered.maintenance_suspended) == (None, 10 * 86_400_000, True)
        assert altered.same_shape(before)
        assert altered.incarnation == before.incarnation
        assert pond.map(fresh).definition == altered
        assert pond.alter_map(fresh, overwrite=False).definition.overwrite is False

    def test_ages_are_written_in_every_form_of_a_duration(self, pond: PondLike, fresh: str) -> None:
        pond.create_map(fresh, kind="temporal_state", value="long", condense="1w", retain="off")
        for text, millis in ACCEPTED.items():
            assert pond.alter_map(fresh, condense=text, retain=text).definition.condense_ms == millis, text
        for text in REFUSED:
            with pytest.raises(Invalid) as caught:
                pond.alter_map(fresh, condense=text)
            assert caught.value.kind == "duration", text
        for text in OFF:
            assert pond.alter_map(fresh, condense="1d").definition.condense_ms == 24 * HOUR
            assert pond.alter_map(fresh, condense=text).definition.condense_ms is None, text

    def test_a_dropped_map_is_gone_and_its_name_free(self, pond: PondLike, fresh: str) -> None:
        first = pond.create_map(fresh, kind="state", value="string")
        first.load(pa.table({"key": ["a"], "value": ["old"]}))
        pond.drop_map(fresh)
        with pytest.raises(NotFound):
            pond.map(fresh)
        assert fresh not in [pond_map.name for pond_map in pond.maps()]
        second = pond.create_map(fresh, kind="temporal_state", value="long")
        assert second.definition.incarnation != first.definition.incarnation
        assert second.scan().read_all().num_rows == 0
        second.load(pa.table({"key": ["a"], "effective_time": [0], "value": [1]}))
        assert second.get("a", at=0) == 1

    def test_info_tells_what_a_map_is_and_holds(self, pond: PondLike) -> None:
        made = pond.create_map(fresh_name(), kind="state", value="long", condense="1d")
        info = made.info()
        assert {**made.definition.to_dict(), **info} == info | {"hash_bits": 64}
        assert set(info) - {*made.definition.to_dict(), "store"} == {
            "rows", "position", "version", "shard_bytes", "parts_queued", "rows_queued", "snapshot",
            "snapshot_current",
        }  # fmt: skip
        assert (info["rows"], info["parts_queued"], info["rows_queued"]) == (0, 0, 0)
        made.load(pa.table({"key": ["a", "b"], "value": [1, 2]}))
        after = made.info()
        assert (after["rows"], after["rows_queued"]) == (2, 0)
        assert after["version"] > info["version"]
        assert after["shard_bytes"] > 0
