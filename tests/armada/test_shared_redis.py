"""Two nodes, each with a folder of its own, that share the streams of one Redis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
import urllib3
from google.protobuf.empty_pb2 import Empty

from millpond.server.armada.wire import armada_pb2 as pb
from tests.armada.conftest import ArmadaServer, item, serving, status
from tests.redis_servers import RedisServer, new_place


@pytest.fixture
def nodes(redis_server: RedisServer, tmp_path: Path) -> Iterator[tuple[ArmadaServer, ArmadaServer, ArmadaServer]]:
    """Two nodes with one place, and one with another."""
    place, other = new_place(), new_place()
    with ExitStack() as stack:
        made = []
        for name, shared in (("a", place), ("b", place), ("c", other)):
            (tmp_path / name).mkdir()
            (tmp_path / name / "millpond.toml").write_text(f'events.store = "{redis_server.url(shared)}"\n')
            made.append(stack.enter_context(serving(tmp_path / name / "pond")))
        yield made[0], made[1], made[2]


def test_nodes_share_queues_and_ids_of_clients(nodes: tuple[ArmadaServer, ArmadaServer, ArmadaServer]) -> None:
    here, there, elsewhere = nodes
    here.call("api.QueueService/CreateQueue", pb.Queue(name="etl", priority_factor=2), pb.Queue)
    assert there.call("api.QueueService/GetQueue", pb.QueueName(name="etl"), pb.Queue).priority_factor == 2
    assert status(elsewhere.submit, "etl", "night") is grpc.StatusCode.PERMISSION_DENIED
    ids = here.submit("etl", "night", item(client_id="load-1"), item())
    assert there.submit("etl", "night", item(client_id="load-1")) == ids[:1]
    assert [kind for _, kind in there.stored("etl", "night")] == ["submitted", "queued"] * 2
    elsewhere.call("api.QueueService/CreateQueue", pb.Queue(name="etl", priority_factor=1), pb.Queue)
    assert elsewhere.submit("etl", "night", item(client_id="load-1")) != ids[:1]
    there.call("api.QueueService/DeleteQueue", pb.QueueName(name="etl"), Empty)
    assert status(here.submit, "etl", "night") is grpc.StatusCode.PERMISSION_DENIED


def test_nodes_whose_redis_lost_its_keys_say_so(tmp_path: Path) -> None:
    redis = RedisServer()
    with ExitStack() as stack:
        stack.callback(redis.remove)
        redis.start()
        nodes = []
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "millpond.toml").write_text(f'events.store = "{redis.url("p")}"\n')
            nodes.append(stack.enter_context(serving(tmp_path / name / "pond")))
        here, there = nodes
        queue = here.queue()
        here.submit(queue, "night", item(client_id="load-1"))
        last_id, _ = there.stored(queue, "night")[-1]
        assert _ready(here) == (200, "")
        with redis.client() as client:
            client.flushall()
        assert status(here.submit, queue, "night") is grpc.StatusCode.PERMISSION_DENIED  # queues are gone, too
        here.call("api.QueueService/CreateQueue", pb.Queue(name=queue, priority_factor=1), pb.Queue)
        here.submit(queue, "night", item(client_id="load-1"))
        lines = there.lines(queue, "night", {"Millpond-Watch": "all"}, fromMessageId=last_id)
        assert [line["result"].get("marker") for line in lines] == ["GAP", None, None]
        state, reasons = _ready(here)
        assert state == 503 and "restart the node to go on without it" in reasons
        assert b"\nmillpond_events_losses_total 1.0\n" in urllib3.request("GET", f"{here.url}/metrics").data


def _ready(node: ArmadaServer) -> tuple[int, str]:
    """The status with which a node says that it is ready, or not, and why not."""
    found = urllib3.request("GET", f"{node.url}/readyz")
    return found.status, ", ".join(found.json()["reasons"])
