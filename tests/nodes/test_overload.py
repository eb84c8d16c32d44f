"""A node that has too much to do: it refuses with Retry-After, within its memory, and small questions go on."""

from __future__ import annotations

import asyncio
import base64
import http.client
import io
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import psutil
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.utils import floatToGoString

import millpond
from millpond.errors import Unavailable
from millpond.nodes.tokens import TokenFile
from millpond.server.memory import MemoryBudget, Room
from millpond.server.routes.table import EVENTS_BYTES, SCAN_BYTES
from tests.nodes.conftest import Served

pytestmark = pytest.mark.sample(7, of="file")

MIB = 1 << 20


def stream_of(table: pa.Table, codec: str | None = None) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def basic(key: str, secret: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{key}:{secret}".encode()).decode()}


@contextmanager
def scan_that_is_not_read(node: Served) -> Iterator[http.client.HTTPResponse]:
    """A scan of which the head is read, and nothing else."""
    connection = http.client.HTTPConnection(urlsplit(node.url).netloc, timeout=60)
    with closing(connection):
        connection.request("POST", "/v1/maps/m/scan", b"{}", {"Content-Type": "application/json"})
        yield connection.getresponse()


@contextmanager
def scan_that_is_not_read_at_all(node: Served) -> Iterator[None]:
    """A scan that is sent by somebody who goes away."""
    connection = http.client.HTTPConnection(urlsplit(node.url).netloc, timeout=60)
    with closing(connection):
        connection.request("POST", "/v1/maps/m/scan", b"{}", {"Content-Type": "application/json"})
        yield


def served_map(serve: Callable[..., Served], rows: int = 30_000, **settings: Any) -> Served:
    """A node whose map `m` has too many bytes for the buffers of a connection."""
    node = serve(**settings)
    made = node.pond.create_map("m", kind="state", value="string")
    made.load(pa.table({"key": [f"k{number}" for number in range(rows)], "value": ["v" * 1000] * rows}))
    return node


# -- sizes are declared before they are believed ------------------------------------------------------


def bomb() -> bytes:
    """A few megabytes that decompress to 2 GiB."""
    batch = pa.record_batch({"key": pa.array(["k" * 1000]).take(pa.array([0] * 100_000))})
    return stream_of(pa.Table.from_batches([batch] * 20), "zstd")


def test_what_declares_much_is_refused_before_it_is_decompressed(node: Served) -> None:
    node.pond.create_map("m", kind="state", value="long")
    before = psutil.Process().memory_info().rss
    for body in (bomb(), stream_of(pa.table({"key": pa.nulls(1 << 26)}))):
        assert len(body) < 8 * MIB
        answers = [node.post("/v1/maps/m/lookup", body) for _ in range(4)]
        assert {(answer.status, answer.json()["kind"]) for answer in answers} == {(413, "lookup_too_large")}
        assert answers[0].json()["values"]["bytes"] > 1 << 30
    assert psutil.Process().memory_info().rss - before < 200 * MIB
    assert node.service.memory.taken == 0


def test_keys_whose_rows_share_bytes_are_counted_or_refused(node: Served) -> None:
    node.pond.create_map("m", kind="state", value="long")
    long = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), pa.array(["k" * 10_000]))
    answer = node.post("/v1/maps/m/lookup", stream_of(pa.table({"key": long})))
    assert (answer.status, answer.json()["kind"]) == (503, "request_memory_full")
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([1 << 20], pa.int32()), pa.array(["k" * 10_000]))
    for column in (runs, pa.array(["a"], pa.string_view())):
        answer = node.post("/v1/maps/m/lookup", stream_of(pa.table({"key": column})))
        assert (answer.status, answer.json()["kind"]) == (400, "key_type")
    few = pa.array(["a", "b", "a"]).dictionary_encode()
    assert node.post("/v1/maps/m/lookup", stream_of(pa.table({"key": few}))).status == 200


def test_an_answer_that_would_take_half_of_the_memory_is_refused(serve: Callable[..., Served]) -> None:
    node = serve(server_max_request_memory="4MiB")
    node.pond.create_map("m", kind="state", value="string").load([{"key": "a", "value": "v" * MIB}])
    for count in (100, 1000):  # from the shard, and from a snapshot
        answer = node.post("/v1/maps/m/lookup", stream_of(pa.table({"key": ["a"] * count})))
        assert (answer.status, answer.json()["kind"]) == (400, "answer_too_large")
    assert node.service.memory.taken == 0


# -- watchers -----------------------------------------------------------------------------------------


def test_readers_that_have_caught_up_hold_no_memory_of_requests(serve: Callable[..., Served]) -> None:
    node = serve(server_max_request_memory="1MiB", limits={"queue_seconds": 10, "connection_bytes": 1024})
    with ExitStack() as readers:
        for _ in range(3 * MIB // EVENTS_BYTES):
            connection = http.client.HTTPConnection(urlsplit(node.url).netloc, timeout=60)
            readers.enter_context(closing(connection))
            connection.request("GET", "/v1/events?queue=q&job_set=j&follow=true")
            answer = connection.getresponse()
            assert (answer.status, json.loads(answer.readline())) == (200, {"caught_up": "0" * 16})
        node.until(lambda: node.service.memory.taken == 0)


# -- scans --------------------------------------------------------------------------------------------


def test_scans_queue_for_memory_and_are_refused_beyond_the_queue(serve: Callable[..., Served]) -> None:
    node = served_map(serve, server_max_request_memory=str(4 * SCAN_BYTES), limits={"requests_queued_max": 2})
    memory = node.service.memory
    with ExitStack() as scans, ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            scans.enter_context(scan_that_is_not_read(node))
        assert memory.taken == 3 * SCAN_BYTES
        queued = [pool.submit(node.post, "/v1/maps/m/scan", {}) for _ in range(2)]
        node.until(lambda: memory.queued == 2)
        answer = node.post("/v1/maps/m/scan", {})
        assert (answer.status, answer.json()["kind"], answer.headers["Retry-After"]) == (503, "request_queue_full", "2")
        assert node.get("/v1/maps/m/get?key=k7").json()["value"] == "v" * 1000, "small questions go on"
        assert node.post("/v1/maps/m/lookup", stream_of(pa.table({"key": ["k7"] * 5000}))).status in (200, 503)
        page = node.get("/metrics").body.decode()
        assert "millpond_requests_queued 2.0" in page
        assert f"millpond_requests_memory_bytes {floatToGoString(3 * SCAN_BYTES)}" in page
        assert 'millpond_requests_refused_total{kind="request_queue_full",surface="http"} 1.0' in page
        scans.close()
        assert [scan.result().status for scan in queued] == [200, 200]
    node.until(lambda: memory.taken == 0 == memory.queued)


def test_a_scan_that_waits_too_long_is_told_to_come_again(serve: Callable[..., Served]) -> None:
    node = served_map(serve, server_max_request_memory=str(2 * SCAN_BYTES), limits={"queue_seconds": 0.2})
    with scan_that_is_not_read(node):
        answer = node.post("/v1/maps/m/scan", {})
    assert (answer.status, answer.json()["kind"], answer.headers["Retry-After"]) == (503, "request_queue_slow", "2")


def test_a_scan_that_nobody_waits_for_leaves_the_queue(serve: Callable[..., Served]) -> None:
    node = served_map(serve, server_max_request_memory=str(2 * SCAN_BYTES), rows=10)
    memory = node.service.memory
    with memory.room() as room:
        room.need(2 * SCAN_BYTES)
        with scan_that_is_not_read_at_all(node):
            node.until(lambda: memory.queued == 1)
        node.until(lambda: memory.queued == 0)


def test_a_token_finds_a_scan_beside_all_those_of_another(serve: Callable[..., Served]) -> None:
    node = served_map(serve, rows=10, server_max_request_memory=str(6 * SCAN_BYTES), limits={"queue_seconds": 0.2})
    for name in ("many", "other"):
        TokenFile(node.pond.folder).add(name, f"secret-{name}", {"read": ["*"]})
    many, other = ({"Authorization": f"Bearer secret-{name}"} for name in ("many", "other"))
    with node.service.memory.room("many") as room:
        room.need(3 * SCAN_BYTES)
        assert node.post("/v1/maps/m/scan", {}, headers=many).json()["kind"] == "request_queue_slow"
        assert node.post("/v1/maps/m/scan", {}, headers=other).status == 200


def test_a_token_finds_a_thread_beside_all_those_of_another(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = served_map(serve, rows=10, limits={"threads": 4})
    for name in ("many", "other"):
        TokenFile(node.pond.folder).add(name, f"secret-{name}", {"read": ["*"]})
    many, other = ({"Authorization": f"Bearer secret-{name}"} for name in ("many", "other"))
    entered, go_on = threading.Semaphore(0), threading.Event()

    def slow(*_args: object) -> None:
        entered.release()
        assert go_on.wait(60)
        raise Unavailable("it was held", kind="disk_full")

    with monkeypatch.context() as patched, ThreadPoolExecutor(8) as pool:
        patched.setattr(type(node.pond), "maps", slow)
        held = [pool.submit(node.get, "/v1/maps", headers=many) for _ in range(8)]
        try:
            for _ in range(3):
                assert entered.acquire(timeout=30)
            assert not entered.acquire(timeout=0.2), "one is left to others"
            patched.undo()
            assert node.get("/v1/maps", headers=other).status == 200
        finally:
            go_on.set()
        assert {answer.result().status for answer in held} == {200, 507}


@pytest.mark.parametrize("signed", [False, True])
def test_a_pair_finds_a_thread_of_versions_beside_all_those_of_another(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, signed: bool
) -> None:
    """The API of lakeFS shares the same threads: what one pair asks for there, or whoever has a signed URL, is no
    other's wait, and no 503."""
    node = serve(limits={"large_threads": 4})
    node.pond.repositories.create("flights").branch("main").put("a", b"1")
    for name in ("many", "other"):
        rights = {"read": ["repo:*"]}
        TokenFile(node.pond.folder).add(name, f"secret-{name}", rights, access_key=f"AKIAJ{name.upper():0>14}Q")
    many, other = (basic(f"AKIAJ{name.upper():0>14}Q", f"secret-{name}") for name in ("many", "other"))
    entered, go_on = threading.Semaphore(0), threading.Event()
    listed = "/api/v1/repositories/flights/branches/main/diff"
    stat = "/api/v1/repositories/flights/refs/main/objects/stat?path=a&presign=true"
    url = node.get(stat, headers=many).json()["physical_address"].removeprefix(node.url)

    def slow(*_args: object) -> None:
        entered.release()
        assert go_on.wait(60)
        raise Unavailable("it was held", kind="disk_full")

    with monkeypatch.context() as patched, ThreadPoolExecutor(8) as pool:
        patched.setattr(type(node.pond.repositories), "get", slow)
        held = [pool.submit(node.get, url) if signed else pool.submit(node.get, listed, headers=many) for _ in range(8)]
        try:
            for _ in range(3):
                assert entered.acquire(timeout=30)
            assert not entered.acquire(timeout=0.2), "one is left to others"
            patched.undo()
            for _ in range(3):
                assert node.get(listed, headers=other).status == 200
        finally:
            go_on.set()
        assert {answer.result().status for answer in held} == {200, 507}


def test_a_client_waits_as_long_as_it_is_told_to(serve: Callable[..., Served]) -> None:
    node = served_map(serve, server_max_request_memory=str(2 * SCAN_BYTES), limits={"requests_queued_max": 0})
    with millpond.open(node.url) as pond, scan_that_is_not_read(node) as held:
        refused = node.service.metrics.refused.labels("http", "request_queue_full")._value
        reader = threading.Thread(target=lambda: (node.until(lambda: refused.get() > 0), held.read()))
        reader.start()
        assert pond.map("m").scan().read_all().num_rows == 30_000
        reader.join()
        assert refused.get() > 0


# -- the budget ---------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.sampled_from(["queue", "need", "keep", "give up"]), st.integers(0, 5), st.integers(0, 400_000))
    )
)
def test_the_budget_is_never_exceeded_and_the_queue_is_served_in_order(acts: list[tuple[str, int, int]]) -> None:
    async def story() -> None:
        budget = MemoryBudget(1_000_000, queued_max=3, queue_seconds=3600)
        rooms = [Room(budget) for _ in range(6)]
        queued: dict[int, asyncio.Task[None]] = {}
        for act, number, size in acts:
            room = rooms[number]
            if number in queued:
                if act == "give up":
                    queued.pop(number).cancel()
            elif act == "queue" and not room.held:
                queued[number] = asyncio.ensure_future(room.queue(size))
            elif act == "need":
                try:
                    room.need(size)
                except Unavailable:
                    assert size > 65_536
            elif act == "keep":
                room.keep(size)
            for _ in range(3):
                await asyncio.sleep(0)
            for done in [number for number, task in queued.items() if task.done()]:
                error = queued.pop(done).exception()
                assert error is None or isinstance(error, Unavailable)
            assert budget.taken == sum(one.held for one in rooms) <= budget.bytes_max
            assert budget.queued == len(queued) <= 3
        for task in queued.values():
            task.cancel()
        await asyncio.gather(*queued.values(), return_exceptions=True)
        for room in rooms:
            room.keep(0)
        assert (budget.taken, budget.queued) == (0, 0)

    asyncio.run(story())


def test_errors_of_overload_are_json(serve: Callable[..., Served]) -> None:
    node = served_map(serve, rows=10, server_max_request_memory=str(2 * SCAN_BYTES), limits={"requests_queued_max": 0})
    room = Room(node.service.memory)
    room.need(2 * SCAN_BYTES)
    error = json.loads(node.post("/v1/maps/m/scan", {}).body)
    assert error["error"] == "Unavailable" and error["hint"]
