"""Uploads: whole, continued, refused, doubled, expired; killed at every step; and the loads they become."""

from __future__ import annotations

import http.client
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import xxhash

from millpond.errors import Conflict, Corrupt
from millpond.kernel.steps import listening
from millpond.maps.model.definition import MapDefinition
from millpond.maps.parts.part import PartFile, PartWriter, verify_part
from millpond.maps.parts.stream import MEDIA_TYPE, PartStream
from millpond.nodes.uploads import receiver as receiving
from millpond.nodes.uploads.session import UploadOffer, UploadState
from millpond.server import connections
from millpond.server.routes import uploads
from millpond.testing.faults import flip_byte
from tests.harness.rows import canonical_of
from tests.nodes.conftest import Answer, ClusterHere, Served

pytestmark = pytest.mark.sample(4, of="file")


def sealed(definition: MapDefinition, folder: Path, first: int = 0, count: int = 50, source: str = "") -> PartFile:
    """A part of the map: keys from `first` on."""
    writer = PartWriter(definition, folder, source=source)
    writer.write(canonical_of(definition, [((f"k{n:05d}",), n) for n in range(first, first + count)]))
    [part] = writer.finish()
    return part


def checksum_of(data: bytes) -> str:
    """The checksum that names a stream; of what is no stream, any."""
    text_bytes = int.from_bytes(data[8:16], "little")
    return xxhash.xxh3_128_hexdigest(data[32 : 32 + text_bytes])


class Writer:
    """Somebody who sends parts of a map to a node, and nothing but HTTP."""

    def __init__(self, node: Served, folder: Path, map: str = "m") -> None:
        self.node, self.folder = node, folder
        node.pond.create_map(map, kind="state", value="long", exist_ok=True)
        self.definition = node.pond.map(map).definition
        self.made = 0

    def part(self, first: int = 0, count: int = 50, source: str = "") -> tuple[PartFile, bytes]:
        self.made += 1
        part = sealed(self.definition, self.folder / f"w{self.made}", first, count, source)
        return part, b"".join(PartStream(part.file).chunks())

    def headers(self, data: bytes, offset: int = 0, **changed: Any) -> dict[str, str]:
        fields = {"Content-Type": MEDIA_TYPE, "Upload-Map": self.definition.name, "Upload-Length": len(data),
                  "Upload-Offset": offset, "Upload-Checksum": checksum_of(data)}  # fmt: skip
        return {name: str(value) for name, value in {**fields, **changed}.items()}

    def send(self, part: PartFile, data: bytes, offset: int = 0, stop: int | None = None, **changed: Any) -> Answer:
        headers = self.headers(data, offset, **changed)
        return self.node.put(f"/v1/parts/{part.manifest.id}/upload", body=data[offset:stop], headers=headers)

    def state(self, part: PartFile) -> dict[str, Any]:
        return self.node.get(f"/v1/parts/{part.manifest.id}/upload").json()

    def enter(self, *parts: PartFile, load: str = "load1", **options: Any) -> Answer:
        return self.node.post("/v1/loads", {"load_id": load, "parts": [part.manifest.id for part in parts], **options})

    def cut(self, part: PartFile, data: bytes, stop: int) -> None:
        """Begin an upload, and cut the connection when so many bytes were sent."""
        self.begin(part, data, stop).close()

    def begin(self, part: PartFile, data: bytes, stop: int) -> http.client.HTTPConnection:
        """Begin an upload; the connection, on which no more than so many bytes were sent."""
        line = http.client.HTTPConnection(urlsplit(self.node.url).netloc)
        line.putrequest("PUT", f"/v1/parts/{part.manifest.id}/upload")
        for name, value in {**self.headers(data), "Content-Length": str(len(data))}.items():
            line.putheader(name, value)
        line.endheaders(data[:stop])
        return line

    def leftovers(self) -> list[Path]:
        uploads = self.node.pond.folder / "uploads"
        return list(uploads.iterdir())


@pytest.fixture
def writer(node: Served, tmp_path: Path) -> Writer:
    return Writer(node, tmp_path)


HERE, ABSENT = {"state": "here", "offset": 0}, {"state": "absent", "offset": 0}


# -- sending ------------------------------------------------------------------------------------------


def test_a_part_is_sent_entered_and_merged(writer: Writer) -> None:
    part, data = writer.part()
    assert writer.state(part) == ABSENT
    assert writer.send(part, data).json() == HERE == writer.state(part)
    assert writer.send(part, data).json() == HERE, "sent again, nothing happens"
    response = writer.enter(part)
    assert (response.status, response.json()["parts"], response.json()["maps"]) == (200, 1, {"m": 50})
    assert writer.state(part)["state"] == "known"
    assert writer.send(part, data).json()["state"] == "known"
    writer.node.pond.log.wait_applied(response.json()["position"])
    assert writer.node.pond.map("m").get("k00007") == 7
    assert writer.leftovers() == []
    assert (writer.node.pond.folder / "uploads").is_dir(), "its name is durable, so it stays"


def test_an_upload_goes_on_where_it_stopped(writer: Writer) -> None:
    part, data = writer.part()
    assert writer.send(part, data, stop=1000).json() == {"state": "partial", "offset": 1000}
    wrong = writer.send(part, data, 500)
    assert (wrong.status, wrong.json()["kind"], wrong.json()["values"]["offset"]) == (409, "upload_offset", 1000)
    assert writer.send(part, data, 1000, 2000).json()["offset"] == 2000
    assert writer.send(part, data, 2000).json() == HERE


def test_a_lost_connection_leaves_what_came(writer: Writer) -> None:
    part, data = writer.part(count=120_000)
    assert len(data) > uploads.SMALL_BYTES, "a small part is sent again from its start"
    writer.cut(part, data, 400_000)
    writer.node.until(lambda: writer.state(part)["offset"] == 400_000)
    writer.node.until(lambda: writer.send(part, data, 400_000).json() == HERE)


def test_who_asks_how_far_a_broken_upload_came_waits_for_its_last_bytes(writer: Writer) -> None:
    """Of a long part the turn is taken before its bytes are waited for, so no late writer changes that offset."""
    part, data = writer.part(count=120_000)
    began = threading.Event()
    with listening(lambda step: began.set() if step == "receive.began" else None), ThreadPoolExecutor(1) as pool:
        line = writer.begin(part, data, 100_000)
        assert began.wait(60)
        answer = pool.submit(open_upload, writer, part, data)
        line.close()
        assert answer.result().json() == {"state": "partial", "offset": 100_000}
    assert writer.send(part, data, 100_000).json() == HERE


def test_bytes_that_wait_for_more_are_not_lost_with_the_connection(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "GATHERING_SECONDS", 60.0)  # what came lies there when the connection is lost
    part, data = writer.part(count=120_000)
    began = threading.Event()
    with listening(lambda step: began.set() if step == "receive.began" else None):
        line = writer.begin(part, data, 1_000)
        assert began.wait(60)
    line.send(data[1_000:100_000])
    line.close()
    writer.node.until(lambda: writer.state(part)["offset"] > 0)
    assert writer.state(part)["offset"] == 100_000


def test_a_connection_may_be_lost_anywhere(writer: Writer) -> None:
    """At the ends of the head and of every file, one byte before and after: the reported offset is what came."""
    part, data = writer.part()
    head = PartStream(part.file).head
    ends = {at + delta for at in (head.size, head.data_start, len(data) - 1) for delta in (-1, 0, 1)}
    offset = 0
    for stop in sorted(end for end in ends if end < len(data)):
        # Without its whole head a part is not known, and nothing of it is retained.
        came = stop if stop >= head.size else 0
        state = writer.send(part, data, offset, stop).json()
        assert state == {"state": "partial", "offset": stop}
        assert writer.state(part) == ({"state": "partial", "offset": came} if came else ABSENT)
        offset = came
    assert writer.send(part, data, offset).json() == HERE
    assert verify_part(writer.node.pond.folder / "uploads" / part.manifest.id) == part.manifest


def open_upload(writer: Writer, part: PartFile, data: bytes, **changed: Any) -> Answer:
    """Send the head alone."""
    headers = {name: value for name, value in writer.headers(data, **changed).items() if name != "Upload-Offset"}
    head = PartStream(part.file).start
    return writer.node.request("POST", f"/v1/parts/{part.manifest.id}/upload", body=head, headers=headers)


def test_the_head_goes_first_and_throws_nothing_away(writer: Writer) -> None:
    part, data = writer.part()
    head = PartStream(part.file).head.size
    assert open_upload(writer, part, data).json() == {"state": "partial", "offset": head}
    assert writer.send(part, data, head, head + 1000).json()["offset"] == head + 1000
    assert open_upload(writer, part, data).json() == {"state": "partial", "offset": head + 1000}
    assert writer.send(part, data, head + 1000).json() == HERE == open_upload(writer, part, data).json()


def test_a_part_that_is_not_wanted_is_refused_by_its_head(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    part, data = writer.part()
    assert open_upload(writer, part, data, **{"Upload-Map": "nowhere"}).json()["kind"] == "map_not_found"
    assert open_upload(writer, part, data, **{"Upload-Length": 1 << 50}).json()["kind"] == "upload_too_large"
    assert open_upload(writer, part, data, **{"Upload-Length": len(data) + 1}).json()["kind"] == "upload_length"
    assert open_upload(writer, part, data, **{"Upload-Checksum": "0" * 32}).json()["kind"] == "upload_damaged"
    monkeypatch.setattr(receiving, "DISK_SPARE_BYTES", 1 << 60)
    assert open_upload(writer, part, data).json()["kind"] == "disk_full"
    assert writer.leftovers() == []


def test_what_came_is_continued_after_the_node_started_anew(writer: Writer) -> None:
    part, data = writer.part()
    other, other_data = writer.part(first=500)
    writer.send(part, data, stop=5000)
    writer.send(other, other_data)
    again = receiving.Receiver(writer.node.pond, writer.node.node.limits, writer.node.node.clock, decides=lambda: True)
    assert again.state(part.manifest.id) == UploadState("partial", 5000)
    assert again.state(other.manifest.id).state == "here"
    offer = UploadOffer(part.manifest.id, "m", len(data), checksum_of(data), None)
    session = again.begin(offer)
    assert session is not None
    session.write([data[session.offset :]])
    assert session.finish().state == "here"
    session.leave()
    assert verify_part(again.folder / part.manifest.id) == part.manifest


def test_damage_in_what_came_before_is_seen_at_the_end(writer: Writer) -> None:
    part, data = writer.part()
    writer.send(part, data, stop=9000)
    [file] = (writer.node.pond.folder / "uploads").iterdir()
    flip_byte(file, 100)
    again = receiving.Receiver(writer.node.pond, writer.node.node.limits, writer.node.node.clock, decides=lambda: True)
    offer = UploadOffer(part.manifest.id, "m", len(data), checksum_of(data), 9000)
    with pytest.raises(Corrupt) as caught:
        again.take(offer, [data[9000:]], 0)
    assert caught.value.kind == "upload_damaged"
    assert writer.leftovers() == []


def test_sending_from_the_start_begins_anew(writer: Writer) -> None:
    part, data = writer.part()
    writer.send(part, data, stop=1000)
    assert writer.send(part, data).json() == HERE


def test_bytes_of_one_stream_are_never_continued_by_another(writer: Writer) -> None:
    part, data = writer.part(source="monday")
    other, other_data = writer.part(source="tuesday")
    assert part.manifest.id == other.manifest.id
    assert data != other_data, "the source is in the manifest"
    writer.send(part, data, stop=3000)
    refused = writer.send(other, other_data, 3000)
    assert (refused.status, refused.json()["values"]["offset"]) == (409, 0)
    assert writer.send(other, other_data).json() == HERE
    assert len(writer.leftovers()) == 3


@pytest.mark.parametrize("place", [5, 20, 300, 1500, -5])
def test_damage_on_the_way_is_seen(writer: Writer, place: int) -> None:
    part, data = writer.part()
    damaged = bytearray(data)
    damaged[place] ^= 1
    headers = writer.headers(data)
    refused = writer.node.put(f"/v1/parts/{part.manifest.id}/upload", body=bytes(damaged), headers=headers)
    assert refused.status in (400, 413, 422), refused.body
    kinds = ("upload_damaged", "upload_length", "part_stream", "part_damaged", "part_manifest", "part_too_large")
    assert refused.json()["kind"] in kinds
    assert writer.leftovers() == []
    assert writer.send(part, data).json() == HERE


def test_a_body_that_is_no_part_is_refused(writer: Writer) -> None:
    part, _ = writer.part()
    zipped = b"PK\3\4" + bytes(100)
    refused = writer.send(part, zipped, **{"Content-Type": "application/zip",
                          "Upload-Checksum": xxhash.xxh3_128_hexdigest(zipped)})  # fmt: skip
    assert (refused.status, refused.json()["kind"]) == (422, "part_zipped"), "as programs of earlier versions sent it"
    assert "stream" in refused.json()["hint"]
    refused = writer.send(part, b"no part at all")
    assert (refused.status, refused.json()["kind"]) == (422, "part_stream")
    another, data = writer.part(first=1000)
    assert another.manifest.id != part.manifest.id
    refused = writer.send(part, data)
    assert (refused.status, refused.json()["kind"]) == (422, "part_other")
    assert writer.leftovers() == []


def test_a_part_of_an_earlier_map_is_refused_at_its_first_bytes(writer: Writer) -> None:
    part, data = writer.part(count=20_000)
    writer.node.pond.drop_map("m")
    assert writer.send(part, data).json()["kind"] == "map_not_found"
    writer.node.pond.create_map("m", kind="state", value="long")
    refused = writer.send(part, data, stop=10_000)
    assert (refused.status, refused.json()["kind"]) == (409, "map_incarnation")
    assert writer.leftovers() == []


@pytest.mark.settings(limits={"upload_bytes_max": 20_000, "part_bytes_max": 15_000})
def test_too_much_is_refused_before_it_is_read(writer: Writer) -> None:
    large, data = writer.part(count=5000)
    refused = writer.send(large, data)
    assert (refused.status, refused.json()["kind"]) == (413, "upload_too_large")
    assert refused.json()["values"]["bytes_max"] == 20_000
    small, data = writer.part(count=10)
    assert 15_000 < len(data) < 20_000
    refused = writer.send(small, data)
    assert (refused.status, refused.json()["kind"]) == (413, "part_too_large")
    assert writer.leftovers() == []


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"Upload-Length": 100}, "upload_length"),
        ({"Upload-Length": "many"}, "request_invalid"),
        ({"Upload-Checksum": "xyz"}, "upload_checksum"),
        ({"Upload-Map": "nowhere"}, "map_not_found"),
        ({"Upload-Offset": -1}, "request_invalid"),
    ],
)
def test_what_a_writer_says_is_checked(writer: Writer, changed: dict[str, Any], kind: str) -> None:
    part, data = writer.part()
    assert writer.send(part, data, **changed).json()["kind"] == kind
    assert writer.leftovers() == []


def test_an_id_is_no_path(writer: Writer) -> None:
    for name in ("..%2f..%2fspace", "x" * 32, "A" * 32, "0" * 31):
        assert writer.node.get(f"/v1/parts/{name}/upload").status in (400, 404)
        assert writer.node.delete(f"/v1/parts/{name}/upload").status in (400, 404)


def test_uploads_are_forgotten_on_request(writer: Writer) -> None:
    part, data = writer.part()
    path = f"/v1/parts/{part.manifest.id}/upload"
    assert writer.node.delete(path).json() == {"discarded": False}
    writer.send(part, data, stop=1000)
    assert writer.node.delete(path).json() == {"discarded": True}
    assert writer.state(part) == ABSENT
    writer.send(part, data)
    assert writer.node.delete(path).json() == {"discarded": True}
    assert writer.leftovers() == []


def test_many_send_the_same_part_at_once(writer: Writer) -> None:
    part, data = writer.part(count=50_000)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: writer.send(part, data), range(8)))
    assert [response.json() for response in answers] == [HERE] * 8
    assert verify_part(writer.node.pond.folder / "uploads" / part.manifest.id) == part.manifest


def test_a_full_disk_leaves_nothing_half(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    part, data = writer.part()
    writer.send(part, data, stop=1000)
    monkeypatch.setattr(receiving, "DISK_SPARE_BYTES", 1 << 60)
    refused = writer.send(part, data, 1000)
    assert (refused.status, refused.json()["kind"]) == (507, "disk_full")
    assert writer.leftovers() == []
    monkeypatch.undo()
    assert writer.send(part, data).json() == HERE


def test_fifty_at_once_are_all_taken(writer: Writer) -> None:
    parts = [writer.part(first=number * 30_000, count=30_000) for number in range(50)]
    size = sum(len(data) for _, data in parts)
    assert size > 50 << 20
    with ThreadPoolExecutor(50) as pool:
        assert {str(response.json()) for response in pool.map(lambda arguments: writer.send(*arguments), parts)} == {
            str(HERE)
        }
    result = writer.enter(*(part for part, _ in parts)).json()
    assert (result["parts"], result["rows"]) == (50, 1_500_000)


def test_pieces_grow_smaller_where_many_send() -> None:
    pieces = uploads._Pieces()
    with ExitStack() as senders:
        sizes = [senders.enter_context(pieces.of_one())() for _ in range(200)]
    assert sizes[0] == uploads.PIECE_BYTES_MAX
    assert sizes[-1] == uploads.PIECE_BYTES_MIN
    assert all(size * 2 * number <= uploads.PIECES_BYTES for number, size in enumerate(sizes[:100], 1))
    with pieces.of_one() as alone:
        assert alone() == uploads.PIECE_BYTES_MAX


def test_a_disk_that_fills_up_meanwhile_leaves_nothing_half(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    part, data = writer.part()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    refused = writer.send(part, data)
    assert (refused.status, refused.json()["kind"]) == (507, "disk_full")
    monkeypatch.undo()
    assert writer.leftovers() == []
    assert writer.send(part, data).json() == HERE


# -- loads --------------------------------------------------------------------------------------------


def test_a_load_is_entered_once(writer: Writer) -> None:
    part, data = writer.part()
    writer.send(part, data)
    first = writer.enter(part, load="twice").json()
    assert writer.enter(part, load="twice").json() | {"seconds": 0} == first | {"seconds": 0}
    other = writer.enter(part, load="another").json()
    assert (other["parts"], other["duplicate_parts"], other["position"]) == (0, 1, first["position"])


def test_parts_keep_their_order(writer: Writer, tmp_path: Path) -> None:
    older = PartWriter(writer.definition, tmp_path / "older")
    older.write(canonical_of(writer.definition, [(("k",), 1)]))
    newer = PartWriter(writer.definition, tmp_path / "newer")
    newer.write(canonical_of(writer.definition, [(("k",), 2)]))
    parts = [*older.finish(), *newer.finish()]
    for part in reversed(parts):
        writer.send(part, b"".join(PartStream(part.file).chunks()))
    result = writer.enter(*parts).json()
    writer.node.pond.log.wait_applied(result["position"])
    assert writer.node.pond.map("m").get("k") == 2


def test_a_load_takes_all_its_parts_or_none(writer: Writer) -> None:
    here, data = writer.part()
    missing, _ = writer.part(first=900)
    writer.send(here, data)
    refused = writer.enter(here, missing)
    assert (refused.status, refused.json()["kind"]) == (404, "part_not_uploaded")
    assert refused.json()["values"]["part"] == missing.manifest.id
    assert writer.state(here) == HERE
    assert writer.node.pond.log.position()[0] == 1, "nothing but the map"


ORDERS: list[Any] = [
    b"", b"{", b"[]", b"\xff\xfe", b'{"load_id": "a", "parts": ["\xff"]}', {}, {"load_id": "a", "parts": []},
    {"load_id": "a", "parts": ["x"], "more": 1}, {"load_id": "a", "parts": ["x"], "epoch": -1},
    {"load_id": "a", "parts": ["x"], "epoch": 1}, {"load_id": "a", "parts": ["x"], "rejected": -1},
    {"load_id": "a b", "parts": ["x"]}, {"load_id": "a", "parts": ["x"], "stream": ["q", 1.5]},
    {"load_id": "a", "parts": ["x"]}, {"load_id": "a", "parts": ["x"] * 5000},
]  # fmt: skip


def test_an_order_that_is_not_well_is_refused(node: Served) -> None:
    for order in ORDERS:
        refused = node.post("/v1/loads", order, headers={"Content-Type": "application/json"})
        assert 400 <= refused.status < 500, order
        assert refused.json()["kind"], order


def test_two_loads_of_the_same_data_at_once_bring_it_once(writer: Writer) -> None:
    part, data = writer.part()
    writer.send(part, data)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: writer.enter(part, load=f"load{n}").json(), range(8)))
    assert sorted(result["parts"] for result in results) == [0] * 7 + [1]
    assert sorted(result["duplicate_parts"] for result in results) == [0] + [1] * 7


def test_an_epoch_of_a_stream_is_entered_once(writer: Writer) -> None:
    part, data = writer.part()
    writer.send(part, data)
    first = writer.enter(part, load="a", stream=["query", 7]).json()
    other, data = writer.part(first=700)
    writer.send(other, data)
    again = writer.enter(other, load="b", stream=["query", 7]).json()
    assert again | {"seconds": 0} == first | {"seconds": 0}
    assert writer.state(other)["state"] in ("here", "absent"), "it is not taken"


def test_only_the_primary_enters_loads(cluster: ClusterHere, tmp_path: Path) -> None:
    writer = Writer(cluster[0], tmp_path)
    part, data = writer.part()
    replica = cluster[1]
    headers = writer.headers(data)
    assert replica.put(f"/v1/parts/{part.manifest.id}/upload", body=data, headers=headers).json() == HERE
    refused = replica.post("/v1/loads", {"load_id": "x", "parts": [part.manifest.id]})
    assert (refused.status, refused.json()["kind"]) == (421, "not_primary")
    assert refused.json()["values"]["primary"] == cluster[0].url
    writer.send(part, data)
    position = writer.enter(part).json()["position"]
    assert replica.while_time_passes(lambda: replica.pond.log.wait_position(position, 600))
    replica.pond.log.wait_applied(position)
    assert replica.pond.map("m").get("k00007") == 7
    assert list((replica.pond.folder / "uploads").glob("*")) == [], "it took its own upload"


def test_errors_keep_their_class_on_the_way(writer: Writer) -> None:
    part, data = writer.part()
    writer.send(part, data, stop=10)
    response = writer.send(part, data, 5).json()
    assert response["error"] == Conflict.__name__
    assert response["hint"]
