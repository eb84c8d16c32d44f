"""Cached maps are answered before anything is routed, and answered the same; nothing that blocks is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.clock import ManualClock
from millpond.errors import Invalid
from millpond.kernel.space import WouldBlock
from millpond.nodes.fast_get import (
    APART_SECONDS,
    CPU_SECONDS_MAX,
    DEAR_MAX,
    SLOW_SECONDS,
    Effort,
    FastGet,
    effort_of_thread,
)
from millpond.pond import Pond, open_pond
from millpond.server.routes import questions
from millpond.stores.lmdb.space import LmdbSpace


@dataclass(slots=True)
class WorkingClock(ManualClock):
    """A clock on which each answer takes some time, CPU and pages: those between two looks at it."""

    seconds: float = 0.0
    cpu: float = 0.0
    pages: int = 0
    looks: int = 0
    measured: int = 0

    def monotonic(self) -> float:
        self.looks += 1
        return self.passed_ms / 1000 + self.looks * self.seconds

    def effort(self) -> Effort:
        self.measured += 1
        return Effort(self.measured * self.cpu, self.measured * self.pages)


def cached(hand: FastGet, name: str, key: str | bytes, at: str | None) -> dict[str, Any] | None:
    """The answer that is cached; None where it may have to wait."""
    try:
        return hand.get(name, key, at)
    except WouldBlock:
        return None


@pytest.fixture
def pond(tmp_path: Path) -> Any:
    with open_pond(tmp_path / "pond", clock=ManualClock(10_000)) as made:
        made.create_map("m", kind="state", value="long").load(pa.table({"key": ["a", "b"], "value": [1, 2]}))
        yield made


@pytest.fixture(scope="module")
def cached_maps(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A pond whose maps m and n are open."""
    with open_pond(tmp_path_factory.mktemp("cached") / "pond", clock=ManualClock(10_000)) as made:
        for name in ("m", "n"):
            made.create_map(name, kind="state", value="long").load(pa.table({"key": ["a"], "value": [1]}))
            made.map(name).get("a")
        yield made


def test_only_maps_that_are_open_are_cached(pond: Pond) -> None:
    hand = FastGet(pond, pond.clock)
    assert pond.map("m").get("a") == 1
    assert cached(hand, "m", "a", None) == {"found": True, "type": "long", "value": 1}
    assert cached(hand, "M", b"none", None) == {"found": False, "type": "null", "value": None}
    assert cached(hand, "nothing", "a", None) is None
    pond.open_maps.forget(["m"])
    assert cached(hand, "m", "a", None) is None, "opening it may take long"
    pond.map("m").get("a")
    assert cached(hand, "m", "a", None) is not None


def test_what_is_dropped_or_altered_is_not_cached(pond: Pond) -> None:
    hand = FastGet(pond, pond.clock)
    assert cached(hand, "m", "a", None) is not None
    pond.alter_map("m", retain="10y", retain_by="update_time")
    assert cached(hand, "m", "a", None) is None, "it is opened anew"
    assert pond.map("m").get("a") == 1
    pond.drop_map("m")
    assert cached(hand, "m", "a", None) is None


def test_a_shard_that_is_switched_is_opened_by_others(pond: Pond) -> None:
    hand = FastGet(pond, pond.clock)
    pond.map("m").get("a")
    with open_pond(pond.folder, clock=pond.clock) as other:
        other.map("m").compact()
    assert cached(hand, "m", "a", None) is None
    assert pond.map("m").get("a") == 1
    assert cached(hand, "m", "a", None) is not None


def test_nobody_is_waited_for(pond: Pond) -> None:
    hand, shard = FastGet(pond, pond.clock), pond.map("m").shard
    pond.map("m").get("a")
    held, release = threading.Event(), threading.Event()

    def hold(lock: Any) -> None:
        with lock:
            held.set()
            release.wait(10)

    for lock in (shard._lock, pond.open_maps._lock):
        held.clear()
        release.clear()
        holder = threading.Thread(target=hold, args=(lock,))
        holder.start()
        assert held.wait(10)
        assert cached(hand, "m", "a", None) is None
        release.set()
        holder.join()
        assert cached(hand, "m", "a", None) is not None


@pytest.mark.parametrize("where", ["space", "shard"])
def test_a_map_that_is_about_to_move_is_not_waited_for(pond: Pond, where: str) -> None:
    hand = FastGet(pond, pond.clock)
    assert pond.map("m").get("a") == 1
    assert cached(hand, "m", "a", None) is not None
    space = pond.space
    assert isinstance(space, LmdbSpace)
    environment = space._environment if where == "space" else pond.map("m").shard._generation.env
    assert environment is not None
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with environment.read():
            held.set()
            assert release.wait(60)

    def move() -> None:
        with environment._quiet():
            pass

    reader, mover = threading.Thread(target=hold), threading.Thread(target=move)
    reader.start()
    assert held.wait(60)
    mover.start()
    while not environment._growers:
        assert mover.is_alive()
    assert cached(hand, "m", "a", None) is None
    assert mover.is_alive(), "it was answered without waiting for the reader to end"
    release.set()
    reader.join()
    mover.join()
    assert cached(hand, "m", "a", None) is not None


def test_answers_that_take_no_time_are_not_measured(pond: Pond) -> None:
    clock = WorkingClock(pond.clock.now_ms())
    hand = FastGet(pond, clock, clock.effort)
    pond.map("m").get("a")
    for _ in range(10):
        assert cached(hand, "m", "a", None) is not None
    assert clock.measured == 0
    clock.seconds = 2 * SLOW_SECONDS
    assert cached(hand, "m", "a", None) is not None
    assert clock.measured == 0
    assert cached(hand, "m", "a", None) is not None
    assert clock.measured == 2, "it was slow: the next one is measured"
    clock.seconds = 0.0
    assert cached(hand, "m", "a", None) is not None
    assert clock.measured == 2, "that was cheap, and took its time for another reason"


@given(st.lists(st.sampled_from(["cheap", "waited", "dear", "other"]), max_size=30), st.booleans())
def test_maps_whose_answers_are_dear_go_to_threads_for_a_while(
    cached_maps: Pond, costs: list[str], pages: bool
) -> None:
    clock = WorkingClock(cached_maps.clock.now_ms())
    hand = FastGet(cached_maps, clock, clock.effort)
    measured, dear = False, 0  # of map m, by the rule
    for cost in costs:
        clock.seconds = 0.0 if cost == "cheap" else 2 * SLOW_SECONDS
        clock.cpu = 2 * CPU_SECONDS_MAX if cost == "dear" and not pages else 0.0
        clock.pages = 1 if cost == "dear" and pages else 0
        if cost == "other":
            assert cached(hand, "n", "a", None) is not None, "it is map m alone"
            continue
        assert cached(hand, "m", "a", None) is not None
        if not measured:
            measured = cost != "cheap"
        else:
            dear = dear + 1 if cost == "dear" else 0
            measured = dear > 0
        if dear == DEAR_MAX:
            clock.seconds = 0.0
            assert cached(hand, "m", "a", None) is None
            clock.advance(int((APART_SECONDS + 1) * 1000))
            measured, dear = False, 0


def test_effort_is_of_this_thread() -> None:
    before = effort_of_thread()
    busy = threading.Thread(target=lambda: sum(range(3_000_000)))
    busy.start()
    busy.join()
    assert effort_of_thread().cpu - before.cpu < 0.02
    sum(range(1_000_000))
    assert effort_of_thread().cpu > before.cpu


def test_an_impossible_query_is_refused_as_ever(pond: Pond) -> None:
    pond.create_map("ranges", kind="ranged_state", value="long").load(
        pa.table({"key_start": [1], "key_end": [5], "value": [7]})
    )
    pond.map("ranges").get(1)
    hand = FastGet(pond, pond.clock)
    assert cached(hand, "ranges", "3", None) == {"found": True, "type": "long", "value": 7}
    assert cached(hand, "ranges", str(1 << 70), None) == {"found": False, "type": "null", "value": None}
    with pytest.raises(Invalid):
        hand.get("ranges", "three", None)


_LETTERS = st.sampled_from(
    ["a", "7", "-", "/", ":", "+", "%2F", "%ff", "%", "=", "&", "é".encode().hex(), ";", " ", "_", "\n"]
)


@given(
    st.lists(st.one_of(_LETTERS, st.sampled_from(["key=", "&at=", "&key=", "&at=5", "key_hex="])), max_size=8).map(
        "".join
    )
)
def test_a_plain_query_is_read_as_any_other(query: str) -> None:
    def read(parse: Callable[[bytes], Any]) -> Any:
        try:
            return parse(query.encode())
        except Invalid as error:
            return error.kind, str(error)

    assert read(questions._question) == read(questions._parsed)


# -- over HTTP ----------------------------------------------------------------------------------------


def test_both_ways_answer_alike_and_are_counted_alike(node: Any) -> None:
    loaded = node.pond.create_map("m", kind="temporal_state", value="a long, b string").load(
        pa.table({"key": ["é/ü", "b"], "effective_time": [1000, 1000], "a": [1, 2], "b": ["x", None]}), zone="UTC"
    )
    node.pond.log.wait_applied(loaded.position, timeout=30)
    paths = [
        "/v1/maps/m/get?key=b", "/v1/maps/M/get?at=1970-01-01T00:00:01Z&key=b", "/v1/maps/m/get?key=%C3%A9%2F%C3%BC",
        "/v1/maps/m/get?key_hex=62&at=999", "/v1/maps/m/get?key=a+b", "/v1/maps/m/get?key=&at=5",
        "/v1/maps/m/get?key=x&key=b", "/v1/maps/m/get", "/v1/maps/m/get?key=%ff", "/v1/maps/m/get?key=b&at=yesterday",
        "/v1/maps/nothing/get?key=b", "/v1/maps//get?key=b", "/v1/maps/m%2Fx/get?key=b",
    ]  # fmt: skip
    node.pond.open_maps.forget(["m"])
    slow = []
    for path in paths:
        node.pond.open_maps.forget(["m"])
        slow.append(node.get(path))
    node.get(paths[0])
    fast = [node.get(path) for path in paths]
    assert [(response.status, response.body) for response in fast] == [
        (response.status, response.body) for response in slow
    ]
    assert [response.status for response in fast] == [200] * 7 + [400] * 3 + [404] * 3
    assert [response.headers["content-type"] for response in fast] == ["application/json"] * len(paths)
    counted = node.get("/metrics").body.decode()
    assert 'millpond_requests_total{method="GET",route="/v1/maps/{name}/get",status="200"} 15.0' in counted
    assert 'millpond_request_seconds_count{method="GET",route="/v1/maps/{name}/get"}' in counted
    assert "_created" not in counted


def test_questions_do_not_wait_for_those_that_open(node: Any) -> None:
    for name in ("m", "other"):
        loaded = node.pond.create_map(name, kind="state", value="long").load(pa.table({"key": ["a"], "value": [1]}))
        node.pond.log.wait_applied(loaded.position, timeout=30)
        assert node.get(f"/v1/maps/{name}/get?key=a").json()["value"] == 1
    with node.pond.map("m").shard._lock:  # as while it is opened
        thread = threading.Thread(target=node.get, args=("/v1/maps/m/get?key=a",))
        thread.start()
        assert node.get("/v1/maps/other/get?key=a").json()["value"] == 1
    thread.join(10)
    assert not thread.is_alive()
