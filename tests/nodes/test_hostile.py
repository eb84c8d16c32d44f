"""Bundles that somebody made to do harm: each is refused with its reason, before anything of it is written."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import Corrupt, Invalid, Unavailable
from millpond.maps.parts import bundle
from millpond.maps.parts.bundle import MEMBERS, unpack_bundle
from millpond.maps.parts.part import PartFile
from tests.nodes.test_bundles import sealed

WIDE = 0xFFFFFFFF
LINK, FOLDER, DEVICE = 0o120777, 0o040755, 0o060644


@dataclass(frozen=True)
class Made:
    """A member as a forger writes it: what the header says, what the directory says, and the bytes."""

    name: bytes
    body: bytes
    method: int = zipfile.ZIP_STORED
    flags: int = 0
    mode: int = 0o100644
    header_name: bytes | None = None
    header_size: int | None = None
    header_method: int | None = None
    size: int | None = None
    packed: int | None = None
    at: int | None = None
    extra: bytes = b""


def forged(members: list[Made], *, count: int | None = None, tail: bytes = b"", start: int | None = None) -> bytes:
    """A zip of them, in which nothing is checked."""
    out, entries = b"", b""
    for member in members:
        raw = zlib.compress(member.body, 9, -15) if member.method == zipfile.ZIP_DEFLATED else member.body
        crc, place = zlib.crc32(member.body), len(out)
        name = member.name if member.header_name is None else member.header_name
        size = len(member.body) if member.header_size is None else member.header_size
        method = member.method if member.header_method is None else member.header_method
        packed = size if member.method == zipfile.ZIP_STORED else len(raw)
        out += struct.pack("<4s5H3L2H", b"PK\3\4", 20, member.flags, method, 0, 33, crc, packed, size, len(name), 0)
        out += name + raw
        entries += struct.pack(
            "<4s2B5H3L5H2L", b"PK\1\2", 20, 3, 20, member.flags, member.method, 0, 33, crc,
            len(raw) if member.packed is None else member.packed,
            len(member.body) if member.size is None else member.size,
            len(member.name), len(member.extra), 0, 0, 0, (member.mode << 16) & WIDE,
            place if member.at is None else member.at,
        ) + member.name + member.extra  # fmt: skip
    total = len(members) if count is None else count
    begin = len(out) if start is None else start
    return out + entries + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, total, total, len(entries), begin, 0) + tail


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> PartFile:
    return sealed(tmp_path_factory.mktemp("part"))


@pytest.fixture(scope="module")
def sound(part: PartFile) -> list[Made]:
    return [Made(name.encode(), (Path(part.folder) / name).read_bytes()) for name in MEMBERS]


Forge = Callable[[list[Made]], list[Made]]


def every(**changed: object) -> Forge:
    """Change all members."""
    return lambda sound: [replace(member, **changed) for member in sound]  # type: ignore[arg-type]


def data(**changed: object) -> Forge:
    """Change `data.mdb`."""
    return lambda sound: [sound[0], replace(sound[1], **changed), sound[2]]  # type: ignore[arg-type]


HOSTILE: dict[str, tuple[Forge, type[Exception]]] = {
    "a path that leaves the folder": (data(name=b"../data.mdb"), Invalid),
    "a path that goes in and out": (data(name=b"x/../data.mdb"), Invalid),
    "an absolute path": (data(name=b"/etc/cron.d/data.mdb"), Invalid),
    "a path of Windows": (data(name=b"..\\data.mdb"), Invalid),
    "a drive of Windows": (data(name=b"C:data.mdb"), Invalid),
    "a name that ends early": (data(name=b"data.mdb\0/../../x"), Invalid),
    "a name in no alphabet": (data(name=b"data.mdb\xff\xfe", flags=0x800), Corrupt),
    "no name": (data(name=b""), Invalid),
    "a link": (data(mode=LINK, body=b"/etc/passwd"), Invalid),
    "a folder": (data(mode=FOLDER), Invalid),
    "a device": (data(mode=DEVICE), Invalid),
    "a secret": (data(flags=1), Invalid),
    "another way of packing": (data(method=12, header_method=12), Invalid),
    "a way of packing that nobody knows": (data(method=77), Invalid),
    "one member too many": (lambda sound: [*sound, Made(b"extra.txt", b"x")], Invalid),
    "one too few": (lambda sound: sound[:2], Invalid),
    "one twice": (lambda sound: [*sound, sound[1]], Invalid),
    "one twice in place of another": (lambda sound: [sound[0], sound[1], sound[1]], Invalid),
    "none": (lambda _: [], Invalid),
    "a header that names another file": (data(header_name=b"evil.mdb"), Corrupt),
    "a header of another size": (data(header_size=7), Corrupt),
    "a header that packs otherwise": (data(header_method=8), Corrupt),
    "two sizes of what is stored": (data(size=10), Invalid),
    "all in one place": (every(at=0), Corrupt),
    "one within another": (lambda sound: [*sound[:2], replace(sound[2], at=sound_at(sound))], Corrupt),
    "one beyond the end": (data(at=1 << 30), Corrupt),
    "more than there is": (data(size=1 << 20, packed=1 << 20, header_size=1 << 20), Corrupt),
    "a size of 64 bits that is not declared": (data(size=WIDE, packed=WIDE), Invalid),
    "a size of 64 bits that is a lie": (
        data(size=WIDE, packed=WIDE, extra=struct.pack("<HHQQ", 1, 16, 1 << 60, 1 << 60)), Invalid,
    ),
    "a size of 64 bits that is half declared": (
        data(size=WIDE, packed=WIDE, extra=struct.pack("<HHQ", 1, 8, 1 << 60)), Corrupt,
    ),
    "a place of 64 bits that is a lie": (
        data(at=WIDE, extra=struct.pack("<HHQ", 1, 8, 1 << 62)), Corrupt,
    ),
}  # fmt: skip


def sound_at(sound: list[Made]) -> int:
    """A place within the bytes of the second member."""
    return len(forged(sound[:1])) + 60


@pytest.mark.parametrize("what", HOSTILE)
def test_nothing_of_it_is_written(sound: list[Made], tmp_path: Path, what: str) -> None:
    forge, error = HOSTILE[what]
    file, target = tmp_path / "b.zip", tmp_path / "deep" / "er" / "there"
    target.parent.mkdir(parents=True)
    file.write_bytes(forged(forge(sound)))
    with pytest.raises((Corrupt, Invalid)) as raised:
        unpack_bundle(file, target, 1 << 30)
    assert isinstance(raised.value, error), raised.value
    assert raised.value.values.get("reason") or raised.value.kind == "part_too_large", "it says why"
    assert {place for place in tmp_path.rglob("*") if place.is_file()} == {file}
    assert not target.exists(), "looked at before anything is written"


def test_what_the_forger_leaves_alone_is_taken(part: PartFile, sound: list[Made], tmp_path: Path) -> None:
    """Else the tests above would prove nothing."""
    for number, forge in enumerate((every(), every(method=zipfile.ZIP_DEFLATED), lambda sound: sound[::-1])):
        file = tmp_path / f"{number}.zip"
        file.write_bytes(forged(forge(sound)))
        assert unpack_bundle(file, tmp_path / f"there{number}") == part.manifest


@pytest.mark.parametrize("count", [0, 2, 4, 60_000])
def test_a_directory_that_counts_wrong(sound: list[Made], tmp_path: Path, count: int) -> None:
    """The members are counted, whatever the directory claims."""
    file = tmp_path / "b.zip"
    file.write_bytes(forged([*sound, Made(b"extra.txt", b"x")], count=count))
    with pytest.raises((Corrupt, Invalid)):
        unpack_bundle(file, tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_a_directory_that_begins_within_the_members(sound: list[Made], tmp_path: Path) -> None:
    file = tmp_path / "b.zip"
    file.write_bytes(forged(sound, start=10))
    with pytest.raises((Corrupt, Invalid)):
        unpack_bundle(file, tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_a_bomb_that_fits_the_limit_must_fit_the_disk(
    sound: list[Made], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "b.zip"
    file.write_bytes(forged([sound[0], Made(b"data.mdb", bytes(20 << 20), zipfile.ZIP_DEFLATED), sound[2]]))
    usage = bundle.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(bundle.shutil, "disk_usage", lambda _: usage._replace(free=10 << 20))
    with pytest.raises(Unavailable) as raised:
        unpack_bundle(file, tmp_path / "there")
    assert raised.value.kind == "disk_full"
    assert not (tmp_path / "there").exists()


def make_noise(whole: bytearray, draw: st.DataObject, times: st.SearchStrategy[int]) -> None:
    """Overwrite bytes in headers, in the directory, at the end."""
    structure = [at for at in range(len(whole) - 3) if whole[at : at + 2] == b"PK"]
    for _ in range(draw.draw(times)):
        at = draw.draw(st.sampled_from(structure)) + draw.draw(st.integers(0, 46))
        noise = draw.draw(st.binary(min_size=1, max_size=8))
        whole[at : at + len(noise)] = noise


@given(draw=st.data())
def test_no_noise_gets_through(
    part: PartFile, sound: list[Made], tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject
) -> None:
    """Bytes overwritten where it hurts: in headers, in the directory, at the end. Only our own errors come out."""
    whole = bytearray(forged([replace(member, method=draw.draw(st.sampled_from([0, 8]))) for member in sound]))
    make_noise(whole, draw, st.integers(1, 4))
    folder = tmp_path_factory.mktemp("noise")
    (folder / "b.zip").write_bytes(whole)
    try:
        manifest = unpack_bundle(folder / "b.zip", folder / "there", 64 << 20)
    except (Corrupt, Invalid):
        outside = {place for place in folder.rglob("*") if folder / "there" not in (place, *place.parents)}
        assert outside == {folder / "b.zip"}
    else:
        assert manifest == part.manifest
