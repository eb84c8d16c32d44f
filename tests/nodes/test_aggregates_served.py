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


def check_tags(remote: Any) -> None:
    """Sets of tags are looked up and filtered through a node, also in wider buckets."""
    hits = remote.map("hits")
    assert hits.get({"host": "b", "dc": "x"}, AT) == {"value": 4}
    assert hits.lookup([{"host": "a", "dc": "x"}, "dc=x"], AT).to_pylist() == [{"value": 2}, None]
    assert hits.get("host=b, dc=x", AT, resolution="1 day") == {"value": 4}
    for where in ("tags['host'] = 'b'", [("tags['host']", "=", "b")], [("key", "=", {"host": "b", "dc": "x"})]):
        rows = hits.scan(where, columns=["key", "tags", "value"]).read_all().to_pylist()
        assert rows == [{"key": "dc=x,host=b", "tags": [("dc", "x"), ("host", "b")], "value": 4}]
    assert remote.sql("select tags['dc'] as dc, sum(value)::int as n from hits group by dc").to_pylist() == [
        {"dc": "x", "n": 6}
    ]
    for act in (
        lambda: hits.scan(resolution="1 day"), lambda: remote.sql("select * from at_resolution('hits', '1 day')"),
    ):  # fmt: skip
        with pytest.raises(Invalid) as caught:
            act()
        assert caught.value.kind == "aggregate_unsupported"


def test_a_node_answers_about_an_aggregate_and_refuses_loads(serve: Any, tmp_path: Path) -> None:
    value = "orders long count, total double sum"
    with millpond.open(tmp_path / "pond") as pond:
        pond.create_map("sales", kind="aggregate", value=value, resolution="1 hour").load(EVENTS)
        hits = pond.create_map("hits", kind="histogram", key="tags", resolution="1 hour")
        hits.load([{"tags": {"host": host, "dc": "x"}, "time": AT, "value": 2} for host in "abb"])
    node = serve(server_data=str(tmp_path / "pond"))
    with millpond.open(node.url) as remote:
        sales = remote.map("sales")
        expected = {"orders": 4, "total": 6.0}
        assert sales.get("Lyon", at=AT) == expected
        assert sales.lookup(["Lyon", "Nice"], AT).to_pylist() == [expected, None]
        assert sales.get("Lyon", between=(EVENTS[0]["time"], "2024-03-31T00:00Z")) == expected
        assert sales.scan("orders > 3").read_all().num_rows == 1
        assert remote.sql(f"select get_state('sales', 'Lyon', '{AT}').orders as n").to_pylist() == [{"n": 4}]
        check_tags(remote)
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
