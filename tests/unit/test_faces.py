"""Ponds, maps and results as people meet them at a prompt and in a notebook."""

from __future__ import annotations

import html
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millpond
from millpond.client.events import RemoteEvents
from millpond.client.pond import RemoteLog
from millpond.client.transport import Nodes
from millpond.client.versions.repositories import RemoteRepositories
from millpond.events.event import EventBatch, NewEvent
from millpond.events.names import StreamName
from millpond.kernel.listed import Listed
from millpond.kernel.verify import checked
from millpond.maps.protocols import MapLike, PondLike
from millpond.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path

    from millpond import Pond


@pytest.fixture
def pond(tmp_path: Path) -> Pond:
    return millpond.open(tmp_path / "a <pond>")


def test_a_pond_says_where_it_lies_and_shows_its_maps(pond: Pond, tmp_path: Path) -> None:
    assert repr(pond) == f"Pond({str(tmp_path / 'a <pond>')!r})"
    for number in range(51):
        pond.create_map(f"m{number:02}", kind="state", value="`<b>` double")
    shown = pond._repr_html_()
    assert shown is not None
    assert html.escape(repr(pond)) + ": 51 maps, the first 50" in shown
    assert shown.count("<td>`&lt;b&gt;` double</td>") == 50
    pond.close()
    assert repr(pond)
    assert pond._repr_html_() is None


def test_the_parts_of_a_pond_say_whose_they_are(pond: Pond, tmp_path: Path) -> None:
    assert repr(pond.log) == f"PondLog({str(tmp_path / 'a <pond>')!r})"
    assert repr(pond.events).startswith("Events(") and repr(pond.repositories).startswith("Repositories(")
    nodes = Nodes("http://127.0.0.1:1,http://127.0.0.1:2", load_settings())
    parts = RemoteLog(nodes, "id"), RemoteEvents(nodes, nodes.clock), RemoteRepositories(nodes.connections[0])
    assert [repr(part) for part in parts] == [
        "RemoteLog('http://127.0.0.1:1, http://127.0.0.1:2')", "RemoteEvents('http://127.0.0.1:1, http://127.0.0.1:2')",
        "RemoteRepositories('http://127.0.0.1:1')",
    ]  # fmt: skip
    pond.close()
    assert "object at" not in f"{pond.log}{pond.events}"


def test_a_map_its_snapshot_and_its_results_are_shown(pond: Pond) -> None:
    held = pond.create_map("m", kind="state", value="long")
    result = held.load({"key": ["a"], "value": [1]})
    assert "<tr><td>rows</td><td>1</td></tr>" in result._repr_html_()
    assert "quarantined" not in result._repr_html_()
    assert "<tr><td>rows</td><td>1</td></tr>" in str(held._repr_html_())
    assert "<tr><td>rows_after</td><td>1</td></tr>" in held.retain(before=0)._repr_html_()
    assert "(&#x27;map&#x27;, 1)" in checked("map", 1)._repr_html_()
    snapshot = held.snapshot()
    assert repr(snapshot).startswith("Snapshot('m', kind='state', value='long'")
    assert f"<tr><td>id</td><td>{snapshot.manifest.id}</td></tr>" in snapshot._repr_html_()
    snapshot.close()
    assert repr(snapshot).endswith("closed)")
    pond.drop_map("m")
    assert held._repr_html_() is None


def test_what_a_repository_and_a_stream_answer_is_shown(pond: Pond) -> None:
    main = pond.repositories.create("flights").branch("main")
    for number in range(60):
        main.put(f"<b>{number:02}.csv", b"1")
    commit = main.commit("<i>")
    assert "<tr><td>message</td><td>&lt;i&gt;</td></tr>" in commit._repr_html_()
    listed = pond.repository("flights").ref("main").list(amount=55)
    assert "<caption>55 results, and there are more</caption>" in listed._repr_html_()
    assert listed._repr_html_().count("&lt;b&gt;") == 50
    changes = pond.repository("flights").diff("main~1", "main")._repr_html_()
    assert "<td>added</td><td>&lt;b&gt;00.csv</td><td>None</td>" in changes
    assert (
        pond.repository("flights").diff("main", "main")._repr_html_() == "<table><caption>0 results</caption></table>"
    )
    pond.events.append("<u>", "night", [NewEvent(1_767_225_600_000, b"x", "new", {})])
    index = pond.events.index("<u>", "night")
    assert index is not None
    assert "<caption>&lt;u&gt;/night</caption>" in index._repr_html_()
    assert "<td>2026-01-01</td><td>open</td><td>1</td>" in index._repr_html_()
    assert 'aria-label="events by day of &lt;u&gt;/night" width="8"' in index._repr_html_()
    shown = str(pond.events._repr_html_())
    assert "<tr><td>&lt;u&gt;</td><td>night</td><td>1</td><td>1</td>" in shown
    streams: Any = pond.events.streams()
    assert "<td>&lt;u&gt;</td><td>night</td>" in streams._repr_html_()
    pond.events.append_batches([EventBatch(StreamName("q", str(number)), [NewEvent(1, b"")]) for number in range(60)])
    shown = str(pond.events._repr_html_())
    assert "<caption>streams of events, the first 50</caption>" in shown and shown.count("<tr>") == 51


def test_repositories_refs_and_logs_are_shown(pond: Pond) -> None:
    flights = pond.repositories.create("flights")
    flights.create_branch("fix", "main")
    shown = str(flights._repr_html_())
    assert f"{html.escape(repr(flights))}: its branches</caption>" in shown and "<td>fix</td>" in shown
    main = flights.branch("main")
    for number in range(60):
        main.commit(f"<b>{number}", allow_empty=True)
    for ref in (main, flights.ref("main~1")):
        shown = str(ref._repr_html_())
        assert shown.count("<tr>") == 11 and "<td>&lt;b&gt;58</td>" in shown and ref.expression in shown
    assert flights.ref("none")._repr_html_() is None
    logs: list[Any] = [main.log(), pond.refs.log()]
    assert all("the log of main" in str(log._repr_html_()) for log in logs)


@given(st.integers(0, 120), st.lists(st.integers(0, 60)))
def test_rows_that_were_shown_are_not_lost(count: int, taken: list[int]) -> None:
    names = [StreamName("q", str(number)) for number in range(count)]
    listed, rest = Listed("streams", iter(names)), iter(names)
    for more in taken:
        assert list(islice(listed, more)) == list(islice(rest, more))
        listed._repr_html_()
    assert list(listed) == list(rest)


def test_what_an_act_comes_to_is_shown(pond: Pond) -> None:
    """Each answer of a call that changes something, or counts, is a table."""
    layers = pond.create_map("m", kind="state", value="long", store="layers")
    flights = pond.repositories.create("flights")
    main = flights.branch("main")
    main.put("a", b"1")
    main.commit("first")
    acts = {
        "pond": lambda: (pond.collect_garbage(),),
        "map": lambda: (layers.load({"key": ["a"], "value": [1]}), layers.compact(), layers.delete("value = 1")),
        "events": lambda: (pond.events.append("q", "j", [b"x"]), pond.events.compress(), pond.events.expire()),
        "object": lambda: (main.put("b", b"2"), main.stat("a"), main.head()),
        "repository": lambda: (flights.alter(read_only=False), flights.collect(), *pond.repositories.list().results),
    }  # fmt: skip
    for noun, act in acts.items():
        for outcome in act():
            shown = outcome._repr_html_()
            assert f"<caption>{type(outcome).__name__}</caption>" in shown, noun
            assert len(shown) < 3_000, noun


def test_one_is_one(pond: Pond) -> None:
    pond.create_map("m", kind="state", value="long")
    assert ": 1 map<" in str(pond._repr_html_())
    pond.repositories.create("flights")
    assert "<caption>1 result<" in pond.repositories.list()._repr_html_()


def test_a_run_of_a_pipeline_is_shown() -> None:
    pytest.importorskip("littlehorse")
    from millpond.pipelines.runs import Ended

    shown = Ended("r1", "COMPLETED", {"count": "<b>"})._repr_html_()
    assert "<td>COMPLETED</td>" in shown and "&lt;b&gt;" in shown


def test_dir_lists_the_interface_and_nothing_that_keeps_it(pond: Pond) -> None:
    def public(thing: object) -> list[str]:
        return [name for name in dir(thing) if not name.startswith("_")]

    assert public(pond) == sorted([*public(PondLike), "collect_garbage"])
    assert public(pond.create_map("m", kind="state")) == public(MapLike)
    assert dir(millpond) == sorted(millpond.__all__)
