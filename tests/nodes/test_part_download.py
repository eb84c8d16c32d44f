"""Fetching a part over connections that break and onto disks that fill: whole, continued where it stopped, or not."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millpond.client import transfer
from millpond.client.transfer import fetch_part
from millpond.client.transport import Connection
from millpond.errors import Corrupt, Invalid, Unavailable
from millpond.maps.parts.part import PartFile, verify_part
from millpond.maps.parts.partial import PartialPart
from millpond.maps.parts.stream import PartStream
from millpond.settings import load_settings
from tests.harness.chaos.faults import SmallDisk
from tests.nodes.test_fetching import Source
from tests.nodes.test_part_streams import MAP
from tests.nodes.test_uploads import sealed

MIB = 1 << 20


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> PartFile:
    return sealed(MAP, tmp_path_factory.mktemp("part"), count=150_000)


@pytest.fixture(scope="module")
def stream(part: PartFile) -> bytes:
    data = b"".join(PartStream(part.file).chunks())
    assert len(data) > 4 * MIB, "it comes in several pieces"
    return data


@pytest.fixture
def source(part: PartFile, stream: bytes) -> Iterator[Source]:
    server = Source()
    server.data, server.tag = stream, PartStream(part.file).head.checksum
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def connection(source: Source) -> Connection:
    settings = load_settings(client_attempts=1)
    return Connection(f"http://127.0.0.1:{source.server_address[1]}", settings)


def starts(source: Source) -> list[int]:
    """The offsets from which the stream was requested."""
    return [int(header[6:-1]) if header else 0 for header in source.ranges]


def bytes_left(folder: Path) -> int:
    """The bytes of a stream that an attempt left."""
    [file] = folder.iterdir()
    return PartialPart.left(file).size


def test_it_goes_on_where_the_connection_was_lost(
    part: PartFile, source: Source, connection: Connection, tmp_path: Path
) -> None:
    source.cuts = [100, 2 * MIB, 0]
    manifest = fetch_part(connection, part.manifest.id, tmp_path / "here")
    assert manifest == part.manifest == verify_part(tmp_path / "here")
    assert [place.name for place in tmp_path.iterdir()] == ["here"]
    assert starts(source)[:2] == [0, 0], "without its head nothing is retained"
    assert 0 < starts(source)[2] == starts(source)[3] <= 2 * MIB


def test_what_came_is_continued_by_another_process(
    part: PartFile, source: Source, connection: Connection, tmp_path: Path
) -> None:
    source.cuts = [3 * MIB]
    with pytest.raises(Unavailable, match="cannot be reached"):
        fetch_part(connection, part.manifest.id, tmp_path / "here", attempts=1)
    come = bytes_left(tmp_path)
    assert fetch_part(connection, part.manifest.id, tmp_path / "here") == part.manifest
    assert starts(source)[-1] == come >= MIB
    assert verify_part(tmp_path / "here") == part.manifest
    assert [place.name for place in tmp_path.iterdir()] == ["here"]


def test_another_stream_is_begun_anew(
    part: PartFile, stream: bytes, source: Source, connection: Connection, tmp_path: Path
) -> None:
    source.cuts = [3 * MIB]
    with pytest.raises(Unavailable):
        fetch_part(connection, part.manifest.id, tmp_path / "here", attempts=1)
    [left] = tmp_path.iterdir()
    left.rename(left.with_name(f"here.{'0' * 32}.partial"))
    assert fetch_part(connection, part.manifest.id, tmp_path / "here") == part.manifest
    assert [place.name for place in tmp_path.iterdir()] == ["here"]


def test_damage_on_the_way_leaves_nothing(
    part: PartFile, stream: bytes, source: Source, connection: Connection, tmp_path: Path
) -> None:
    source.data = stream[:-1] + bytes([stream[-1] ^ 1])
    with pytest.raises(Corrupt) as caught:
        fetch_part(connection, part.manifest.id, tmp_path / "here")
    assert caught.value.kind == "upload_damaged"
    assert not list(tmp_path.iterdir())


def test_another_part_than_requested_is_not_taken(connection: Connection, tmp_path: Path) -> None:
    with pytest.raises(Corrupt) as caught:
        fetch_part(connection, "0" * 32, tmp_path / "here")
    assert caught.value.kind == "part_other"
    assert not list(tmp_path.iterdir())


def test_a_part_that_is_too_large_is_not_taken(
    part: PartFile, stream: bytes, connection: Connection, tmp_path: Path
) -> None:
    with pytest.raises(Invalid) as caught:
        fetch_part(connection, part.manifest.id, tmp_path / "here", bytes_max=len(stream) - 1)
    assert caught.value.kind == "part_too_large"
    assert not list(tmp_path.iterdir())


@contextmanager
def files_of(size: int) -> Iterator[None]:
    """This process may make no larger files; the system reports it as it does a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_fills_leaves_what_is_continued_later(
    part: PartFile, source: Source, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SmallDisk(tmp_path / "disk") as disk:
        if disk.refused:
            pytest.skip(disk.refused)
        disk.fill(2 * MIB + 4_321)
        with monkeypatch.context() as patch, pytest.raises(Unavailable) as caught:
            patch.setattr(transfer, "check_room", lambda _folder, _size: None)  # others take it a moment later
            fetch_part(connection, part.manifest.id, disk.folder / "parts" / "here")
        assert caught.value.kind == "disk_full"
        assert len(source.ranges) == 1, "a full disk is no lost connection"
        come = bytes_left(disk.folder / "parts")
        disk.empty()
        assert fetch_part(connection, part.manifest.id, disk.folder / "parts" / "here") == part.manifest
        assert starts(source)[-1] == come > MIB
        assert verify_part(disk.folder / "parts" / "here") == part.manifest


def test_a_file_that_may_not_be_so_large_is_reported_like_a_full_disk(
    part: PartFile, source: Source, connection: Connection, tmp_path: Path
) -> None:
    with files_of(2 * MIB + 4_321), pytest.raises(Unavailable) as caught:
        fetch_part(connection, part.manifest.id, tmp_path / "here")
    assert (caught.value.kind, len(source.ranges)) == ("disk_full", 1)
    assert fetch_part(connection, part.manifest.id, tmp_path / "here") == part.manifest
    assert [place.name for place in tmp_path.iterdir()] == ["here"]
