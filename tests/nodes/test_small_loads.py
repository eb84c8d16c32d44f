"""Small loads are entered before anything is routed: the same answers, rights, records and errors as the route's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millpond.maps.loads.load import seal_data
from millpond.maps.parts.part import PartFile
from millpond.maps.parts.stream import MEDIA_TYPE, PartStream
from tests.nodes.conftest import Answer, Served

ROUTED = {"Content-Type": "application/json; charset=utf-8"}
"""With this, an order goes to the route."""
DIRECT = {"Content-Type": "application/json"}


@pytest.fixture
def parts(node: Served, tmp_path: Path) -> Iterator[list[str]]:
    """Two parts that were uploaded."""
    made = node.pond.create_map("m", kind="state", value="long")
    found = []
    for number in range(2):
        (part,), _ = seal_data(made.definition, [{"key": f"k{number}", "value": number}], tmp_path / f"part{number}")
        upload(node, part)
        found.append(part.manifest.id)
    return found


def upload(node: Served, part: PartFile) -> None:
    stream = PartStream(Path(part.folder))
    body = b"".join(stream.chunks())
    headers = {"Content-Type": MEDIA_TYPE, "Upload-Map": "m", "Upload-Length": str(len(body)),
               "Upload-Checksum": stream.head.checksum}  # fmt: skip
    assert node.put(f"/v1/parts/{part.manifest.id}/upload", body, headers=headers).status == 200


def order(node: Served, body: Any, headers: dict[str, str]) -> Answer:
    return node.post("/v1/loads", body if isinstance(body, bytes) else json.dumps(body).encode(), headers=headers)


def test_a_load_is_answered_in_the_same_words(node: Served, parts: list[str]) -> None:
    answers = [
        order(node, {"load_id": f"load{number}", "parts": [part], "source": "s", "rejected": number}, headers)
        for number, (part, headers) in enumerate(zip(parts, (DIRECT, ROUTED), strict=True))
    ]
    direct, routed = (answer.json() for answer in answers)
    assert [answer.status for answer in answers] == [200, 200]
    assert direct["rows"] == 1 and direct["maps"] == {"m": 1}
    assert routed == direct | {
        "load": "load1", "position": direct["position"] + 1, "rejected": 1, "seconds": routed["seconds"],
        "chain": node.pond.log.position()[1],
    }  # fmt: skip
    again = order(node, {"load_id": "load0", "parts": [parts[0]]}, DIRECT).json()
    assert again["position"] == direct["position"]
    page = node.get("/metrics").body.decode()
    assert 'millpond_requests_total{method="POST",route="/v1/loads",status="200"} 3.0' in page


BODIES: list[Any] = [
    b"", b"{", b"[]", b"\xff\xfe", b'{"load_id": "a", "parts": ["\xff"]}', {}, {"load_id": "a", "parts": []},
    {"load_id": "a", "parts": ["x"], "more": 1}, {"load_id": "a", "parts": ["x"], "epoch": -1},
    {"load_id": "a", "parts": ["x"], "epoch": 1}, {"load_id": "a", "parts": ["x"], "rejected": -1},
    {"load_id": "a b", "parts": ["x"]}, {"load_id": "a", "parts": ["x"], "stream": ["q", 1.5]},
    {"load_id": "a", "parts": ["x"]}, {"load_id": "a", "parts": ["x"] * 5000},
]  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_what_is_not_well_is_refused_in_the_same_words(node: Served, body: Any) -> None:
    direct, routed = (order(node, body, headers) for headers in (DIRECT, ROUTED))
    assert 400 <= direct.status < 500
    assert (direct.status, direct.json()) == (routed.status, routed.json())
