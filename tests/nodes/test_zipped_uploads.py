"""Parts that come as a zip: taken whole, checked, and given room before they are unpacked."""

from __future__ import annotations

import io
import shutil
import zipfile
from pathlib import Path

import pytest
import xxhash

from millpond.maps.parts.bundle import MEMBERS, open_bundle_stream
from millpond.nodes.uploads import receiver as receiving
from tests.nodes.conftest import Served
from tests.nodes.test_uploads import ABSENT, HERE, Writer


@pytest.fixture
def writer(node: Served, tmp_path: Path) -> Writer:
    return Writer(node, tmp_path)


@pytest.mark.parametrize("small", [True, False])
def test_a_zip_is_taken_whole(writer: Writer, small: bool) -> None:
    part, _ = writer.part(count=50 if small else 300_000)
    data = b"".join(open_bundle_stream(Path(part.folder)))
    headers = {"Content-Type": "application/zip", "Upload-Map": "m", "Upload-Checksum": xxhash.xxh3_128_hexdigest(data)}
    path = f"/v1/parts/{part.manifest.id}/upload"
    damaged = writer.node.put(path, body=data[:-1] + b"x", headers=headers)
    assert (damaged.status, damaged.json()["kind"]) == (422, "upload_damaged")
    continued = writer.node.put(path, body=data[9:], headers={**headers, "Upload-Offset": "9"})
    assert (continued.status, continued.json()["values"]["offset"]) == (409, 0)
    half = writer.node.put(path, body=data[:99], headers={**headers, "Upload-Length": str(len(data))})
    assert half.json() == {"state": "partial", "offset": 99}
    assert writer.state(part) == ABSENT, "a zip is not continued"
    assert writer.leftovers() == []
    assert writer.node.put(path, body=data, headers=headers).json() == HERE
    assert len(writer.leftovers()) == 3
    assert writer.enter(part).json()["rows"] == part.manifest.rows


def test_disk_space_is_looked_at_before_a_zip_is_unpacked(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    part, _ = writer.part(count=20_000)
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in MEMBERS:
            archive.write(Path(part.folder) / name, name)
    data = sink.getvalue()
    unpacked = sum((Path(part.folder) / name).stat().st_size for name in MEMBERS)
    free = receiving.DISK_SPARE_BYTES + (len(data) + unpacked) // 2
    usage = shutil.disk_usage(writer.folder)
    monkeypatch.setattr(receiving.shutil, "disk_usage", lambda _: usage._replace(free=free))
    headers = {"Upload-Map": "m", "Upload-Checksum": xxhash.xxh3_128_hexdigest(data)}
    refused = writer.node.put(f"/v1/parts/{part.manifest.id}/upload", body=data, headers=headers)
    assert (refused.status, refused.json()["kind"]) == (507, "disk_full")
    assert refused.json()["values"]["wanted"] == unpacked + receiving.DISK_SPARE_BYTES
    assert writer.leftovers() == []
