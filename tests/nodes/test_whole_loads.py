"""A small load in one request, with its parts: rights, damage, repetition."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import xxhash

import millpond
from millpond.client.upload import upload_parts
from millpond.errors import Corrupt, Unavailable
from millpond.maps.loads.load import seal_data
from millpond.maps.parts.part import PartFile
from millpond.maps.parts.stream import MEDIA_TYPE, PartStream, split_streams
from millpond.nodes.tokens import hash_token
from millpond.nodes.uploads.receiver import Receiver
from tests.nodes.conftest import Answer, Served
from tests.unit.mutations import Mutation, give_its_id, mutate

pytestmark = pytest.mark.sample(4, of="file")

NOW = {"Content-Type": MEDIA_TYPE}
EARLIER = {"Content-Type": "application/vnd.millpond.parts"}
"""As earlier writers send it."""
RIGHTS: dict[str, dict[str, list[str]]] = {"reader": {"read": ["*"]}, "writer": {"write": ["m"]}}
TOKENS = [{"name": name, "sha256": hash_token(name), "rights": rights} for name, rights in RIGHTS.items()]


def sealed(node: Served, folder: Path, value: int, name: str = "m") -> PartFile:
    """A part of one row, whose key and value are a number."""
    made = node.pond.create_map(name, kind="state", value="long", exist_ok=True)
    (part,), _ = seal_data(made.definition, [{"key": f"k{value}", "value": value}], folder / f"{name}{value}")
    return part


def stream_of(part: PartFile) -> bytes:
    return b"".join(PartStream(part.file).chunks())


def bring(node: Served, load: str, *parts: PartFile | bytes, headers: dict[str, str] = NOW, **query: Any) -> Answer:
    body = b"".join(part if isinstance(part, bytes) else stream_of(part) for part in parts)
    path = f"/v1/loads/{load}" + (f"?{urlencode(query)}" if query else "")
    return node.put(path, body, headers=headers)


def left(node: Served) -> list[str]:
    """The names in the folders of uploads, and of parts that no load entered."""
    known = {part.part for part in node.pond.loads.queue.parts()}
    parts = [place.name for place in (node.pond.folder / "parts").iterdir() if place.name not in known]
    return [*parts, *(place.name for place in (node.pond.folder / "uploads").iterdir())]


@pytest.fixture
def held(node: Served) -> Served:
    """A node that merges nothing, so that parts stay queued."""
    assert node.post("/v1/jobs/merge/pause").status == 200
    return node


def test_a_load_is_one_request(node: Served) -> None:
    node.pond.create_map("m", kind="state", value="long")
    with millpond.open(node.url) as pond:
        sent: list[tuple[int, int]] = []
        writer = pond.part_writer("m")
        (part,), _ = seal_data(pond.map("m").definition, [{"key": "a", "value": 1}], Path(writer.folder))
        result = pond.commit_load(
            [part], source="täglich & more", rejected=3, advance=lambda count, total: sent.append((count, total))
        )
    assert (result.rows, result.parts, result.rejected, result.maps) == (1, 1, 3, {"m": 1})
    assert len(sent) == 1 and sent[0][0] == sent[0][1] > 0
    [entry] = [entry for entry in node.pond.log.entries(0) if entry.kind == "load"]
    assert (entry.body["load"], entry.body["source"]) == (result.load, "täglich & more")
    node.pond.log.wait_applied(result.position)
    assert node.pond.map("m").get("a") == 1
    lines = [json.loads(line) for line in (node.pond.folder / "audit.jsonl").read_text().splitlines()]
    assert [(line["path"], line["rows"]) for line in lines] == [(f"/v1/loads/{result.load}", {"m": 1})]
    page = node.get("/metrics").body.decode()
    assert 'millpond_requests_total{method="PUT",route="/v1/loads/{load_id}",status="200"} 1.0' in page
    assert 'route="/v1/loads",' not in page and "/upload" not in page


def test_a_load_is_answered_in_the_same_words(held: Served, tmp_path: Path) -> None:
    now, earlier = (
        bring(held, f"load{number}", sealed(held, tmp_path, number), headers=headers, source="s", rejected=number)
        for number, headers in enumerate((NOW, EARLIER))
    )
    assert [now.status, earlier.status] == [200, 200]
    first, second = now.json(), earlier.json()
    assert second == first | {
        "load": "load1", "position": first["position"] + 1, "rejected": 1, "seconds": second["seconds"],
        "chain": held.pond.log.position()[1],
    }  # fmt: skip
    assert left(held) == []


def test_a_repetition_enters_nothing_twice(held: Served, tmp_path: Path) -> None:
    parts = [sealed(held, tmp_path, 1), sealed(held, tmp_path, 2, "other")]
    first = bring(held, "once", *parts).json()
    assert (first["parts"], first["maps"]) == (2, {"m": 1, "other": 1})
    again = bring(held, "once", *parts).json()
    assert again == first | {"seconds": again["seconds"]}
    known = bring(held, "another", *parts).json()
    assert (known["position"], known["parts"], known["duplicate_parts"]) == (first["position"], 0, 2)
    mixed = bring(held, "more", parts[0], sealed(held, tmp_path, 3)).json()
    assert (mixed["parts"], mixed["duplicate_parts"]) == (1, 1)
    assert left(held) == []


def test_an_epoch_of_a_stream_is_entered_once(held: Served, tmp_path: Path) -> None:
    first = bring(held, "e0", sealed(held, tmp_path, 1), stream="q", stream_epoch=0).json()
    again = bring(held, "e0-again", sealed(held, tmp_path, 2), stream="q", stream_epoch=0).json()
    assert again["load"] == "e0" and again["position"] == first["position"]
    far = bring(held, "far", sealed(held, tmp_path, 3), stream="q", stream_epoch=10**9)
    assert 400 <= far.status < 500
    assert left(held) == []


def test_a_token_brings_parts_of_its_own_maps_alone(serve: Callable[..., Served], tmp_path: Path) -> None:
    node = serve(server_tokens=TOKENS)
    ours, theirs = sealed(node, tmp_path, 1), sealed(node, tmp_path, 2, "theirs")
    tokens = {name: {"Authorization": f"Bearer {name}"} for name in RIGHTS}
    for headers in (NOW, EARLIER):
        assert bring(node, "a", ours, headers=headers).status == 401
        assert bring(node, "b", ours, headers=headers | tokens["reader"]).status == 403
        assert bring(node, "c", ours, theirs, headers=headers | tokens["writer"]).status == 403
    assert left(node) == [] and not [entry for entry in node.pond.log.entries(0) if entry.kind == "load"]
    assert bring(node, "d", ours, headers=NOW | tokens["writer"]).status == 200


def damaged(part: bytes) -> list[bytes]:
    middle = len(part) // 2
    flipped = bytes([part[middle] ^ 1])
    return [
        b"", b"x", part[:20], part[:-1], part + b"x", part + part, part + part[:40],
        part[:middle] + flipped + part[middle + 1 :], part[:-5] + b"\xff" + part[-4:],
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(9))
def test_what_is_not_well_is_refused_in_the_same_words(node: Served, tmp_path: Path, number: int) -> None:
    body = damaged(stream_of(sealed(node, tmp_path, 1)))[number]
    now, earlier = (bring(node, "l", body, headers=headers) for headers in (NOW, EARLIER))
    assert 400 <= now.status < 500
    assert (now.status, now.json()) == (earlier.status, earlier.json())
    assert left(node) == [] and node.pond.log.position()[0] == 1


@pytest.mark.parametrize(
    "query", [{"rejected": -1}, {"rejected": "x"}, {"epoch": 1}, {"stream": "q", "stream_epoch": -1}, {"epoch": "1.5"}]
)
def test_an_order_that_is_not_well_is_refused_in_the_same_words(
    node: Served, tmp_path: Path, query: dict[str, Any]
) -> None:
    part = sealed(node, tmp_path, 1)
    now, earlier = (bring(node, "l", part, headers=headers, **query) for headers in (NOW, EARLIER))
    assert 400 <= now.status < 500
    assert (now.status, now.json()) == (earlier.status, earlier.json())
    assert bring(node, "a%20b", part).status == bring(node, "a%20b", part, headers=EARLIER).status == 400
    assert left(node) == []


def test_a_part_that_lies_is_refused(node: Served, tmp_path: Path) -> None:
    """Its checksums fit, and its pages do not."""
    part = sealed(node, tmp_path, 1)
    mutate(part, [Mutation(page=2, at=16, data=b"\xff\xff")])
    changed = give_its_id(part, node.pond.map("m").definition)
    assert changed is not None
    answer = bring(node, "l", changed)
    assert (answer.status, answer.json()["kind"]) == (422, "part_damaged")
    assert left(node) == []


def with_nested_definition(part: bytes, depth: int) -> bytes:
    """The stream of a part whose manifest fits its checksum, and holds lists within lists."""
    _, text_bytes, touched, data = struct.unpack_from("<8s3Q", part)
    manifest = json.loads(part[32 : 32 + text_bytes])
    del manifest["checksum"]
    manifest["definition"]["value"] = "NESTED"
    text = json.dumps(manifest, sort_keys=True).replace('"NESTED"', "[" * depth + "]" * depth)
    signed = f'{text[:-1]}, "checksum": "{xxhash.xxh3_128_hexdigest(text.encode())}"}}'.encode()
    return struct.pack("<8s3Q", part[:8], len(signed), touched, data) + signed + part[32 + text_bytes :]


def test_a_manifest_that_nests_is_refused_at_any_depth(node: Served, tmp_path: Path) -> None:
    """Also one that can be read, but not hashed, by what a thread has left of its stack."""
    part = sealed(node, tmp_path, 1)
    whole = stream_of(part)
    for depth in (1, 10, 500, *range(860, 1_000, 10), 2_000, 100_000):
        body = with_nested_definition(whole, depth)
        name = xxhash.xxh3_128_hexdigest(body[32 : 32 + int.from_bytes(body[8:16], "little")])
        upload = {"Content-Type": MEDIA_TYPE, "Upload-Map": "m", "Upload-Length": str(len(body)),
                  "Upload-Offset": "0", "Upload-Checksum": name}  # fmt: skip
        answers = [bring(node, "l", body, headers=headers) for headers in (NOW, EARLIER)]
        answers.append(node.put(f"/v1/parts/{part.manifest.id}/upload", body, headers=upload))
        assert [(answer.status, answer.json()["kind"]) for answer in answers] == [(422, "part_manifest")] * 3, depth
    assert left(node) == []
    assert bring(node, "l", part).status == 200, "the map is not blocked"


def test_a_disk_without_room_takes_nothing(node: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = sealed(node, tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr("millpond.nodes.uploads.receiver.DISK_SPARE_BYTES", 1 << 60)
        answer = bring(node, "l", part)
    assert (answer.status, answer.json()["kind"]) == (507, "disk_full")
    assert left(node) == []
    assert bring(node, "l", part).status == 200


def test_a_part_that_somebody_else_sends_goes_the_other_way(node: Served, tmp_path: Path) -> None:
    part = sealed(node, tmp_path, 1)
    receiver: Receiver = node.node.receiver
    [(head, data)] = split_streams(memoryview(stream_of(part)))
    turn = receiver._of(head.manifest.id).turn
    with turn:
        answer = bring(node, "l", part)
        assert (answer.status, answer.json()["kind"]) == (503, "upload_busy")
    assert bytes(data) == stream_of(part)


def test_a_node_of_an_earlier_release_is_sent_the_parts_first(
    node: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = sealed(node, tmp_path, 1)
    with millpond.open(node.url) as pond:
        monkeypatch.setattr("millpond.client.upload.quote", lambda *_args, **_options: "no/route")
        result = pond.commit_load([part])
        assert result.parts == 1 and not pond.nodes.take_whole_loads
    assert 'route="/v1/loads",status="200"' in node.get("/metrics").body.decode()


def test_parts_that_were_uploaded_before_are_entered(held: Served, tmp_path: Path) -> None:
    parts = [sealed(held, tmp_path, number) for number in (1, 2)]
    with millpond.open(held.url) as pond:
        upload_parts(pond.nodes, parts[:1])
    answer = bring(held, "l", *parts).json()
    assert (answer["parts"], answer["duplicate_parts"]) == (2, 0)
    assert left(held) == []
    assert held.node.receiver._uploads == {}, "what a load took is forgotten"


def test_a_node_that_is_away_has_not_entered_a_load(serve: Callable[..., Served], tmp_path: Path) -> None:
    node = serve()
    part = sealed(node, tmp_path, 1)
    with millpond.open(node.url, client_attempts=1) as pond:
        node.close()
        with pytest.raises(Unavailable) as caught:
            pond.commit_load([part])
    assert caught.value.kind == "load_not_everywhere"


def test_streams_come_apart_as_they_were_put_together(node: Served, tmp_path: Path) -> None:
    parts = [stream_of(sealed(node, tmp_path, number)) for number in range(3)]
    found = split_streams(memoryview(b"".join(parts)))
    assert [bytes(data) for _, data in found] == parts
    for body in damaged(parts[0]):
        if len(body) != len(parts[0]):
            with pytest.raises(Corrupt):
                split_streams(memoryview(body))
