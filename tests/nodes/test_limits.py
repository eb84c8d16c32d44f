"""Bodies of requests: each route's limit, what all of them may take together, and who may send one at all."""

from __future__ import annotations

import http.client
import io
import json
from collections.abc import Callable
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import Unavailable
from millpond.server.memory import SMALL_BYTES, MemoryBudget
from millpond.server.routes.table import ORDER_BYTES_MAX
from tests.nodes.conftest import Answer, Served

pytestmark = pytest.mark.sample(1, of="file")

KIB = 1 << 10


class Sender:
    """A client that sends a body as slowly as the test likes."""

    def __init__(self, node: Served, method: str, path: str, announced: int | None, **headers: str) -> None:
        self.connection = http.client.HTTPConnection(urlsplit(node.url).netloc, timeout=30)
        self.connection.putrequest(method, path)
        for name, value in headers.items():
            self.connection.putheader(name.replace("_", "-"), value)
        if announced is None:
            self.connection.putheader("Transfer-Encoding", "chunked")
        else:
            self.connection.putheader("Content-Length", str(announced))
        self.connection.endheaders()

    def send(self, data: bytes) -> None:
        self.connection.send(data)

    def answer(self) -> Answer:
        got = self.connection.getresponse()
        with closing(self.connection), got:
            return Answer(got.status, got.headers, got.read())

    def close(self) -> None:
        self.connection.close()


def question(size: int) -> bytes:
    """A lookup of about so many bytes."""
    sink = io.BytesIO()
    batch = pa.record_batch({"key": pa.array(["k" * 1000] * (size // 1008))})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def lookup(node: Served, body: bytes) -> Answer:
    return node.post("/v1/maps/m/lookup", body)


# -- limits belong to routes --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["upload", "lookup", "get"])
@pytest.mark.parametrize(("method", "path"), [("PATCH", "/v1/maps/{}"), ("POST", "/v1/maps/{}/maintenance")])
def test_a_map_may_be_called_as_a_route_is(node: Served, name: str, method: str, path: str) -> None:
    node.pond.create_map(name, kind="state", value="long")
    announced = Sender(node, method, path.format(name), ORDER_BYTES_MAX + 1)
    assert (announced.answer().status, announced.close()) == (413, None)
    chunks = (b" " * (1 << 14) for _ in range(1 + (ORDER_BYTES_MAX >> 14)))
    headers = {"Content-Type": "application/json"}
    answer = node.pool.request(method, node.url + path.format(name), body=chunks, chunked=True, headers=headers)
    assert (answer.status, json.loads(answer.data)["kind"]) == (413, "body_too_large")
    assert node.request("PATCH", f"/v1/maps/{name}", body={"retain": "1d"}).status == 200


# -- all of them together -----------------------------------------------------------------------------


def small_node(serve: Callable[..., Served], **settings: str) -> Served:
    """A node with room for one MiB."""
    node = serve(server_max_request_memory="1MiB", **settings)
    node.pond.create_map("m", kind="state", value="long")
    return node


@pytest.fixture
def small(serve: Callable[..., Served]) -> Served:
    return small_node(serve)


@pytest.mark.parametrize("announced", [True, False])
def test_what_does_not_fit_comes_again_later(small: Served, announced: bool) -> None:
    body = question(800 * KIB)
    first = Sender(small, "POST", "/v1/maps/m/lookup", len(body) if announced else None)
    half = len(body) // 2
    first.send(body[:half] if announced else b"%x\r\n%s\r\n" % (half, body[:half]))
    budget: MemoryBudget = small.service.memory
    small.until(lambda: budget.taken >= half)
    refused = lookup(small, question(700 * KIB))
    assert (refused.status, refused.json()["kind"], refused.headers["Retry-After"]) == (503, "request_memory_full", "1")
    assert lookup(small, question(20 * KIB)).status == 200, "small ones always fit"
    first.send(body[half:] if announced else b"%x\r\n%s\r\n0\r\n\r\n" % (len(body) - half, body[half:]))
    assert first.answer().status == 200
    assert lookup(small, question(700 * KIB)).status == 200
    assert budget.taken == 0


def test_what_can_never_fit_is_too_large(small: Served) -> None:
    answer = lookup(small, question(1100 * KIB))
    assert (answer.status, answer.json()["kind"], answer.json()["values"]["bytes_max"]) == (
        413, "body_too_large", 1 << 20
    )  # fmt: skip


@pytest.mark.parametrize("how", ["goes away", "falls silent"])
def test_who_does_not_send_on_gives_room_to_others(serve: Callable[..., Served], how: str) -> None:
    small = small_node(serve, client_read_timeout="500ms" if how == "falls silent" else "20s")
    body = question(800 * KIB)
    first = Sender(small, "POST", "/v1/maps/m/lookup", len(body))
    first.send(body[: len(body) // 2])
    budget = small.service.memory
    small.until(lambda: budget.taken > 0)
    if how == "goes away":
        first.close()
    small.until(lambda: budget.taken == 0)
    assert lookup(small, question(700 * KIB)).status == 200
    first.close()


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6 * SMALL_BYTES)), max_size=40))
def test_the_budget_is_what_large_bodies_hold(calls: list[tuple[int, int]]) -> None:
    budget = MemoryBudget(10 * SMALL_BYTES)
    model: dict[int, int] = {}
    with ExitStack() as rooms:
        rooms_ = [rooms.enter_context(budget.room()) for _ in range(5)]
        for who, total in calls:
            counted = 0 if total <= SMALL_BYTES else total
            wanted = {**model, who: max(counted, model.get(who, 0))}
            if sum(wanted.values()) > budget.bytes_max:
                with pytest.raises(Unavailable):
                    rooms_[who].need(total)
            else:
                rooms_[who].need(total)
                model = wanted
            assert budget.taken == sum(model.values()) <= budget.bytes_max
    assert budget.taken == 0
