"""The client's side of a watch on a node: lines become events, each once, also those that come with an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from millpond.client.events import RemoteManyWatch, RemoteWatch
from millpond.errors import Unavailable
from millpond.events.event import Event
from millpond.events.filters import filter_of
from millpond.events.ids import format_id
from millpond.events.names import StreamName
from millpond.events.ndjson import line_of_event, line_of_stream_event
from millpond.json_forms import to_json

STREAM = StreamName("q", "j")
EVENTS = [Event(number, 1_000, b"%d" % number, "", {}) for number in (1, 2, 3)]
ERROR = to_json({"error": {"kind": "node_stopping", "message": "the node is stopping"}}) + b"\n"


class Response:
    """A response whose bytes come in these pieces; a lost connection where one is None."""

    def __init__(self, pieces: list[bytes | None]) -> None:
        self.pieces = pieces

    def read_some(self) -> bytes:
        piece = self.pieces.pop(0) if self.pieces else b""
        if piece is None:
            raise Unavailable("connection lost", kind="node_unreachable")
        return piece

    def close(self) -> None:
        self.pieces = []


class Nodes:
    """Nodes that give these responses, one after another, and note what was requested."""

    def __init__(self, *responses: list[bytes | None]) -> None:
        self.responses = [Response(pieces) for pieces in responses]
        self.queries: list[Any] = []

    def on_primary(self, act: Callable[[Any], Any], *, repeatable: bool) -> Any:
        assert repeatable
        return act(self)

    def stream(self, method: str, path: str, **query: Any) -> Response:
        del method, path
        self.queries.append(query)
        return self.responses.pop(0)


def numbers(found: list[Any]) -> list[int]:
    return [one.number if isinstance(one, Event) else one.event.number for one in found]


def test_events_that_come_with_an_error_are_delivered_before_it() -> None:
    one, two, three = map(line_of_event, EVENTS)
    nodes = Nodes([one + two + ERROR], [three])
    watch = RemoteWatch(cast("Any", nodes), STREAM, 0)
    assert numbers(watch.next_batch(None)) == [1, 2]
    with pytest.raises(Unavailable, match="ended"):
        watch.next_batch(None)
    assert numbers(watch.next_batch(None)) == [3]
    assert [query["query"]["after"] for query in nodes.queries] == [format_id(0), format_id(2)]


def test_events_of_several_streams_that_come_with_an_error_are_delivered_before_it() -> None:
    one, two, three = (line_of_stream_event(0, event) for event in EVENTS)
    nodes = Nodes([one + two + ERROR], [three])
    watch = RemoteManyWatch(cast("Any", nodes), {STREAM: 0})
    assert numbers(watch.next_batch(None)) == [1, 2]
    with pytest.raises(Unavailable, match="ended"):
        watch.next_batch(None)
    assert numbers(watch.next_batch(None)) == [3]


def test_a_line_that_was_cut_off_comes_again_whole() -> None:
    one, two, three = map(line_of_event, EVENTS)
    nodes = Nodes([one + two[:10], None], [two + three])
    watch = RemoteWatch(cast("Any", nodes), STREAM, 0)
    assert numbers(watch.next_batch(None) + watch.next_batch(None)) == [1, 2, 3]


def test_a_watch_goes_on_after_what_did_not_match_but_not_after_a_gap() -> None:
    one, two, _ = map(line_of_event, EVENTS)
    alive, gap = to_json({"alive": format_id(7)}) + b"\n", to_json({"gap": format_id(9)}) + b"\n"
    nodes = Nodes([one + alive, None], [gap, None], [two])
    watch = RemoteWatch(cast("Any", nodes), STREAM, 0, filter_of({"kind": "failed"}))
    assert numbers(watch.next_batch(None)) == [1] and watch.after == format_id(7)
    assert watch.next_batch(None) == [] and watch.gap and watch.after == format_id(7)
    assert numbers(watch.next_batch(None)) == [2]
    assert [query["query"]["after"] for query in nodes.queries] == [format_id(0), format_id(7), format_id(7)]
    assert {query["query"]["kind"][0] for query in nodes.queries} == {"failed"}


def test_a_watch_of_several_streams_goes_on_after_what_did_not_match() -> None:
    alive = to_json({"alive": [format_id(7), format_id(8)]}) + b"\n"
    nodes = Nodes([alive, None], [line_of_stream_event(1, EVENTS[0])])
    other = StreamName("q", "other")
    watch = RemoteManyWatch(cast("Any", nodes), {STREAM: 0, other: 0}, filter_of({"job": "7"}))
    assert watch.next_batch(None) == [] and watch.after == {STREAM: format_id(7), other: format_id(8)}
    assert numbers(watch.next_batch(None)) == [1]
    again = nodes.queries[1]["json"]
    assert [stream["after"] for stream in again["streams"]] == [format_id(7), format_id(8)]
    assert again["filters"] == {"job": ["7"]}
