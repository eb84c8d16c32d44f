"""Bundles: the same bytes for the same part, and nothing gets in that is no part."""

from __future__ import annotations

import io
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import Corrupt, Invalid, MillpondError
from millpond.maps.model.definition import Kind, MapDefinition, parse_value_type
from millpond.maps.parts import bundle as bundles
from millpond.maps.parts.bundle import (
    MEMBERS,
    bundle_size,
    open_bundle_stream,
    unpack_bundle,
    write_bundle,
)
from millpond.maps.parts.part import PartFile, PartWriter, verify_part
from millpond.testing.rows import canonical_of

MAP = MapDefinition(name="m", kind=Kind.STATE, incarnation="0" * 16, value=parse_value_type("long"))


def sealed(folder: Path, count: int = 300) -> PartFile:
    writer = PartWriter(MAP, folder)
    writer.write(canonical_of(MAP, [((f"k{number:05d}",), number) for number in range(count)]))
    [part] = writer.finish()
    return part


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> PartFile:
    return sealed(tmp_path_factory.mktemp("part"))


@pytest.fixture(scope="module")
def bundle(part: PartFile) -> bytes:
    return b"".join(open_bundle_stream(Path(part.folder)))


def test_a_part_comes_back_as_it_was(part: PartFile, bundle: bytes, tmp_path: Path) -> None:
    sink = io.BytesIO()
    assert write_bundle(Path(part.folder), sink) == len(bundle) == bundle_size(Path(part.folder))
    assert sink.getvalue() == bundle
    file = tmp_path / "bundle.zip"
    file.write_bytes(bundle)
    assert unpack_bundle(file, tmp_path / "there") == part.manifest
    for name in MEMBERS:
        assert (tmp_path / "there" / name).read_bytes() == (Path(part.folder) / name).read_bytes()


def test_it_is_a_zip_like_any_other(bundle: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == list(MEMBERS)
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_STORED}
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_its_bytes_depend_on_the_part_alone(part: PartFile, bundle: bytes, tmp_path: Path) -> None:
    file = tmp_path / "b.zip"
    file.write_bytes(bundle)
    unpack_bundle(file, tmp_path / "again")
    assert b"".join(open_bundle_stream(tmp_path / "again")) == bundle


@given(data=st.data())
def test_any_piece_of_it_can_be_had(part: PartFile, bundle: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(bundle)))
    stop = data.draw(st.none() | st.integers(0, len(bundle) + 10))
    assert b"".join(open_bundle_stream(Path(part.folder), start, stop)) == bundle[start:stop]


@pytest.mark.parametrize("narrow_max", [10, 1000, 20_000])
def test_large_parts_are_written_with_wide_sizes(
    part: PartFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, narrow_max: int
) -> None:
    monkeypatch.setattr(bundles, "_NARROW_MAX", narrow_max)
    file = tmp_path / "wide.zip"
    file.write_bytes(b"".join(open_bundle_stream(Path(part.folder))))
    assert file.stat().st_size == bundle_size(Path(part.folder))
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
    assert unpack_bundle(file, tmp_path / "there") == part.manifest


def test_deflated_members_are_taken(part: PartFile, tmp_path: Path) -> None:
    file = zipped(tmp_path, lambda archive: put_all(archive, part, zipfile.ZIP_DEFLATED))
    assert unpack_bundle(file, tmp_path / "there") == part.manifest


# -- what is no bundle --------------------------------------------------------------------------------


def zipped(folder: Path, fill: Callable[[zipfile.ZipFile], None]) -> Path:
    file = folder / "made.zip"
    with zipfile.ZipFile(file, "w") as archive:
        fill(archive)
    return file


def put_all(archive: zipfile.ZipFile, part: PartFile, how: int = zipfile.ZIP_STORED) -> None:
    for name in MEMBERS:
        archive.write(Path(part.folder) / name, name, how)


def refused(file: Path, target: Path, bytes_max: int = 1 << 30) -> MillpondError:
    """The error; and nothing may have been written elsewhere."""
    before = {place for place in file.parent.rglob("*") if target not in (place, *place.parents)}
    with pytest.raises(MillpondError) as raised:
        unpack_bundle(file, target, bytes_max)
    assert {place for place in file.parent.rglob("*") if target not in (place, *place.parents)} == before
    return raised.value


@pytest.mark.parametrize(
    "names",
    [
        (),
        MEMBERS[:2],
        (*MEMBERS, "extra.txt"),
        (*MEMBERS, "../outside"),
        ("manifest.json", "../data.mdb", "touched.arrow"),
        ("manifest.json", "/tmp/data.mdb", "touched.arrow"),
        ("manifest.json", "data.mdb/", "touched.arrow"),
        ("manifest.json", "sub/data.mdb", "touched.arrow"),
        ("MANIFEST.JSON", "data.mdb", "touched.arrow"),
        ("manifest.json", "data.mdb\0.txt", "touched.arrow"),
    ],
)
def test_only_the_three_files_get_in(tmp_path: Path, names: tuple[str, ...]) -> None:
    def fill(archive: zipfile.ZipFile) -> None:
        for name in names:
            info = zipfile.ZipInfo("x")
            info.filename = name
            archive.writestr(info, b"x")

    error = refused(zipped(tmp_path, fill), tmp_path / "there")
    assert (type(error), error.kind) == (Invalid, "bundle_members")
    assert not (tmp_path / "there").exists(), "checked before anything is written"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_no_file_comes_twice(part: PartFile, tmp_path: Path) -> None:
    def fill(archive: zipfile.ZipFile) -> None:
        put_all(archive, part)
        archive.writestr("data.mdb", b"another")

    assert refused(zipped(tmp_path, fill), tmp_path / "there").kind == "bundle_members"


def test_no_link_gets_in(part: PartFile, tmp_path: Path) -> None:
    def fill(archive: zipfile.ZipFile) -> None:
        for name in MEMBERS:
            info = zipfile.ZipInfo(name)
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, "/etc/passwd")

    assert refused(zipped(tmp_path, fill), tmp_path / "there").kind == "bundle_members"


def test_a_bomb_is_seen_before_it_is_unpacked(tmp_path: Path) -> None:
    def fill(archive: zipfile.ZipFile) -> None:
        for name in MEMBERS:
            size = 10 if name == "manifest.json" else 30 << 20
            archive.writestr(name, bytes(size), zipfile.ZIP_DEFLATED)

    file = zipped(tmp_path, fill)
    assert file.stat().st_size < 100_000
    error = refused(file, tmp_path / "there", bytes_max=1 << 20)
    assert (type(error), error.kind) == (Invalid, "part_too_large")
    assert not (tmp_path / "there").exists()


def test_a_bomb_that_lies_about_its_size_is_stopped(tmp_path: Path) -> None:
    def fill(archive: zipfile.ZipFile) -> None:
        for name in MEMBERS:
            archive.writestr(name, bytes(30 << 20), zipfile.ZIP_DEFLATED)

    file = zipped(tmp_path, fill)
    # what it declares, in its headers and its directory
    file.write_bytes(file.read_bytes().replace((30 << 20).to_bytes(4, "little"), (100).to_bytes(4, "little")))
    error = refused(file, tmp_path / "there", bytes_max=1 << 20)
    assert isinstance(error, Corrupt)
    assert sum(place.stat().st_size for place in (tmp_path / "there").glob("*")) <= 300


def test_a_page_of_text_is_no_manifest_when_it_is_a_book(tmp_path: Path, part: PartFile) -> None:
    def fill(archive: zipfile.ZipFile) -> None:
        archive.writestr("manifest.json", bytes(5 << 20), zipfile.ZIP_DEFLATED)
        for name in MEMBERS[1:]:
            archive.write(Path(part.folder) / name, name)

    assert refused(zipped(tmp_path, fill), tmp_path / "there").kind == "part_too_large"


@given(cut=st.floats(0, 0.999))
def test_a_zip_that_ends_early_is_no_part(bundle: bytes, tmp_path_factory: pytest.TempPathFactory, cut: float) -> None:
    folder = tmp_path_factory.mktemp("cut")
    (folder / "b.zip").write_bytes(bundle[: int(len(bundle) * cut)])
    assert isinstance(refused(folder / "b.zip", folder / "there"), Corrupt)


@given(data=st.data())
def test_no_damage_goes_unseen(
    part: PartFile, bundle: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A flipped bit either makes no difference to what is unpacked, or is refused."""
    place = data.draw(st.integers(0, len(bundle) - 1))
    damaged = bytearray(bundle)
    damaged[place] ^= 1 << data.draw(st.integers(0, 7))
    folder = tmp_path_factory.mktemp("flip")
    (folder / "b.zip").write_bytes(damaged)
    try:
        manifest = unpack_bundle(folder / "b.zip", folder / "there")
    except (Corrupt, Invalid):
        return
    assert manifest == part.manifest
    assert verify_part(folder / "there") == part.manifest


def test_a_part_that_lacks_a_file_is_named(part: PartFile, tmp_path: Path) -> None:
    whole = sealed(tmp_path / "w")
    (Path(whole.folder) / "touched.arrow").unlink()
    with pytest.raises(Corrupt, match=r"touched\.arrow"):
        bundle_size(Path(whole.folder))
