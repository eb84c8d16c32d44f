"""The merger of a served pond: in order, in parallel, and never stopped by one map's trouble."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from millpond.clock import SystemClock
from millpond.errors import Corrupt, Unavailable
from millpond.kernel.steps import listening
from millpond.maps.loads import merge_queue
from millpond.maps.loads import merger as merger_module
from millpond.maps.loads.merger import Merger
from millpond.maps.shard.shard import Shard
from millpond.pond import open_pond
from tests.harness.cluster import wait_for
from tests.harness.rows import canonical_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from millpond import Pond

SECONDS = 60


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    with open_pond(tmp_path / "pond", clock=SystemClock(), serve=True, maps_part_retention="7d") as opened:
        for name in ("one", "two"):
            opened.create_map(name, kind="temporal_state", value="long")
        yield opened


@pytest.fixture
def merger(pond: Pond) -> Iterator[Merger]:
    merger = Merger(pond, try_again_seconds=0.05)
    yield merger
    merger.stop()


def bring(pond: Pond, name: str, value: int, *, wait: bool = False) -> int:
    writer = pond.part_writer(name)
    writer.write(canonical_of(pond.map(name).definition, [(("a", value), value), (("b", 0), value)]))
    return pond.commit_load(writer.finish(), wait=wait).position


def status(merger: Merger, name: str) -> dict[str, Any]:
    [found] = [entry for entry in merger.status() if entry["map"] == name]
    return found


def test_a_load_that_waits_is_merged_in_the_background(pond: Pond, merger: Merger) -> None:
    merger.start()
    merger.start()
    assert merger.worker.alive
    position = bring(pond, "one", 1, wait=True)
    assert pond.map("one").get("a", at=5) == 1
    state = status(merger, "one")
    assert (state["position"], state["parts_queued"], state["error"]) == (position, 0, "")
    order = pond.log.order_maintenance("one", "condense", 9)
    pond.log.wait_applied(order.position, ["one"], timeout=SECONDS)
    assert pond.map("one").condense(before=9).rows_removed == 0
    merger.stop()
    merger.stop()
    report = merger.report(order.position)
    assert report is None or report.map == "one"
    assert not merger.worker.alive
    bring(pond, "one", 2)
    assert pond.log.applied("one") == order.position + 1, "nobody merges in a served pond but its merger"


def test_who_waits_for_what_is_there_hears_of_merges_and_not_of_loads(pond: Pond, merger: Merger) -> None:
    position = bring(pond, "one", 1)
    wait = pond.log.begin_wait(position)
    heard = threading.Event()
    wait.changed.listeners.append(heard.set)
    behind = bring(pond, "two", 2)
    assert not heard.is_set()
    assert pond.log.begin_wait(behind + 1).changed is not wait.changed, "a load may bring what is not there"
    merger.start()
    pond.log.wait_applied(position, timeout=SECONDS)
    assert heard.wait(SECONDS)
    assert wait.ended()


def test_small_loads_are_folded_into_one_change(pond: Pond, merger: Merger, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in range(6):
        bring(pond, "one", value)
    pond.log.order_maintenance("one", "retain", -5)
    for value in range(6, 9):
        last = bring(pond, "one", value)
    merger.start()
    pond.log.wait_applied(last, timeout=SECONDS)
    assert pond.map("one").shard.version == 2
    assert [pond.map("one").get("b", at=5), pond.map("one").get("a", at=7)] == [8, 7]
    merger.stop()
    monkeypatch.setattr(merge_queue, "FOLD_ROWS", 4)
    for value in range(10, 14):
        last = bring(pond, "one", value)
    merger.start()
    pond.log.wait_applied(last, timeout=SECONDS)
    assert pond.map("one").shard.version == 4


def test_what_comes_during_a_merge_waits_for_the_next_unless_somebody_waits_for_it(
    pond: Pond, merger: Merger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merger_module, "REST_SECONDS_MAX", 3600.0)
    monkeypatch.setattr(merger_module, "RESTS", 1e9)
    coming = [7]

    def come(name: str) -> None:
        if name == "merge.part_put" and coming:
            bring(pond, "one", coming.pop())

    with listening(come):
        bring(pond, "one", 0)
        merger.start()
        wait_for(lambda: not coming and not status(merger, "one")["working"], "the first merge")
        assert status(merger, "one")["parts_queued"] == 1, "it shares the next merge with what comes behind it"
        last = bring(pond, "one", 8)
        pond.log.wait_applied(last, ["one"], timeout=SECONDS)
    assert pond.map("one").get("b", at=5) == 8


@pytest.mark.parametrize("error", [Unavailable("no space is left", kind="disk_full"), RuntimeError("a mistake")])
def test_a_merge_failure_of_one_map_is_reported_until_it_is_over(
    pond: Pond, merger: Merger, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    change, troubled = Shard.change, threading.Event()
    troubled.set()
    tried = threading.Semaphore(0)

    def troubling(shard: Shard, *arguments: Any, **more: Any) -> Any:
        if troubled.is_set() and shard.definition.name == "one":
            tried.release()
            raise error
        return change(shard, *arguments, **more)

    monkeypatch.setattr(Shard, "change", troubling)
    merger.start()
    first, second = bring(pond, "one", 1), bring(pond, "two", 1)
    pond.log.wait_applied(second, ["two"], timeout=SECONDS)
    for _ in range(2):
        assert tried.acquire(timeout=SECONDS), "it is tried again"
    state = status(merger, "one")
    assert state["error"] == str(error)
    assert state["error_kind"] == getattr(error, "kind", "internal")
    assert state["parts_queued"] == 1
    assert pond.parts.list(state="quarantined") == []
    troubled.clear()
    pond.log.wait_applied(first, timeout=SECONDS)
    merger.stop()
    assert status(merger, "one")["error"] == ""
    assert pond.map("one").get("a", at=5) == 1


def test_a_blocked_caller_learns_at_once_why_merging_fails(
    pond: Pond, merger: Merger, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, troubled = Shard.change, threading.Event()
    troubled.set()

    def troubling(shard: Shard, *arguments: Any, **more: Any) -> Any:
        if troubled.is_set() and shard.definition.name == "one":
            raise Corrupt("a page is damaged", kind="shard_damaged")
        return change(shard, *arguments, **more)

    monkeypatch.setattr(Shard, "change", troubling)
    merger.start()
    for _ in range(2):  # also of an attempt that began before it waited
        with pytest.raises(Unavailable, match="a page is damaged") as raised:
            bring(pond, "one", 1, wait=True)
        assert (raised.value.kind, raised.value.values["map"]) == ("merge_failed", "one")
    other = bring(pond, "two", 1, wait=True)
    pond.log.wait_applied(other, ["two"], timeout=SECONDS)
    with pytest.raises(Unavailable, match="a page is damaged"):
        pond.log.wait_applied(other, timeout=SECONDS)
    assert {part.reason for part in pond.parts.list("one")} == {"a page is damaged"}
    assert {part.reason for part in pond.parts.list("two")} == {""}
    troubled.clear()
    pond.log.wait_applied(other, timeout=SECONDS)
    assert {part.reason for part in pond.parts.list()} == {""}
    assert pond.map("one").get("a", at=5) == 1


def test_a_blocked_caller_does_not_see_past_failures(pond: Pond) -> None:
    failures = pond.loads.failures
    failures.ended("one", failures.begin("one"), Corrupt("a page is damaged"))
    before = failures.begin("two")
    since = failures.ask(["one", "two"], 7)
    assert (failures.requested("one"), failures.requested("two"), failures.all(after=since)) == (7, 7, [])
    failures.ended("two", before, Corrupt("it began before somebody waited"))
    assert (failures.requested("two"), failures.all(after=since)) == (7, [])
    attempt = failures.begin("two")
    assert failures.requested("two") is None
    failures.ended("two", attempt, Corrupt("it is damaged still"))
    assert [(failure.map, failure.reason) for failure in failures.all(after=since)] == [("two", "it is damaged still")]
    failures.ended("two", failures.begin("two"), None)
    assert [failure.map for failure in failures.all()] == ["one"]


def test_stopping_waits_for_the_transaction_and_not_for_what_waits(pond: Pond, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_queue, "FOLD_ROWS", 1)
    for value in range(5):
        last = bring(pond, "one", value)
    merger = Merger(pond)
    reached, go_on = threading.Event(), threading.Event()

    def hold(step: str) -> None:
        if step == "shard.changed_uncommitted" and not reached.is_set():
            reached.set()
            assert go_on.wait(SECONDS)

    with listening(hold):
        merger.start()
        assert reached.wait(SECONDS)
        stopping = threading.Thread(target=merger.stop)
        stopping.start()
        assert merger.worker.stopping.wait(SECONDS)
        go_on.set()
        stopping.join(SECONDS)
    assert not stopping.is_alive()
    assert pond.map("one").shard.version == 1
    merger.start()
    pond.log.wait_applied(last, timeout=SECONDS)
    merger.stop()
    assert pond.map("one").shard.version == 5


def test_stopped_maintenance_is_resumed(pond: Pond) -> None:
    for value in range(3):
        bring(pond, "one", value)
    order = pond.log.order_maintenance("one", "retain", 2)
    merger = Merger(pond)
    monkey = threading.Event()

    def stop_at_maintenance(step: str) -> None:
        if step == "merge.dequeued" and not monkey.is_set():
            monkey.set()
            merger.worker.interrupt()

    with listening(stop_at_maintenance):
        merger.start()
        assert monkey.wait(SECONDS)
        merger.stop()
    assert pond.log.applied("one") == order.position - 1
    merger.start()
    pond.log.wait_applied(order.position, timeout=SECONDS)
    merger.stop()
    assert merger.report(order.position).rows_removed == 3  # type: ignore[union-attr]


@pytest.mark.usefixtures("process")
def test_a_dropped_map_leaves_the_merger_at_peace(pond: Pond, merger: Merger) -> None:
    bring(pond, "one", 1)
    first = threading.Lock()  # two threads merge: the other must not drop it again

    def drop(step: str) -> None:
        both = [pond_map.name for pond_map in pond.maps()] == ["one", "two"]
        if step == "shard.changed" and both and first.acquire(blocking=False):
            pond.drop_map("one")

    with listening(drop):
        merger.start()
        last = bring(pond, "two", 2)
        pond.log.wait_applied(last, ["two"], timeout=SECONDS)
        merger.stop()
    assert [entry["map"] for entry in merger.status()] == ["two"]
    assert merger.worker.failure is None
    assert pond.verify().ok
    assert len(list((pond.folder / "shards").iterdir())) == 1


@pytest.mark.usefixtures("process")
def test_a_map_dropped_before_its_change_leaves_nothing_behind(pond: Pond, merger: Merger) -> None:
    bring(pond, "one", 1)
    dropped: list[str] = []

    def drop(step: str) -> None:
        if step == "merge.part_taken" and not dropped:
            dropped.append(step)
            threading.Thread(target=pond.drop_map, args=("one",)).run()

    with listening(drop):
        merger.start()
        pond.log.wait_applied(bring(pond, "two", 2), ["two"], timeout=SECONDS)
        merger.stop()
    assert pond.verify().ok
    assert [path.name.partition(".")[0] for path in (pond.folder / "shards").iterdir()] == ["two"]


@pytest.mark.usefixtures("process")
def test_a_part_is_not_blamed_for_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(*_arguments: object, **_more: object) -> None:
        raise RuntimeError("a mistake")

    with open_pond(tmp_path / "pond") as pond:
        pond.create_map("one", kind="temporal_state", value="long")
        with monkeypatch.context() as patched:
            patched.setattr(Shard, "change", mistaken)
            with pytest.raises(RuntimeError):
                bring(pond, "one", 1, wait=True)
        assert [part.state for part in pond.parts.list()] == ["queued"]
        pond.merge()
        assert pond.map("one").get("a", at=5) == 1
        assert pond.verify().ok


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("retention", ["off", "7d"])
def test_a_part_without_data_is_quarantined(tmp_path: Path, retention: str) -> None:
    with open_pond(tmp_path / "pond", maps_part_retention=retention) as pond:
        pond.create_map("one", kind="temporal_state", value="long")
        for value in (1, 2, 3):
            bring(pond, "one", value)
        lost = pond.parts.list()[1].part
        (pond.folder / "parts" / lost).unlink()
        pond.merge()
        assert [part.part for part in pond.parts.list(state="quarantined")] == [lost]
        assert [pond.map("one").get("a", at=at) for at in (1, 2, 3)] == [1, 1, 3]
