"""A node that serves a folder with an aggregate answers questions about it, and refuses to make or load one by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import millpond
from millpond.errors import Invalid

if TYPE_CHECKING:
    from pathlib import Path

EVENTS = [{"key": "Lyon", "time": f"2024-03-30T22:{minute:02}Z", "total": 1.5} for minute in range(4)]
AT = "2024-03-30T22:30Z"


def test_a_node_answers_about_an_aggregate_and_refuses_loads(serve: Any, tmp_path: Path) -> None:
    value = "orders long count, total double sum"
    with millpond.open(tmp_path / "pond") as pond:
        pond.create_map("sales", kind="aggregate", value=value, resolution="1 hour").load(EVENTS)
    node = serve(server_data=str(tmp_path / "pond"))
    with millpond.open(node.url) as remote:
        sales = remote.map("sales")
        expected = {"orders": 4, "total": 6.0}
        assert sales.get("Lyon", at=AT) == expected
        assert sales.lookup(["Lyon", "Nice"], AT).to_pylist() == [expected, None]
        assert sales.get("Lyon", between=(EVENTS[0]["time"], "2024-03-31T00:00Z")) == expected
        assert sales.scan("orders > 3").read_all().num_rows == 1
        assert remote.sql(f"select get_state('sales', 'Lyon', '{AT}').orders as n").to_pylist() == [{"n": 4}]
        for act in (
            lambda: sales.load(EVENTS, again=True),
            lambda: remote.create_map("more", kind="aggregate", value=value, resolution="1 hour"),
            lambda: sales.condense(AT),
        ):
            with pytest.raises(Invalid) as caught:
                act()
            assert caught.value.kind == "aggregate_unsupported"
        with pytest.raises(Invalid, match="as it is now"):
            sales.lookup(["Lyon"], between=(AT, AT), known_at=AT)
