"""A map's log on nodes, as a stream follows it; and with what right. No session is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.clock import SystemClock
from millpond.nodes.tokens import hash_token
from millpond.spark.branch_log import NOTHING, FollowedBranch
from millpond.spark.change_log import BEHIND_SECONDS, FollowedMap, changed_rows
from millpond.spark.locations import Rights, SparkFolder, SparkNodes, location_named
from millpond.spark.options import pond_option
from tests.nodes.conftest import clock as clock
from tests.nodes.conftest import cluster as cluster
from tests.nodes.conftest import cluster_of as cluster_of
from tests.nodes.conftest import serve as serve
from tests.nodes.following import ticking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from millpond.clock import ManualClock
    from tests.nodes.conftest import ClusterHere, Served


@pytest.fixture(autouse=True)
def _time_passes(clock: ManualClock) -> Iterator[None]:
    with ticking(clock):
        yield


class Hasty(SystemClock):
    """Time that flies."""

    passed = 0.0

    def monotonic(self) -> float:
        self.passed += BEHIND_SECONDS / 2
        return self.passed


def test_a_node_that_has_merged_less_is_not_queried(cluster: ClusterHere) -> None:
    """Another node reported how far the map is; the one that answers now must not hide what came by then."""
    with millpond.open(cluster.url) as pond:
        numbers = pond.create_map("numbers", kind="state", value="long")
        cluster[2].node.merger.stop()
        numbers.load([{"key": "a", "value": 1}])
        position, _ = pond.log.position()
        cluster[0].pond.log.wait_applied(position)

    def followed(*order: int) -> FollowedMap:
        followed_map = FollowedMap(SparkNodes(cluster.url), numbers.definition, Hasty())
        nodes = followed_map.log._nodes  # type: ignore[attr-defined]
        nodes.connections = [nodes.connections[number] for number in order]
        return followed_map

    assert followed(2, 0, 1).log.applied() == position - 1
    assert [(change.position, change.rows) for change in followed(2, 0, 1).changes(0, position)] == [(position, 1)]
    with pytest.raises(millpond.Unavailable, match="not to"):
        followed(2).changes(0, position)


def test_the_layers_of_loads_are_followed(tmp_path: Path) -> None:
    place = SparkFolder(str(tmp_path / "pond"))
    with millpond.open(place.where, maps_part_retention="1d", maps_history="1d") as pond:
        made = pond.create_map("m", kind="temporal_state", value="long")
        rows = [
            [{"key": f"k{key}", "effective_time": moment, "value": moment} for key in range(3)] for moment in range(6)
        ]
        for number, store in enumerate(("shard", "layers")):
            pond.alter_map("m", store=store)
            for moment in range(3 * number, 3 * number + 3):
                made.load(rows[moment])
        made.compact()
        followed = FollowedMap(place, made.definition, SystemClock())
        changes = followed.changes(0, pond.log.position()[0])
        assert [change.layered for change in changes] == [False] * 3 + [True] * 3
        for expected, change in zip(rows, changes, strict=True):
            there = followed.log.retained(change)
            assert there is not None
            batches = changed_rows(place, made.definition, there)
            assert sorted(row["key"].decode() for batch in batches for row in batch.to_pylist()) == ["k0", "k1", "k2"]
            assert change.rows == len(expected)
        followed.log.close()


@pytest.mark.parametrize("overwrite", [True, False])
def test_the_layers_of_ranges_tell_what_each_load_brought(tmp_path: Path, overwrite: bool) -> None:
    """They lie in one group with the ranges that were there before, and yet are no part of what was brought."""
    place = SparkFolder(str(tmp_path / "pond"))
    with millpond.open(place.where, maps_history="1d") as pond:
        made = pond.create_map("nets", kind="ranged_state", value="long", store="layers", overwrite=overwrite)
        brought = [
            [{"key_start": start, "key_end": end, "value": number} for start, end in ((0, 9), (number, number + 3))]
            for number in range(1, 4)
        ]
        for rows in brought:
            made.load(rows)
        made.compact()
        followed = FollowedMap(place, made.definition, SystemClock())
        for rows, change in zip(brought, followed.changes(0, pond.log.position()[0]), strict=True):
            there = followed.log.retained(change)
            assert there is not None
            values = [
                row["value"] for batch in changed_rows(place, made.definition, there) for row in batch.to_pylist()
            ]
            assert sorted(values) == sorted(row["value"] for row in rows)
            assert change.rows == len(rows)
        followed.log.close()


def test_rights_go_with_a_place_and_are_not_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILLPOND_CLIENT_TOKEN", "of this process")
    place = location_named("http://n1:7433, http://n2:7433/", Rights("of the session"))
    assert isinstance(place, SparkNodes)
    assert (place.where, place.rights.token) == ("http://n1:7433,http://n2:7433", "of the session")
    assert "session" not in repr(place)
    assert location_named("http://n1:7433", Rights()).rights.token == "of this process"
    assert place.settings().client.token == "of this process", "where it is opened, its own token wins"
    monkeypatch.delenv("MILLPOND_CLIENT_TOKEN")
    assert place.settings().client.token == "of the session"


def test_an_option_wins_over_the_session() -> None:
    default = SparkFolder("/ponds/weather")
    assert pond_option({}, default, Rights()) is default
    assert pond_option({"path": "http://n1:7433"}, default, Rights("given")) == SparkNodes(
        "http://n1:7433", Rights("given")
    )
    with pytest.raises(millpond.Invalid, match="no pond is named"):
        pond_option({}, None, Rights())


def test_a_branch_is_followed_with_rights_on_the_map_and_the_repository(serve: Callable[..., Served]) -> None:
    rights: dict[str, dict[str, list[str]]] = {
        "looker": {"read": ["m", "repo:pond"]}, "fixer": {"write": ["m", "repo:pond/fix*"]}, "reader": {"read": ["m"]}
    }  # fmt: skip
    tokens = [{"name": name, "sha256": hash_token(name), "rights": right} for name, right in rights.items()]
    served = serve(server_tokens=tokens)
    for name in ("m", "secret"):
        served.pond.create_map(name, kind="state", value="long", store="layers").load([{"key": "a", "value": 1}])
    fix = served.pond.branch("fix", source="main")
    for name in ("m", "secret"):
        fix.map(name).load([{"key": "a", "value": 2}])

    def values(token: str, name: str) -> list[int]:
        place = SparkNodes(served.url, Rights(token), branch="fix")
        followed = FollowedBranch(place, fix.map(name).definition, SystemClock())
        try:
            changes = [*followed.changes(NOTHING, followed.newest())]
            parts = [part for change in changes for part in followed.planned(change)]
            return [side.new.rows["value"][0].as_py() for part in parts for side in part.differences()]
        finally:
            followed.close()

    for token in ("looker", "fixer"):
        assert values(token, "m") == [1, 2]
        with pytest.raises(millpond.errors.Denied, match="right"):
            values(token, "secret")
    with pytest.raises(millpond.errors.Denied, match="right"):
        values("reader", "m")
