"""A load is on every node or on none; what breaks on the way goes on where it stopped; asking twice enters once."""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import millpond
from millpond.client.transport import Nodes
from millpond.client.upload import discard_parts, enter_load, upload_parts
from millpond.clock import ManualClock
from millpond.errors import Denied, Invalid, NotFound, Unavailable
from millpond.maps.model.definition import Kind, MapDefinition
from millpond.maps.parts.part import PartFile, PartWriter
from millpond.maps.parts.stream import PartStream
from millpond.settings import Settings, load_settings
from millpond.testing.passing_time import while_time_passes
from tests.harness.cluster import free_port
from tests.harness.faulty_proxy import FaultyProxy, Trouble
from tests.harness.rows import canonical_of
from tests.nodes.acted import ActedRequest, Stage, refuse, say
from tests.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.nodes.conftest import ClusterHere, Served

pytestmark = pytest.mark.sample(6, of="file")

DEFINITION = MapDefinition(name="m", kind=Kind.STATE, incarnation="0" * 16)


def quick(**options: Any) -> Settings:
    return load_settings(**{"client_read_timeout": "5s"} | options)


def sealed(folder: Path, count: int = 1, rows: int = 10) -> list[PartFile]:
    parts = []
    for number in range(count):
        writer = PartWriter(DEFINITION, folder / str(number))
        writer.write(canonical_of(DEFINITION, [((f"{number}-{n}",), f"v{n}") for n in range(rows)]))
        parts += writer.finish()
    return parts


class Receiver:
    """A node as far as uploads go: it keeps what it gets, and may be made to break off."""

    def __init__(self) -> None:
        self.received: dict[str, bytes] = {}
        self.whole: set[str] = set()
        self.loads: list[dict[str, Any]] = []
        self.breaks_after: list[int] = []
        self.checksums: dict[str, str] = {}
        self.hears_of_maps = True

    def __call__(self, request: ActedRequest) -> None:
        part = request.path.split("/")[3] if request.path.startswith("/v1/parts/") else ""
        if request.command == "GET":
            return request.answer(200, self.state(part) if part else {"position": 1})
        if request.command == "POST" and part:
            request.rfile.read(int(request.headers["Content-Length"]))
            return request.answer(200, self.state(part))
        if request.command == "PUT":
            if not self.hears_of_maps:
                request.rfile.read(int(request.headers["Content-Length"]))
                return refuse(404, "NotFound", "map_not_found", map="m")(request)
            return self.put(request, part)
        self.hears_of_maps = True
        if request.path == "/v1/loads":
            body = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
            self.loads.append(body)
            return request.answer(
                200, {"load": body["load_id"], "parts": len(body["parts"]), "duplicate_parts": 0, "position": 1}
            )
        request.rfile.read(int(request.headers.get("Content-Length") or 0))
        return request.answer(200, {"position": 1})

    def state(self, part: str) -> dict[str, Any]:
        if part in self.whole:
            return {"state": "here", "offset": len(self.received[part])}
        have = len(self.received.get(part, b""))
        return {"state": "partial" if have else "absent", "offset": have}

    def put(self, request: ActedRequest, part: str) -> None:
        length, offset = int(request.headers["Content-Length"]), int(request.headers["Upload-Offset"])
        assert offset == len(self.received.get(part, b""))
        self.checksums[part] = request.headers["Upload-Checksum"]
        room = self.breaks_after.pop(0) if self.breaks_after else length
        body = request.rfile.read(min(length, room))
        self.received[part] = self.received.get(part, b"") + body
        if len(body) < length:
            return request.hang_up()
        assert len(self.received[part]) == int(request.headers["Upload-Length"])
        self.whole.add(part)
        return request.answer(200, {"state": "here"})


@pytest.fixture
def receivers() -> Iterator[list[tuple[Receiver, str]]]:
    with ExitStack() as stages:
        made = []
        for _ in range(3):
            receiver = Receiver()
            stage = stages.enter_context(Stage(receiver))
            made.append((receiver, stage.url))
        yield made


@pytest.fixture(autouse=True)
def _bodies_are_read_by_the_act(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActedRequest, "reads", False)


# -- 1: every part to every node ----------------------------------------------------------------------


def test_every_node_gets_every_bundle_whole(receivers: list[tuple[Receiver, str]], tmp_path: Path) -> None:
    parts = sealed(tmp_path, 4)
    progress: list[tuple[int, int]] = []
    upload_parts(
        Nodes([url for _, url in receivers], quick()),
        parts,
        advance=lambda count, total: progress.append((count, total)),
    )
    for part in parts:
        stream = PartStream(part.file)
        whole = b"".join(stream.chunks())
        for receiver, _ in receivers:
            assert receiver.received[part.manifest.id] == whole
            assert receiver.checksums[part.manifest.id] == stream.head.checksum
    size = 3 * sum(PartStream(part.file).size for part in parts)
    assert sum(count for count, _ in progress) == size
    assert {total for _, total in progress} == {size}


def test_an_upload_goes_on_where_the_connection_was_lost(receivers: list[tuple[Receiver, str]], tmp_path: Path) -> None:
    (part,) = sealed(tmp_path)
    receiver, url = receivers[0]
    # more breaks than attempts: each got further, so it goes on
    receiver.breaks_after = [5_000, 3_000, 1_000, 2_000, 4_000]
    progress: list[int] = []
    upload_parts(Nodes(url, quick()), [part], advance=lambda count, _: progress.append(count))
    assert receiver.received[part.manifest.id] == b"".join(PartStream(part.file).chunks())
    assert sum(progress) == PartStream(part.file).size


def test_an_upload_that_gets_no_further_ends(receivers: list[tuple[Receiver, str]], tmp_path: Path) -> None:
    receiver, url = receivers[0]
    receiver.breaks_after = [5_000, *([0] * 20)]
    with pytest.raises(Unavailable) as caught:
        upload_parts(Nodes(url, quick()), sealed(tmp_path))
    assert caught.value.kind == "load_not_everywhere"
    assert len(receiver.breaks_after) == 17  # three attempts that brought nothing


def test_what_a_node_has_is_not_sent_again(receivers: list[tuple[Receiver, str]], tmp_path: Path) -> None:
    parts = sealed(tmp_path, 2)
    nodes = Nodes([url for _, url in receivers], quick())
    upload_parts(nodes, parts)
    for receiver, _ in receivers:
        receiver.breaks_after = [0] * 9
    progress: list[int] = []
    upload_parts(nodes, parts, advance=lambda count, _: progress.append(count))
    assert sum(progress) == 3 * sum(PartStream(part.file).size for part in parts)


def test_a_node_that_is_down_fails_the_load_and_is_named(receivers: list[tuple[Receiver, str]], tmp_path: Path) -> None:
    down = f"http://127.0.0.1:{free_port()}"
    nodes = Nodes([receivers[0][1], down], quick())
    with pytest.raises(Unavailable) as caught:
        upload_parts(nodes, sealed(tmp_path))
    assert caught.value.kind == "load_not_everywhere"
    assert f"{down}: the node cannot be reached after 3 attempts (reason=Connection refused)" in str(caught.value)
    assert receivers[0][1] not in str(caught.value)
    assert receivers[0][0].loads == []


def test_an_error_response_is_requested_once_and_named(receivers: list[tuple[Receiver, str]], tmp_path: Path) -> None:
    with Stage(refuse(507, "Unavailable", "disk_full", file="/x")) as full:
        with pytest.raises(Unavailable) as caught:
            upload_parts(Nodes([receivers[0][1], full.url], quick()), sealed(tmp_path))
        assert caught.value.kind == "load_not_everywhere"
        assert f"{full.url}: no: disk_full (file=/x)" in str(caught.value)
        assert [method for method, *_ in full.requests].count("PUT") == 1


def test_what_every_node_refuses_alike_is_that_error(tmp_path: Path) -> None:
    with (
        Stage(refuse(401, "Denied", "token_unknown")) as first,
        Stage(refuse(401, "Denied", "token_unknown")) as second,
    ):
        with pytest.raises(Denied) as caught:
            upload_parts(Nodes([first.url, second.url], quick()), sealed(tmp_path))
        assert caught.value.kind == "token_unknown"
    with Stage(refuse(404, "NotFound", "map_not_found", map="m")) as only, pytest.raises(NotFound):
        upload_parts(Nodes(only.url, quick()), sealed(tmp_path / "again"))


def test_a_node_that_has_not_heard_of_the_map_is_named(receivers: list[tuple[Receiver, str]], tmp_path: Path) -> None:
    late = receivers[1][0]
    late.hears_of_maps = False
    upload_parts(Nodes([url for _, url in receivers], quick()), sealed(tmp_path))
    assert late.hears_of_maps
    assert late.whole == receivers[0][0].whole


def test_when_one_fails_the_others_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chunk, count = bytes(1 << 16), 1000
    monkeypatch.setattr(PartStream, "chunks", lambda _stream, _start=0: iter([chunk] * count))
    monkeypatch.setattr(PartStream, "size", len(chunk) * count)
    begun, refused = threading.Event(), threading.Event()
    received: list[int] = []

    def slow(request: ActedRequest) -> None:
        if request.command == "POST":
            request.rfile.read(int(request.headers["Content-Length"]))
            return request.answer(200, {"state": "absent", "offset": 0})
        if request.command == "GET":  # which nodes there are
            return request.answer(404, {})
        begun.set()
        refused.wait(20)
        while piece := request.rfile.read1(1 << 20):
            received.append(len(piece))
        return request.hang_up()

    def refusing(request: ActedRequest) -> None:
        begun.wait(20)
        refuse(500, "Internal", "unexpected")(request)
        refused.set()

    with Stage(slow) as one, Stage(refusing) as other:
        with pytest.raises(Unavailable, match="no: unexpected") as caught:
            upload_parts(Nodes([one.url, other.url], quick(client_read_timeout="80s")), sealed(tmp_path))
        assert other.url in str(caught.value)
    assert sum(received) < len(chunk) * count


# -- 2 and 3: entered once, known everywhere ----------------------------------------------------------


def test_a_load_is_entered_at_the_primary_with_an_id_of_the_writers(
    receivers: list[tuple[Receiver, str]], tmp_path: Path
) -> None:
    parts = sealed(tmp_path, 2)
    result = enter_load(
        Nodes([url for _, url in receivers], quick()), parts, load_id="abc", clock=ManualClock(), source="s",
        rejected=4, stream=("q", 7),
    )  # fmt: skip
    assert (result.load, result.rows, result.parts, result.rejected, result.position) == ("abc", 20, 2, 4, 1)
    assert result.maps == {"m": 20}
    assert receivers[0][0].loads == [
        {"load_id": "abc", "parts": [part.manifest.id for part in parts], "source": "s", "rejected": 4,
         "stream": ["q", 7]}
    ]  # fmt: skip
    assert receivers[1][0].loads == receivers[2][0].loads == []


def test_an_answer_that_was_lost_is_requested_with_the_same_id(tmp_path: Path) -> None:
    ids: list[str] = []

    def lost(request: ActedRequest) -> None:
        ids.append(json.loads(request.rfile.read(int(request.headers["Content-Length"])))["load_id"])
        request.hang_up()

    with Stage(lost) as primary:
        with pytest.raises(Unavailable) as caught:
            enter_load(Nodes(primary.url, quick()), sealed(tmp_path), load_id="abc", clock=ManualClock())
        assert caught.value.kind == "load_unconfirmed"
        assert primary.url in str(caught.value)
    assert ids == ["abc"] * 3


def test_a_replica_that_stays_behind_is_named_and_who_has_it_too(
    receivers: list[tuple[Receiver, str]], tmp_path: Path
) -> None:
    urls = [url for _, url in receivers]
    with Stage(refuse(503, "Unavailable", "primary_unreachable", node=urls[0])) as behind:
        nodes = Nodes([*urls[:2], behind.url], quick())
        with pytest.raises(Unavailable) as caught:
            clock = ManualClock()
            while_time_passes(clock, lambda: enter_load(nodes, sealed(tmp_path), load_id="abc", clock=clock))
        error = caught.value
        assert error.kind == "load_behind"
        assert error.values["entered"] == f"{urls[0]}, {urls[1]}"
        assert behind.url in str(error.values["failed"])
        assert "primary_unreachable" in str(error.values["failed"])
        assert "safe" in str(error.hint)


def test_a_node_that_is_still_working_is_tried_again(receivers: list[tuple[Receiver, str]], tmp_path: Path) -> None:
    slow = refuse(503, "Unavailable", "merge_slow")
    read = lambda act: lambda request: (request.rfile.read(int(request.headers["Content-Length"])), act(request))  # noqa: E731
    with Stage(read(slow), read(slow), read(slow), read(slow), read(say(200, {"position": 1}))) as replica:
        nodes, clock = Nodes([receivers[0][1], replica.url], quick()), ManualClock()
        result = while_time_passes(
            clock, lambda: enter_load(nodes, sealed(tmp_path), load_id="abc", clock=clock, synchronise=True)
        )
        assert result.synchronised
        assert len(replica.requests) == 5


def test_uploads_nobody_wants_are_taken_back_where_that_is_known(
    receivers: list[tuple[Receiver, str]],
) -> None:
    with Stage(say(200, {})) as one:
        discard_parts(Nodes([one.url, f"http://127.0.0.1:{free_port()}"], quick()), ["a", "b"])
        assert [(method, path) for method, path, _, _ in one.requests] == [
            ("DELETE", "/v1/parts/a/upload"), ("DELETE", "/v1/parts/b/upload"),
        ]  # fmt: skip


# -- on real nodes ------------------------------------------------------------------------------------


def rows(count: int, offset: int = 0) -> pa.Table:
    return pa.table({"key": [f"k{n}" for n in range(count)], "value": [n + offset for n in range(count)]})


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_load_is_on_all_nodes_and_nothing_stays_behind(cluster: ClusterHere, scratch: Path) -> None:
    with millpond.open(cluster.url, client_synchronise=True) as pond:
        made = pond.create_map("m", kind="state", value="long")
        result = made.load(rows(1000))
        assert result.synchronised
        assert result.position == cluster[0].pond.log.position()[0]
        assert [node.pond.map("m").get("k7") for node in cluster.nodes] == [7, 7, 7]
        with pytest.raises(Invalid):
            made.load(pa.table({"key": ["a"], "value": ["text"]}))
        assert leftovers(scratch) == []
        pond.part_writer("m").finish()
    assert leftovers(scratch) == []


def test_without_synchronise_a_load_is_merged_by_and_by(cluster: ClusterHere) -> None:
    with millpond.open(cluster.urls[2]) as pond:
        pond.create_map("m", kind="state", value="long").load(rows(10))
        pond.merge()
        assert [node.pond.map("m").get("k7") for node in cluster.nodes] == [7, 7, 7]


def test_a_load_with_a_node_down_is_on_no_node_and_repeated_well(
    cluster: ClusterHere, serve: Callable[..., Served], scratch: Path
) -> None:
    with millpond.open(cluster.url, client_synchronise=True) as pond:
        made = pond.create_map("m", kind="state", value="long")
        down = cluster[2]
        settings = {
            "server_port": int(down.url.rpartition(":")[2]),
            "nodes_urls": cluster.urls,
            "server_data": str(down.pond.folder),
        }
        down.close()
        with pytest.raises(Unavailable) as caught:
            made.load(rows(10))
        assert caught.value.kind == "load_not_everywhere"
        assert down.url in str(caught.value)
        assert leftovers(scratch) == []
        assert [node.pond.map("m").get("k7") for node in cluster.nodes[:2]] == [None, None]
        cluster.nodes[2] = serve(**settings)
        result = made.load(rows(10))
        assert (result.parts, result.duplicate_parts) == (1, 0)
        assert [node.pond.map("m").get("k7") for node in cluster.nodes] == [7, 7, 7]


def test_an_answer_cut_after_the_load_was_entered_enters_it_once(node: Served) -> None:
    port = int(node.url.rpartition(":")[2])
    with FaultyProxy(port) as line, millpond.open(node.url, client_synchronise=True) as pond:
        made = pond.create_map("m", kind="state", value="long")
        pond.nodes.connections[:] = Nodes(line.url, quick()).connections
        line.trouble(Trouble("cut", match=b"POST /v1/loads", down=True))
        result = made.load(rows(10))
        assert (result.parts, result.duplicate_parts) == (1, 0)
        entered = [entry for entry in node.pond.log.entries(0) if entry.kind == "load"]
        assert [entry.body["load"] for entry in entered] == [result.load]
        assert made.get("k7") == 7


def test_a_replica_lost_after_the_load_was_entered_is_named_and_catches_up(serve: Callable[..., Served]) -> None:
    with ExitStack() as broken:
        ports = free_ports(2)
        lines = [broken.enter_context(FaultyProxy(port)) for port in ports]
        urls = [line.url for line in lines]
        served = [
            serve(server_port=port, server_url=url, nodes_urls=urls) for port, url in zip(ports, urls, strict=True)
        ]
        with millpond.open(urls[0], client_synchronise=True) as pond:
            made = pond.create_map("m", kind="state", value="long")
            lines[1].trouble(Trouble("cut", match=b"/v1/log/replication", times=100))
            with pytest.raises(Unavailable) as caught:
                made.load(rows(10))
            assert caught.value.kind == "load_behind"
            assert caught.value.values["entered"] == urls[0]
            assert str(caught.value.values["failed"]).startswith(urls[1])
            lines[1].mend()
            result = made.load(rows(10))
            assert (result.parts, result.duplicate_parts) == (0, 1)
            assert [node.pond.map("m").get("k7") for node in served] == [7, 7]


def test_a_connection_cut_in_mid_upload_goes_on(node: Served) -> None:
    port = int(node.url.rpartition(":")[2])
    with FaultyProxy(port) as line, millpond.open(node.url, client_synchronise=True) as pond:
        made = pond.create_map("m", kind="state", value="string")
        trouble = line.trouble(Trouble("cut", match=b"PUT /v1/parts/", after=200_000))
        pond.nodes.connections[:] = Nodes(line.url, quick()).connections
        text = [hashlib.sha256(str(n).encode()).hexdigest() for n in range(20_000)]
        made.load(pa.table({"key": text, "value": text}))
        assert trouble.struck.is_set()
        assert made.info()["rows"] == 20_000


def test_the_same_data_from_many_writers_at_once_is_one_load(cluster: ClusterHere) -> None:
    with millpond.open(cluster.url, client_synchronise=True) as pond:
        made = pond.create_map("m", kind="state", value="long")
        results: list[Any] = []
        failed: list[BaseException] = []

        def write() -> None:
            try:
                results.append(made.load(rows(5000)))
            except BaseException as error:
                failed.append(error)

        writers = [threading.Thread(target=write) for _ in range(6)]
        for thread in writers:
            thread.start()
        for thread in writers:
            thread.join(60)
        assert not failed
        assert sorted(result.parts for result in results) == [0] * 5 + [1]
        assert [node.pond.map("m").info()["rows"] for node in cluster.nodes] == [5000] * 3


def test_an_empty_load_asks_no_node(monkeypatch: pytest.MonkeyPatch, node: Served) -> None:
    with millpond.open(node.url) as pond:
        made = pond.create_map("m", kind="state")
        monkeypatch.setattr("millpond.client.upload.upload_parts", None)
        assert made.load([]).rows == 0
