"""A replica that cannot follow the log any more begins with a copy of the maps, and believes no damaged one."""

from __future__ import annotations

from shutil import rmtree
from typing import TYPE_CHECKING

import pytest

from millpond.maps.model.definition import Kind
from tests.harness.cluster import INTERVALS, wait_for
from tests.harness.cluster_audit import fetch_json
from tests.harness.faulty_proxy import Trouble
from tests.nodes.fault_story import Story, rows_of, running_story

if TYPE_CHECKING:
    from collections.abc import Iterator

REPLICA, NEWCOMER = 1, 2


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Nodes that keep merged parts, and the log, hardly any time."""
    settings = {"maps_part_retention": "500ms", "nodes_intervals": INTERVALS | {"cleanup": "300ms"}}
    with running_story(tmp_path_factory.mktemp("copies"), proxies=True, settings=settings) as opened:
        yield opened


def trimmed(story: Story) -> bool:
    """True when no node has the log from its beginning."""
    return all(fetch_json(story.cluster, number, "/v1/log", after=10**9)["first"] > 1 for number in range(3))


@pytest.mark.sample(1, of="faults of nodes")
@pytest.mark.parametrize("act", ["flip", "cut"])
def test_a_replica_that_begins_anew_does_not_believe_a_damaged_copy(story: Story, act: str) -> None:
    name = f"copy_{act}"
    story.create(name)
    rows = rows_of(Kind.STATE, 1, 3_000, key_bytes=100)
    story.bring(name, rows)
    story.settle()
    wait_for(lambda: trimmed(story), "the log to be trimmed")
    story.cluster.stop(NEWCOMER)
    rmtree(story.cluster.nodes[NEWCOMER].folder)
    troubles = [
        story.proxy(number).trouble(Trouble(act, match=f"GET /v1/maps/{name}/shard".encode(), after=20_000, down=True))
        for number in (0, REPLICA)
    ]
    story.cluster.start(NEWCOMER)
    story.check()
    assert any(trouble.struck.is_set() for trouble in troubles)
    assert list(story.cluster.nodes[NEWCOMER].folder.glob("clone/*")) == []
