"""Pages of maps: where loads came from, maps as they are on branches and were at refs, aggregates."""

from __future__ import annotations

from collections.abc import Callable

from millpond.maps.log.log import trim_whole
from tests.nodes.conftest import Served
from tests.nodes.console_pond import SCRIPT
from tests.nodes.test_console_actions import Visitor


def test_the_source_of_a_load_is_told_when_the_log_is_gone(serve: Callable[..., Served]) -> None:
    node = serve(events_reports=True)
    ours = node.pond.create_map("ours", kind="state", value="double", store="layers")
    for source in ("first.csv", SCRIPT):
        ours.load([{"key": source, "value": 1.0}], source=source)
    trim_whole(node.pond.space, node.pond.log.position()[0] + 1)

    def sources() -> list[str]:
        return [load["source"] for load in Visitor(node).data("/console/maps/ours")["loads"]]

    node.until(lambda: len(sources()) == 2)
    assert sources() == [SCRIPT, "first.csv"]
