"""Handles of maps that were dropped, in any pond: every call says so, and snapshots that are held go on answering."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import millpond
from millpond.client.pond import RemotePond
from millpond.errors import NotFound
from millpond.maps.model.definition import PLAIN_KINDS, Kind
from millpond.pond import Pond, open_pond
from tests.harness.contracts.maps import NamedMaps

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.maps.protocols import MapLike, PondLike

__all__ = ("CALLS", "DroppedContract", "opened_again", "rows")

CALLS: dict[str, Callable[[MapLike], object]] = {
    "get": lambda held: held.get("a", at=5),
    "lookup": lambda held: held.lookup(["a"], at=5),
    "scan": lambda held: held.scan().read_all(),
    "scan of a key": lambda held: held.scan("key = 'a'").read_all(),
    "freeze": lambda held: held.freeze(),
    "snapshot": lambda held: held.snapshot(),
    "subset of a snapshot": lambda held: held.snapshot(keys=["a", "b"]),
    "condense": lambda held: held.condense(before=9),
    "retain": lambda held: held.retain(before=9),
    "compact": lambda held: held.compact(),
    "info": lambda held: held.info(),
    "load": lambda held: held.load(rows("late")),
}
"""Whatever a handle offers, on a temporal map of text."""


def rows(value: str) -> pa.Table:
    """One row of the key that is asked for."""
    return pa.table({"key": ["a"], "effective_time": pa.array([1], pa.int64()), "value": [value]})


def opened_again(pond: Any) -> Any:
    """The same pond, opened once more, as another process would."""
    if isinstance(pond, Pond) and pond.location.address.startswith("s3://"):
        return millpond.open(pond.location.address, cache=pond.folder.parent, clock=pond.clock, max_staleness=0)
    if isinstance(pond, Pond):
        return open_pond(pond.folder, clock=pond.clock)
    assert isinstance(pond, RemotePond)
    return RemotePond(pond.nodes.where, pond.settings, clock=pond.clock)


def _pass_moment(pond: Any, other: Any) -> None:
    """Let a client know how far another one has seen the pond: nodes on a bucket may be late otherwise."""
    if isinstance(pond, RemotePond) and isinstance(other, RemotePond):
        pond.nodes.connections[0]._moments.see(other.nodes.connections[0]._moments.headers())  # noqa: SLF001


class DroppedContract(NamedMaps):
    """The promises of `Map` and `Snapshot` when the map goes."""

    @pytest.mark.parametrize("anew", [None, "string", "long"])
    @pytest.mark.parametrize("elsewhere", [False, True])
    @pytest.mark.parametrize("used", [False, True])
    def test_every_call_of_a_handle_says_that_its_map_was_dropped(
        self, pond: PondLike, fresh: str, used: bool, elsewhere: bool, anew: str | None
    ) -> None:
        held = pond.create_map(fresh, kind="temporal_state", value="string")
        if used:
            held.load(rows("old"))
            assert held.get("a", at=5) == "old"
            assert held.lookup(["a"], at=5).to_pylist() == ["old"]
        with closing(opened_again(pond) if elsewhere else _Untouched(pond)) as other:
            other.drop_map(fresh)
            if anew is not None:
                other.create_map(fresh, kind="temporal_state", value=anew)
            _pass_moment(pond, other)
        for name, call in CALLS.items():
            with pytest.raises(NotFound) as caught:
                pytest.fail(f"{name} answered {call(held)!r}")
            assert (caught.value.kind, caught.value.values) == ("map_dropped", {"map": fresh}), name
            assert caught.value.hint
        if anew is not None:
            made = pond.map(fresh)
            assert made.scan().read_all().num_rows == 0, "nothing of the old handle came to the new map"
            assert made.get("a", at=5) is None
        held.close()

    @pytest.mark.parametrize("kind", PLAIN_KINDS)
    def test_a_snapshot_that_is_held_answers_until_it_is_closed(self, pond: PondLike, fresh: str, kind: Kind) -> None:
        held = pond.create_map(fresh, kind=kind, value="long" if kind.valued else None)
        ranged = not kind.keyed
        columns: dict[str, Any] = {"key_start": [1], "key_end": [9]} if ranged else {"key": ["5"]}
        times = {"effective_time": pa.array([1], pa.int64())} if kind.temporal else {}
        ends = {} if kind.valued else {name: pa.array([1], pa.int64()) for name in ("start", "end")}
        held.load(pa.table(columns | times | ends | ({"value": [7]} if kind.valued else {})))
        snapshot, keys, at = held.snapshot(), [5] if ranged else ["5"], 1 if kind.timed else None
        pond.drop_map(fresh)
        assert not snapshot.closed
        answers = [snapshot.lookup(keys, at) for _ in range(2)]  # the first one opens what is opened late
        assert answers[0].null_count == 0
        assert answers[0].equals(answers[1])
        snapshot.close()
        held.close()

    def test_a_map_is_shown_on_one_line(self, pond: PondLike, fresh: str) -> None:
        fields = ", ".join(f"a_long_name_of_a_field_{number} double" for number in range(40))
        made = pond.create_map(fresh, kind="temporal_state", value=fields)
        assert "\n" not in repr(made)
        assert len(repr(made)) < 200
        for words in (fresh, "temporal_state", "a_long_name_of_a_field_0 double", "auto"):
            assert words in repr(made)


class _Untouched:
    """A pond that is closed by whom it belongs to."""

    def __init__(self, pond: PondLike) -> None:
        self.drop_map, self.create_map = pond.drop_map, pond.create_map

    def close(self) -> None:
        """Nothing."""
