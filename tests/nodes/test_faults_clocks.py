"""Clocks that are wrong: order comes from the log, never from a clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.cluster_audit import fetch_json
from tests.harness.rows import table_of
from tests.nodes.fault_story import Story, rows_of, running_story

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.sample(1, of="faults of nodes")

HOUR = 3_600_000
DAY = 24 * HOUR


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with running_story(tmp_path_factory.mktemp("clocks"), settings={"nodes_lag_limit": "10y"}) as story:
        yield story


@pytest.fixture
def story(whole: Story) -> Iterator[Story]:
    whole.calm()
    whole.world.clear()
    yield whole
    whole.calm()


def stamps_of(story: Story) -> list[int]:
    """The stamps of the primary's entries, in their order."""
    return [entry["stamp_ms"] for entry in fetch_json(story.cluster, 0, "/v1/log", after=0)["entries"]]


def test_a_clock_set_back_changes_no_order(story: Story) -> None:
    """The later load wins, whatever the primary's clock said; stamps never go back."""
    story.create("back")
    for load, shift in enumerate((0, -DAY, -DAY, HOUR, -HOUR)):
        story.cluster.shift_clock(0, shift)
        story.load("back", 0 if load % 2 else 1, again=True)
        story.load("back", load, again=True)
    stamps = stamps_of(story)
    assert stamps == sorted(stamps)
    story.check()


def test_a_clock_set_back_while_the_primary_was_away(story: Story) -> None:
    story.create("reboot", "temporal_state")
    story.load("reboot", 1)
    story.cluster.shift_clock(0, -DAY)
    story.cluster.stop(0)
    story.cluster.start(0)
    story.load("reboot", 2)
    story.load("reboot", 1, again=True)
    stamps = stamps_of(story)
    assert stamps == sorted(stamps)
    story.check()


def test_nodes_that_disagree_about_the_time_agree_about_the_rows(story: Story) -> None:
    """Update times, and what is kept by them, are the primary's on every node."""
    story.create("skewed", retain="100y", retain_by="update_time")
    model = story.model("skewed")
    for load, days in enumerate((0, 1, 2, 4)):
        for number, shift in enumerate((days * DAY, 30 * DAY, -30 * DAY)):
            story.cluster.shift_clock(number, 2 * DAY + shift)
        rows = rows_of(model.kind, load)
        story.pond.map("skewed").load(table_of(story.definition("skewed"), rows))
        model.put(rows, now=stamps_of(story)[-1])
    before = stamps_of(story)[-2]
    story.pond.map("skewed").retain(before=before)
    assert model.retain(before, by="update_time")
    assert model.rows
    story.check()


def test_a_cluster_whose_clocks_jump_during_loads_stays_of_one_mind(story: Story) -> None:
    story.create("jumps", "temporal_state")
    for load in range(9):
        for number in range(3):
            story.cluster.shift_clock(number, (load * 7 + number * 5) % 11 * HOUR - 5 * HOUR)
        story.load("jumps", load)
    story.check()
