"""Uploads on a node: who may send, their room on the disk, and their expiry."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import pytest

from millpond.clock import ManualClock
from millpond.errors import Invalid, Unavailable
from millpond.maps.model.definition import MapDefinition
from millpond.maps.parts.part import PartFile
from millpond.maps.parts.stream import PartStream
from millpond.nodes.limits import LIMITS
from millpond.nodes.uploads import receiver as receiving
from millpond.nodes.uploads.receiver import Receiver
from millpond.nodes.uploads.session import UploadOffer, UploadSession, UploadState
from millpond.pond import open_pond
from tests.nodes.conftest import Served
from tests.nodes.test_uploads import Writer, sealed

Coming: TypeAlias = tuple[Receiver, PartFile, UploadSession]


def test_what_nobody_enters_expires(tmp_path: Path) -> None:
    clock = ManualClock(1000)
    with open_pond(tmp_path / "pond", serve=True, clock=clock) as pond:
        definition = pond.create_map("m", kind="state", value="long").definition
        receiver = Receiver(pond, LIMITS, clock, decides=lambda: True)
        parts = [sealed(definition, tmp_path / f"w{n}", first=n * 1000) for n in range(3)]
        for part in parts[:2]:
            receive(receiver, part)
        arriving = receiver.begin(offer_of(parts[2]))
        assert arriving is not None
        arriving.write([begin_of(parts[2])])
        clock.advance(3_000_000)
        assert receiver.expire(clock.now_ms()) == 0
        assert receiver.uploaded(parts[0].manifest.id) is not None, "requested, it is young again"
        clock.advance(1_000_000)
        assert receiver.expire(clock.now_ms()) == 1, "what is being sent is left alone"
        assert [receiver.state(part.manifest.id).state for part in parts] == ["here", "absent", "partial"]
        arriving.leave()
        clock.advance(4_000_000)
        assert receiver.expire(clock.now_ms()) == 2

        receive(receiver, parts[0])
        again = Receiver(pond, LIMITS, clock, decides=lambda: True)
        clock.advance(4_000_000)
        assert again.expire(clock.now_ms()) == 0, "its age counts from when the node started"
        clock.advance(4_000_000)
        assert again.expire(clock.now_ms()) == 1


def test_uploads_of_an_earlier_version_are_removed_when_the_node_starts(tmp_path: Path) -> None:
    with open_pond(tmp_path / "pond", serve=True, clock=ManualClock()) as pond:
        definition = pond.create_map("m", kind="state", value="long").definition
        part = sealed(definition, tmp_path / "written", first=0)
        for name in (part.manifest.id, f"{part.manifest.id}.{'0' * 32}"):
            (tmp_path / "pond" / "uploads" / name).mkdir(parents=True)
            (tmp_path / "pond" / "uploads" / name / "manifest.json").write_bytes(b"{}")
        receiver = Receiver(pond, LIMITS, ManualClock(), decides=lambda: True)
        assert not list(receiver.folder.iterdir())
        receive(receiver, part)
        assert receiver.state(part.manifest.id) == UploadState("here")


def offer_of(part: PartFile, offset: int | None = 0) -> UploadOffer:
    stream = PartStream(part.file)
    return UploadOffer(part.manifest.id, part.manifest.map, stream.size, stream.head.checksum, offset)


def begin_of(part: PartFile) -> bytes:
    """The head of its stream and some bytes more."""
    stream = PartStream(part.file)
    return b"".join(stream.chunks(0, stream.head.size + 100))


def receive(receiver: Receiver, part: PartFile, offset: int = 0) -> None:
    arriving = receiver.begin(offer_of(part, offset))
    assert arriving is not None
    for chunk in PartStream(part.file).chunks(offset):
        arriving.write([chunk])
    assert arriving.finish().state == "here"
    arriving.leave()


@pytest.fixture
def coming(tmp_path: Path) -> Iterator[Coming]:
    """A part that somebody began to send."""
    clock = ManualClock(1000)
    with open_pond(tmp_path / "pond", serve=True, clock=clock) as pond:
        part = sealed(pond.create_map("m", kind="state", value="long").definition, tmp_path / "w")
        receiver = Receiver(pond, LIMITS, clock, decides=lambda: True)
        first = receiver.begin(offer_of(part))
        assert first is not None
        yield receiver, part, first


def test_one_at_a_time_sends_a_part(coming: Coming, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver, part, first = coming
    monkeypatch.setattr(receiving, "TURN_SECONDS", 0.05)
    with pytest.raises(Unavailable) as busy:
        receiver.begin(offer_of(part))
    assert busy.value.kind == "upload_busy"
    assert not receiver.discard(part.manifest.id)
    first.write([begin_of(part)])
    monkeypatch.setattr(receiving, "LEAVING_SECONDS", 0.05)
    assert receiver.state_between(part.manifest.id) == UploadState("partial", len(begin_of(part))), (
        "it is not waited for long"
    )
    first.leave()
    receive(receiver, part)
    assert receiver.begin(offer_of(part)) is None


def test_an_upload_of_which_nothing_is_left_is_forgotten_and_still_has_one_sender(tmp_path: Path) -> None:
    with open_pond(tmp_path / "pond", serve=True) as pond:
        part = sealed(pond.create_map("m", kind="state", value="long").definition, tmp_path / "w")
        receiver = Receiver(pond, LIMITS, pond.clock, decides=lambda: True)
        sending: list[UploadSession] = []

        def send(_number: int) -> None:
            for _ in range(20):
                session = receiver.begin(offer_of(part))
                assert session is not None
                sending.append(session)
                session.write([begin_of(part)])
                assert sending == [session]
                sending.remove(session)
                session.leave(Invalid("of no use", kind="upload_length"))

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(send, range(4)))
        assert receiver._uploads == {}
        receive(receiver, part)
        assert part.manifest.id in receiver._uploads, "here, it can expire"
        (receiver.folder / part.manifest.id).unlink()
        receiver.forget([part.manifest.id, "0" * 32])
        assert receiver._uploads == {}


def test_a_writer_that_lost_its_connection_learns_of_its_last_bytes(coming: Coming) -> None:
    receiver, part, first = coming
    with ThreadPoolExecutor(1) as another:
        pending = another.submit(receiver.state_between, part.manifest.id)
        first.write([begin_of(part)])
        first.leave()
        assert pending.result() == UploadState("partial", len(begin_of(part)))


def test_who_follows_does_not_decide_about_maps(tmp_path: Path) -> None:
    clock = ManualClock(1000)
    definition = MapDefinition.from_dict(
        {"name": "m", "kind": "state", "incarnation": "0" * 16, "value": "long", "scheme": "auto"}
    )
    part = sealed(definition, tmp_path / "w")
    with open_pond(tmp_path / "pond", serve=True, clock=clock) as pond:
        receiver = Receiver(pond, LIMITS, clock, decides=lambda: False)
        receive(receiver, part)
        assert receiver.state(part.manifest.id).state == "here", "the map may come with the log a moment later"


def test_what_others_are_sending_has_its_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Callable[..., Served]
) -> None:
    """Two uploads, and room for one and a half."""
    writer = Writer(serve(), tmp_path)
    first, data = writer.part(count=20_000)
    second, _ = writer.part(first=20_000, count=20_000)
    receiver = writer.node.node.receiver
    free = receiving.DISK_SPARE_BYTES + 3 * len(data) // 2
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free))
    coming = receiver.begin(offer_of(first))
    assert coming is not None
    with pytest.raises(Unavailable) as full:
        receiver.begin(offer_of(second))
    assert full.value.kind == "disk_full"
    coming.write([data[: 3 * len(data) // 4]])
    other = receiver.begin(offer_of(second))
    assert other is not None, "most of the first has come, which the disk knows"
    other.leave()
    coming.leave()
