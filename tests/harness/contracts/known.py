"""Questions as known at a moment, in any pond: of layers they are answered, of shards refused by name."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from millpond.clock import ManualClock
from millpond.errors import Invalid
from millpond.maps.model.columns import INSTANT
from millpond.maps.model.definition import Store
from tests.harness.contracts.maps import NamedMaps

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.clock import Clock
    from millpond.maps.protocols import MapLike, PondLike

__all__ = ("KnownContract",)

LONG_AGO, FACT = "2000-06-01T00:00Z", "2001-01-01T00:00Z"


def _asks(pond: PondLike, made: MapLike, moment: str) -> list[Callable[[], object]]:
    events = pa.table({"k": ["a"]})
    return [
        lambda: made.get("a", known_at=moment),
        lambda: made.lookup(["a"], known_at=moment),
        lambda: made.scan(known_at=moment).read_all(),
        lambda: pond.sql(f"select * from {made.name}", known_at=moment),
        lambda: pond.enrich(events, map=made.name, key="k", into="v", known_at=moment),
    ]


class KnownContract(NamedMaps):
    """The promises of `known_at`."""

    clock: Clock | None = None
    """The clock that the entries of the log have their times from, where it is not the pond's own."""

    def later(self, pond: PondLike) -> int:
        """The moment up to now; what is done next is later."""
        clock = self.clock or pond.clock
        moment: int = clock.now_ms()
        while clock.now_ms() <= moment:
            if isinstance(clock, ManualClock):
                clock.advance(1)
        return moment

    def test_maps_answer_as_they_were_known(self, pond: PondLike, fresh: str) -> None:
        made = pond.create_map(fresh, kind="temporal_state", value="long")
        made.load([{"key": "a", "effective_time": FACT, "value": 1}])
        first = self.later(pond)
        made.load([{"key": key, "effective_time": FACT, "value": 2} for key in "ab"])
        second = self.later(pond)
        layered = made.definition.store is Store.LAYERS
        for ask in _asks(pond, made, LONG_AGO):
            with pytest.raises(Invalid) as refused:
                ask()
            assert refused.value.kind == ("nothing_known" if layered else "known_at_unsupported")
        if not layered:
            return
        assert [made.get(key, known_at=moment) for moment in (first, second) for key in "ab"] == [1, None, 2, 2]
        assert made.lookup(["a", "b"], known_at=first).to_pylist() == [1, None]
        moments = pa.array([first, second, None, 0], INSTANT)
        assert made.lookup(["a"] * 4, known_at=moments).to_pylist() == [1, 2, None, None]
        assert made.lookup(["a"], known_at=moments[-1:]).to_pylist() == [None], "a column of one is a column"
        rows = made.scan("value < 9", ["key", "value"], known_at=first).read_all().to_pylist()
        assert rows == [{"key": "a", "value": 1}]
        events = pa.table({"k": ["a", "b"], "t": moments[:2]})
        assert pond.enrich(events, map=fresh, key="k", into="v", known_at="t")["v"].to_pylist() == [1, 2]
        shown = datetime.fromtimestamp(first / 1000, UTC).isoformat()
        query = f"select get_state('{fresh}', 'a', '2013-01-01T00:00Z', '{shown}') as v"
        assert pond.sql(query).to_pylist() == [{"v": 1}]
        assert pond.sql(f"select sum(value) as v from {fresh}", known_at=first).to_pylist() == [{"v": 1}]
        assert made.get("a") == 2
