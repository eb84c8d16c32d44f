"""A node that is lost between the list of maps and their rows: SQL says so, and does not blame the query."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import millpond
from millpond.clock import Clock
from millpond.errors import Unavailable
from millpond.maps.sql import QueryableMap, query
from tests.nodes.conftest import Served


@dataclass
class Listed:
    """A pond whose maps were listed while its node was there."""

    listed: Sequence[QueryableMap]
    clock: Clock

    def maps(self) -> Sequence[QueryableMap]:
        return self.listed


def test_a_lost_node_is_unavailable(serve: Callable[..., Served], tmp_path: Path) -> None:
    node = serve()
    node.pond.create_map("m", kind="state", value="long").load([{"key": "a", "value": 1}])
    options = {"client_attempts": 1, "client_cache": str(tmp_path / "cache")}
    with millpond.open(node.url, **options) as pond:
        listed = Listed(list(pond.maps()), node.clock)
        assert query(listed, "select count(*) from m").num_rows == 1
        node.close()
        for text in ("select count(*) from m", "select * from m where key = 'a'", "select * from m where value > 3"):
            with pytest.raises(Unavailable) as lost:
                query(listed, text)
            assert lost.value.kind == "node_unreachable"
