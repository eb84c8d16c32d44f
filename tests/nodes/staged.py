"""Nodes without a network: they give out the snapshots of a pond, and fail on demand. For tests of readers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import pyarrow as pa

from millpond.client.connections import unreachable
from millpond.client.snapshots.fetch import POND_HEADER
from millpond.client.snapshots.reader import SnapshotCache, SnapshotReader
from millpond.client.transport import Response
from millpond.clock import ManualClock
from millpond.errors import MillpondError
from millpond.nodes.snapshots import Publisher
from millpond.pond import Pond
from millpond.settings import Settings, load_settings

T = TypeVar("T")
MINUTE = 60_000
KEYS = 120_000
BEGIN = 1_700_000_000_000

SETTINGS: Mapping[str, Any] = {
    "client_min_time_to_keep_snapshots": "10min",
}  # fmt: skip


def settings(folder: Path, **options: Any) -> Settings:
    """Settings of a reader whose machine has its cache in `folder`."""
    return load_settings(config=None, **{**SETTINGS, "client_cache": str(folder), **options})


@dataclass
class StagedNode:
    """One node: its recorded requests, and its faults."""

    url: str
    pond: Pond
    keep_ms: int = 10 * MINUTE
    down: str | None = None
    refuses: MillpondError | None = None
    held: threading.Event | None = None
    spoil: Callable[[str, bytes], bytes] | None = None
    requests: list[str] = field(default_factory=list)
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    @property
    def once(self) -> Self:
        return self

    @property
    def files(self) -> list[str]:
        """The requested files."""
        return [path.partition("/objects/")[2] for path in self.requests if "/objects/" in path]

    @property
    def manifests(self) -> int:
        """The number of requests for a manifest."""
        return sum(path.endswith("/snapshot") for path in self.requests)

    def request(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None, timeout: float | None = None,
    ) -> Response:  # fmt: skip
        assert method == "GET"
        self.requests.append(path)
        self.arrived.release()
        if self.held is not None:
            assert self.held.wait(60)
        if self.down is not None:
            raise unreachable(self.url, self.down)
        if self.refuses is not None:
            raise self.refuses
        return self._answer(path, dict(query or {}), dict(headers or {}))

    def _answer(self, path: str, query: dict[str, Any], headers: dict[str, str]) -> Response:
        if path == "/v1/node":
            return Response(self.url, 200, {}, b'{"pond": "%s"}' % self.pond.log.pond_id.encode())
        name, _, rest = path.removeprefix("/v1/maps/").partition("/")
        publisher, opened = Publisher(self.pond.clock, self.keep_ms), self.pond.map(name)
        if rest.startswith("objects/"):
            file = rest.removeprefix("objects/")
            data = publisher.file(opened.objects, file).read_bytes()
            return Response(self.url, 200, {}, self.spoil(file, data) if self.spoil else data)
        window = [None if (text := query.get(bound)) is None else int(text) for bound in ("since", "until")]
        manifest = publisher.manifest(
            opened, keys=(query.get("key_from"), query.get("key_to")), window=window, fresh="fresh" in query,
            pin_ms=int(query.get("pin", 0)) * 1000,
        )  # fmt: skip
        response_headers = {"ETag": f'"{manifest.id}"', POND_HEADER: self.pond.log.pond_id}
        if headers.get("If-None-Match") == f'"{manifest.id}"':
            return Response(self.url, 304, response_headers, b"")
        return Response(self.url, 200, response_headers, manifest.to_bytes())


class StagedNodes:
    """Several, in the order of the list: what a reader takes `Nodes` to be."""

    def __init__(self, *nodes: StagedNode) -> None:
        self.connections = list(nodes)

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(node.url for node in self.connections)

    def first(self, ask: Callable[[Any], T]) -> T:
        for node in self.connections:
            if node.down is None:
                return ask(node)
        raise unreachable(", ".join(self.urls), "; ".join(str(node.down) for node in self.connections))


class Stage:
    """A pond with one map, nodes that give it out, and machines that read it."""

    def __init__(self, folder: Path, nodes: int = 1) -> None:
        self.folder = folder
        self.clock = ManualClock(BEGIN)
        self.pond = Pond(folder / "pond", create=True, clock=self.clock)
        self.map = self.pond.create_map("m", kind="state", value="long")
        self.load(range(KEYS), 0)
        self.nodes = [StagedNode(f"http://n{number}:1", self.pond) for number in range(1, nodes + 1)]

    def load(self, keys: Any, value: int) -> None:
        """Give keys a value."""
        names = [f"k{key:05d}" for key in keys]
        self.map.load(pa.table({"key": names, "value": pa.array([value] * len(names), pa.int64())}), again=True)

    def cache(
        self, *nodes: StagedNode, machine: str = "machine", tending: bool = False, **options: Any
    ) -> SnapshotCache:
        """The snapshot cache of one process of a machine."""
        chosen = settings(self.folder / machine, **options)
        listed: Any = StagedNodes(*(nodes or self.nodes))
        return SnapshotCache(self.folder / machine, listed, chosen, self.clock, tending=tending)

    def later(self, ms: int) -> None:
        """Let time pass."""
        self.clock.advance(ms)

    def changed(self, value: int) -> None:
        """A change of few keys, frozen when somebody asks for it."""
        self.load(range(3), value)

    def close(self) -> None:
        """Let all who wait for a node go, and end."""
        for node in self.nodes:
            if node.held is not None:
                node.held.set()
        self.pond.close()


def value(reader: SnapshotReader, key: int = 0) -> int:
    """The value of a key, read by a reader."""
    answer: int = reader.snapshot().lookup([f"k{key:05d}"]).to_pylist()[0]
    return answer


def settle(reader: SnapshotReader) -> None:
    """Wait for the refresh that is on its way, if there is one."""
    running = reader._running
    if running is not None:
        assert running.done.wait(30.0)
