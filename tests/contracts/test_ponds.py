"""A pond is a pond: in a folder, in a bucket, on one node, on three; and its maps are maps in both stores."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from millpond.clock import ManualClock
from millpond.errors import Invalid
from tests.harness.contracts.ponds import PondContract
from tests.harness.faulty_proxy import FaultyProxy
from tests.nodes.conftest import BEGIN, Served
from tests.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond.maps.protocols import PondLike
    from tests.postgres_server import PostgresServer
    from tests.s3_server import S3Server


class TestFolder(PondContract):
    @pytest.fixture(scope="class")
    def pond(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PondLike]:
        with millpond.open(tmp_path_factory.mktemp("folder") / "pond") as pond:
            yield pond


class TestFolderInLayers(PondContract):
    verified = "snapshot"

    @pytest.fixture(scope="class")
    def pond(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PondLike]:
        with millpond.open(tmp_path_factory.mktemp("folder") / "pond") as pond:
            yield in_layers(pond)


@pytest.mark.usefixtures("process")
@pytest.mark.sample(20, of="ponds of a node")
class TestNode(PondContract):
    clock = ManualClock(BEGIN)

    @pytest.fixture(scope="class")
    def pond(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PondLike]:
        folder = tmp_path_factory.mktemp("node")
        with ExitStack() as nodes:
            node = served(nodes, self.clock, server_data=str(folder / "pond"), server_port=0)
            with millpond.open(node.url, **client(folder)) as pond:
                yield pond

    def test_a_map_goes_over_to_its_other_store(self, pond: PondLike, fresh: str) -> None:
        made = pond.create_map(fresh, kind="state", value="long")
        made.load([{"key": "a", "value": 1}])
        for number, store in enumerate(("layers", "shard", "layers"), 2):
            assert pond.alter_map(fresh, store=store).info()["store"] == store
            assert made.get("a") == number - 1
            pond.map(fresh).load([{"key": "a", "value": number}])
            assert pond.map(fresh).lookup(["a", "b"]).to_pylist() == [number, None]


@pytest.mark.usefixtures("process")
@pytest.mark.sample(10, of="ponds in layers of a node")
class TestNodeInLayers(PondContract):
    clock = ManualClock(BEGIN)
    verified = "snapshot"

    @pytest.fixture(scope="class")
    def pond(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PondLike]:
        folder = tmp_path_factory.mktemp("node")
        with ExitStack() as nodes:
            node = served(nodes, self.clock, server_data=str(folder / "pond"), server_port=0)
            with millpond.open(node.url, **client(folder)) as pond:
                yield in_layers(pond)


@pytest.mark.usefixtures("process")
@pytest.mark.sample(10, of="ponds of three nodes")
class TestCluster(PondContract):
    """Through a node that is not the primary: it names the others."""

    @pytest.fixture(scope="class")
    def pond(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PondLike]:
        folder = tmp_path_factory.mktemp("cluster")
        with ExitStack() as nodes:
            ports, clock = free_ports(3), ManualClock(BEGIN)
            urls = [f"http://127.0.0.1:{port}" for port in ports]
            for port in ports:
                served(nodes, clock, server_data=str(folder / str(port)), server_port=port, nodes_urls=urls)
            with millpond.open(urls[1], **client(folder)) as pond:
                yield pond

    def test_layers_are_not_replicated(self, pond: PondLike, fresh: str) -> None:
        with pytest.raises(Invalid) as refused:
            pond.create_map(fresh, kind="state", store="layers")
        assert (refused.value.kind, refused.value.values["operation"]) == ("store_unsupported", "replication")
        pond.create_map(fresh, kind="state")
        with pytest.raises(Invalid) as refused:
            pond.alter_map(fresh, store="layers")
        assert (refused.value.kind, refused.value.values["operation"]) == ("store_unsupported", "replication")


@pytest.mark.usefixtures("process")
@pytest.mark.sample(20, of="ponds in a bucket")
class TestBucket(PondContract):
    """Without a server of ours."""

    verified = "snapshot"

    @pytest.fixture(scope="class")
    def pond(self, tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Iterator[PondLike]:
        folder, name = tmp_path_factory.mktemp("bucket"), f"contract-{os.getpid()}"
        with pytest.MonkeyPatch.context() as patched:
            for variable, value in s3_server.environment.items():
                patched.setenv(variable, value)
            with millpond.open(f"{s3_server.make_bucket(name)}/pond", cache=folder, max_staleness=0) as pond:
                yield in_layers(pond)


@pytest.mark.usefixtures("process")
@pytest.mark.sample(8, of="ponds in a bucket with a database")
class TestBucketHead(PondContract):
    """The rows lie in PostgreSQL."""

    verified = "snapshot"

    @pytest.fixture(scope="class")
    def pond(
        self, tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server, postgres_server: PostgresServer
    ) -> Iterator[PondLike]:
        folder, name = tmp_path_factory.mktemp("bucket"), f"contract-head-{os.getpid()}"
        with pytest.MonkeyPatch.context() as patched:
            for variable, value in s3_server.environment.items():
                patched.setenv(variable, value)
            patched.setenv("PGPASSWORD", postgres_server.password)  # who opens it again names no database
            url, space = f"{s3_server.make_bucket(name)}/pond", postgres_server.url()
            with millpond.open(url, cache=folder, max_staleness=0, space=space) as pond:
                yield in_layers(pond)


class Balancer(FaultyProxy):
    """Hands each connection to the next of some ports."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = cycle(ports)
        super().__init__(0)

    @property
    def target(self) -> int:
        return next(self._ports)

    @target.setter
    def target(self, _port: int) -> None: ...


@pytest.mark.usefixtures("process")
@pytest.mark.sample(24, of="ponds of nodes on a bucket")
class TestNodesOnABucket(PondContract):
    """Two of them, behind a balancer that cares for nothing."""

    verified = "snapshot"
    clock = ManualClock(BEGIN)

    @pytest.fixture(scope="class")
    def pond(self, tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Iterator[PondLike]:
        folder, name = tmp_path_factory.mktemp("nodes"), f"contract-nodes-{os.getpid()}"
        with pytest.MonkeyPatch.context() as patched, ExitStack() as nodes:
            for variable, value in s3_server.environment.items():
                patched.setenv(variable, value)
            settings = {
                "server_data": f"{s3_server.make_bucket(name)}/pond", "client_cache": str(folder), "server_port": 0,
                "maps_store": "auto", "nodes_lag_limit": "9000d",
            }  # fmt: skip
            two = [served(nodes, self.clock, **settings) for _ in range(2)]
            balancer = nodes.enter_context(Balancer([node.node.settings.server.port for node in two]))
            with millpond.open(balancer.url, **client(folder)) as pond:
                yield in_layers(pond)


def in_layers(pond: Any) -> Any:
    """The pond, whose maps are made in layers."""
    pond.create_map = partial(pond.create_map, store="layers")
    return pond


def served(until: ExitStack, clock: ManualClock, **settings: Any) -> Served:
    node = Served(clock, **settings)
    until.callback(node.close)
    return node


def client(folder: Path) -> dict[str, Any]:
    return {"client_synchronise": True, "client_cache": str(folder / "cache")}
