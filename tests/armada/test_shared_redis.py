"""Two nodes, each with a folder of its own, that share the streams of one Redis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
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
            (tmp_path / name / "millpond.toml").write_text(f'events_store = "{redis_server.url(shared)}"\n')
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
