"""Reading snapshots of nodes: requests to nodes, fetches, what is shown meanwhile, and what stays cached."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millpond.errors import Denied, NotFound, Unavailable
from millpond.kernel.steps import listening
from millpond.testing.passing_time import while_time_passes
from tests.nodes.staged import KEYS, MINUTE, Stage, settle, value

pytestmark = pytest.mark.sample(5, of="file")

WAIT = 30.0


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path, nodes=3)
    yield made
    made.close()


# -- requests to nodes --------------------------------------------------------------------------------


def test_nothing_is_fetched_before_the_first_read(stage: Stage) -> None:
    reader = stage.cache().reader("m")
    assert stage.nodes[0].requests == []
    assert value(reader, KEYS - 1) == 0
    assert stage.nodes[0].manifests == 1


def test_a_snapshot_is_shown_without_a_request_until_it_is_due(stage: Stage) -> None:
    reader = stage.cache().reader("m")
    assert value(reader) == 0
    stage.changed(7)
    requests_before = len(stage.nodes[0].requests)
    stage.later(10 * MINUTE - 1)
    assert value(reader) == 0
    assert len(stage.nodes[0].requests) == requests_before


def test_one_refresh_runs_while_the_old_one_is_shown(stage: Stage) -> None:
    reader, first = stage.cache().reader("m"), stage.nodes[0]
    assert value(reader) == 0
    stage.changed(7)
    stage.later(10 * MINUTE)
    first.held = threading.Event()
    manifests_before = first.manifests
    with ThreadPoolExecutor(5) as threads:
        assert list(threads.map(lambda _: value(reader), range(20))) == [0] * 20
    first.held.set()
    settle(reader)
    assert first.manifests == manifests_before + 1
    assert value(reader) == 7


def test_the_same_snapshot_again_confirms_it(stage: Stage) -> None:
    reader, first = stage.cache().reader("m"), stage.nodes[0]
    assert value(reader) == 0
    files = len(first.files)
    for _ in range(3):
        stage.later(10 * MINUTE)
        assert value(reader) == 0
        settle(reader)
        manifests_before = first.manifests
        stage.later(MINUTE)
        assert value(reader) == 0
        assert first.manifests == manifests_before
    assert len(first.files) == files


def test_a_failed_refresh_keeps_showing_and_is_not_repeated_at_once(stage: Stage) -> None:
    reader, first = stage.cache(stage.nodes[0]).reader("m"), stage.nodes[0]
    assert value(reader) == 0
    first.down = "connection refused"
    stage.later(11 * MINUTE)
    manifests_before = first.manifests
    for _ in range(5):
        assert value(reader) == 0
        settle(reader)
    assert first.manifests == manifests_before + 1
    stage.later(MINUTE)
    assert value(reader) == 0
    settle(reader)
    assert first.manifests == manifests_before + 2
    # However long they stay away.
    stage.later(1000 * MINUTE)
    assert value(reader) == 0
    assert first.manifests == manifests_before + 3


def test_with_nothing_to_show_it_fails_at_once_with_the_cause(stage: Stage) -> None:
    first = stage.nodes[0]
    reader = stage.cache(first).reader("m")
    first.down = "connection refused"
    for _ in range(5):
        with pytest.raises(Unavailable, match=r"node=http://n1:1 reason=connection refused"):
            reader.snapshot()
    assert len(first.requests) <= 1
    first.down = None
    stage.later(MINUTE)
    assert value(reader) == 0


def test_a_fetch_that_hangs_times_out_once_and_then_fails_at_once(stage: Stage) -> None:
    first = stage.nodes[0]
    first.held = threading.Event()
    reader = stage.cache(first, client_read_timeout="20ms").reader("m")
    with pytest.raises(Unavailable) as slow:
        while_time_passes(stage.clock, reader.snapshot)
    assert slow.value.kind == "snapshot_fetch_slow"
    for _ in range(5):
        with pytest.raises(Unavailable):
            reader.snapshot()  # the clock stands still: whatever waited would wait for ever
    # What comes late is welcome.
    first.held.set()
    settle(reader)
    assert value(reader) == 0


def test_one_that_is_too_old_is_refreshed_before_it_is_shown(stage: Stage) -> None:
    reader = stage.cache().reader("m")
    assert value(reader) == 0
    stage.changed(7)
    stage.later(20 * MINUTE)
    assert value(reader) == 7


def test_a_clock_that_was_set_back_is_no_confirmation(stage: Stage) -> None:
    reader = stage.cache().reader("m")
    assert value(reader) == 0
    stage.changed(7)
    stage.clock.now -= 5 * MINUTE
    assert value(reader) == 7


def test_who_must_see_the_last_change_waits_for_it(stage: Stage) -> None:
    cache = stage.cache()
    reader = cache.reader("m")
    assert value(reader) == 0
    stage.changed(7)
    assert value(reader) == 0
    assert reader.cached
    cache.outdate("m")
    assert not reader.cached
    assert value(reader) == 7
    stage.changed(8)
    assert reader.snapshot(fresh=True).lookup(["k00000"]).to_pylist() == [8]


def test_a_map_that_was_changed_before_it_was_read_is_read_fresh(stage: Stage) -> None:
    assert value(stage.cache().reader("m")) == 0
    stage.changed(7)
    cache = stage.cache()
    cache.outdate("m")
    assert value(cache.reader("m")) == 7


# -- which node ---------------------------------------------------------------------------------------


def test_the_next_node_is_tried_when_one_cannot_be_reached(stage: Stage) -> None:
    stage.nodes[0].down = "no route to host"
    assert value(stage.cache().reader("m")) == 0
    assert stage.nodes[1].manifests == 1
    assert stage.nodes[2].requests == []


def test_any_answer_is_final(stage: Stage) -> None:
    stage.nodes[0].refuses = NotFound("there is no such map", kind="map_not_found", map="m")
    cache = stage.cache()
    cache.fetch.store.know_pond(cache.fetch.nodes.urls, stage.pond.log.pond_id)
    with pytest.raises(NotFound, match="no such map"):
        cache.reader("m").snapshot()
    assert stage.nodes[1].requests == []


def test_when_none_can_be_reached_all_are_named_with_their_reasons(stage: Stage) -> None:
    cache = stage.cache()
    assert value(cache.reader("m")) == 0
    for number, node in enumerate(stage.nodes):
        node.down = f"reason {number}"
    stage.later(100 * MINUTE)
    with pytest.raises(Unavailable) as failed:
        cache.reader("m").snapshot(fresh=True)
    for number, node in enumerate(stage.nodes):
        assert f"{node.url}: reason {number}" in str(failed.value)
    assert failed.value.kind == "node_unreachable"


@pytest.mark.parametrize("error", [NotFound("gone", kind="map_not_found"), Denied("no", kind="right_missing")])
def test_what_may_not_be_read_any_more_is_not_shown_any_more(stage: Stage, error: NotFound | Denied) -> None:
    cache = stage.cache()
    reader = cache.reader("m")
    assert value(reader) == 0
    stage.nodes[0].refuses = error
    stage.later(10 * MINUTE)
    reader.snapshot()
    settle(reader)
    with pytest.raises(type(error)):
        reader.snapshot()
    with pytest.raises(type(error)):
        stage.cache().reader("m").snapshot()


def test_a_map_made_again_is_fetched_again(stage: Stage) -> None:
    reader = stage.cache().reader("m")
    assert value(reader) == 0
    stage.pond.drop_map("m")
    stage.map = stage.pond.create_map("m", kind="state", value="long")
    stage.load([0], 5)
    stage.later(20 * MINUTE)
    assert value(reader) == 5


# -- what is kept -------------------------------------------------------------------------------------


def manifests(stage: Stage) -> int:
    return len(list((stage.folder / "machine").rglob("manifests/*.json")))


def test_an_idle_reader_lets_go_and_comes_back_without_a_node(stage: Stage) -> None:
    cache = stage.cache()
    reader = cache.reader("m")
    assert value(reader) == 0
    stage.later(MINUTE - 1)
    cache.tend()
    assert reader._held is not None
    stage.later(MINUTE)
    cache.tend()
    assert reader._held is None
    requests_before = len(stage.nodes[0].requests)
    assert value(reader) == 0
    assert len(stage.nodes[0].requests) == requests_before


def test_an_old_snapshot_goes_when_its_last_reader_lets_go(stage: Stage) -> None:
    here, there = stage.cache(), stage.cache()  # two processes of one machine
    mine = here.reader("m").snapshot()
    other = there.reader("m").snapshot()
    stage.changed(7)
    stage.later(20 * MINUTE)
    assert value(here.reader("m")) == 7
    here.tend()
    assert manifests(stage) == 2  # both are read: one here, one there
    assert other.lookup(["k00000"]).to_pylist() == [0]
    del mine
    here.tend()
    assert manifests(stage) == 2
    del other
    assert value(there.reader("m")) == 7
    there.tend()
    assert manifests(stage) == 1
    assert value(here.reader("m"), KEYS - 1) == 0


def test_a_thread_refreshes_in_the_background(stage: Stage) -> None:
    cache = stage.cache(tending=True)
    collected = threading.Event()
    held = cache.reader("m").snapshot()
    stage.changed(7)
    stage.later(20 * MINUTE)
    assert value(cache.reader("m")) == 7
    with listening(lambda name: collected.set() if name == "collect.manifests_removed" else None):
        del held
        assert collected.wait(WAIT)
    tender = cache._tender
    cache.close()
    assert tender is not None
    tender.join(WAIT)
    assert not tender.is_alive()


def test_closing_what_was_given_out_does_not_close_the_reader(stage: Stage) -> None:
    reader = stage.cache().reader("m")
    held = reader.snapshot()
    reader.snapshot().close()
    assert held.lookup(["k00000"]).to_pylist() == [0]
    assert value(reader) == 0


def test_copies_that_nobody_wants_any_more_are_removed(stage: Stage) -> None:
    cache = stage.cache()
    held = cache.reader("m").snapshot()
    stage.pond.create_map("other", kind="state")
    cache.reader("other").snapshot()
    store = cache.fetch.store
    assert store.sweep(stage.clock.now_ms()) == 0
    stage.later(8 * 24 * 60 * MINUTE)
    cache.close()
    assert store.sweep(stage.clock.now_ms()) == 1
    assert held.lookup(["k00000"]).to_pylist() == [0]
    assert manifests(stage) == 1
    del held
    assert store.sweep(stage.clock.now_ms()) == 1
    assert manifests(stage) == 0
