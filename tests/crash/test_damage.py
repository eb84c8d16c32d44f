"""Damaged files: each is named, quarantined where it can be had again, and never skipped in silence."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.clock import ManualClock
from millpond.errors import Corrupt, Invalid
from millpond.kernel.steps import listening
from millpond.testing.faults import flip_byte, truncate
from tests.harness.rows import canonical_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from millpond import Pond
    from millpond.maps.parts.part import PartFile

PART_FILES = ("data.mdb", "manifest.json", "touched.arrow")


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond", clock=ManualClock(now=1)) as opened:
        for name in ("one", "two"):
            opened.create_map(name, kind="state", value="string")
            opened.map(name).load({"key": ["old"], "value": ["value"]})
        yield opened


def part_of(pond: Pond, name: str, key: str) -> list[PartFile]:
    writer = pond.part_writer(name)
    writer.write(canonical_of(pond.map(name).definition, [((key,), "v")]))
    return writer.finish()


def answers(pond: Pond, key: str) -> tuple[object, object]:
    return pond.map("one").get(key), pond.map("two").get(key)


def damage_once(pond: Pond, at: str, act: Callable[[Path], None], file: str) -> Callable[[str], None]:
    """A listener that does `act` to a file of the first part that is on its way, at the first step of that name."""
    done: list[str] = []

    def listen(step: str) -> None:
        if step == at and not done:
            done.append(step)
            first, *_ = pond.loads.queue.parts()
            act(pond.loads.places.part(first.part) / file)

    return listen


@pytest.mark.parametrize("file", PART_FILES)
def test_a_part_that_is_damaged_before_it_is_handed_over_is_refused_and_nothing_is_entered(
    pond: Pond, file: str
) -> None:
    parts = part_of(pond, "one", "new") + part_of(pond, "two", "new")
    [place] = (pond.folder / "writer").glob(f"*/part-00000/{file}" if len(parts) == 1 else f"*{_id(parts[1])}/*/{file}")
    flip_byte(place, 20)
    with pytest.raises(Corrupt) as caught:
        pond.commit_load(parts)
    assert (caught.value.values["folder"], caught.value.values["file"]) == (place.parent, place.name)
    assert answers(pond, "new") == (None, None)
    assert pond.map("one").info()["parts_queued"] == 0


def test_a_manifest_that_tells_another_number_is_damaged(pond: Pond) -> None:
    parts = part_of(pond, "one", "new")
    [place] = (pond.folder / "writer").glob("*/part-00000/manifest.json")
    place.write_text(place.read_text().replace('"rows": 1', '"rows": 3'))
    with pytest.raises(Corrupt, match="damaged"):
        pond.commit_load(parts)
    assert answers(pond, "new") == (None, None)


def _id(part: PartFile) -> str:
    return part.folder.rsplit("-", 2)[1].split("/")[0]


@pytest.mark.sample(2)
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("file", PART_FILES)
def test_a_part_that_is_damaged_while_queued_is_quarantined_with_its_reason(pond: Pond, file: str, cut: bool) -> None:
    parts = part_of(pond, "one", "new") + part_of(pond, "two", "new")

    def harm(found: Path) -> None:
        if cut:
            truncate(found, found.stat().st_size // 2)
        else:
            flip_byte(found, found.stat().st_size // 2)

    staged = damage_once(pond, "load.committed", harm, file)
    with listening(staged), pytest.raises(Corrupt) as caught:
        pond.commit_load(parts)
    assert caught.value.kind == "part_quarantined"
    [quarantined] = (pond.folder / "quarantine").iterdir()
    assert str(quarantined) in str(caught.value)
    assert file in json.loads((quarantined / "reason.json").read_text())["reason"]
    assert sorted(answers(pond, "new"), key=str) == [None, "v"], "the other map has its part"
    assert answers(pond, "old") == ("value", "value")
    report = pond.verify()
    assert [problem.subject for problem in report.problems] == ["quarantine"]
    # Those behind it are not held up, and the same rows may be loaded again.
    pond.commit_load(part_of(pond, "one", "new") + part_of(pond, "two", "new") + part_of(pond, "one", "next"))
    assert answers(pond, "new") == ("v", "v")
    assert pond.map("one").get("next") == "v"


def test_a_part_whose_quarantine_was_cut_off_keeps_its_reason(tmp_path: Path) -> None:
    class Crash(BaseException):
        pass

    def crash(step: str) -> None:
        if step == "merge.quarantine_moved":
            raise Crash

    with millpond.open(tmp_path / "pond", clock=ManualClock(now=1)) as pond:
        pond.create_map("one", kind="state", value="string")
        parts = part_of(pond, "one", "new")
        harm = damage_once(pond, "load.committed", lambda found: flip_byte(found, -1), "data.mdb")
        with listening(harm), listening(crash), pytest.raises(Crash):
            pond.commit_load(parts)
    with millpond.open(tmp_path / "pond", clock=ManualClock(now=1, ids=100)) as pond:
        [quarantined] = (pond.folder / "quarantine").iterdir()
        assert "data.mdb" in json.loads((quarantined / "reason.json").read_text())["reason"]
        assert pond.map("one").info()["parts_queued"] == 0
        assert len(pond.verify().problems) == 1


def test_the_quarantine_of_a_map_goes_with_it(pond: Pond) -> None:
    parts = [*part_of(pond, "one", "new"), *part_of(pond, "two", "new")]
    harm = damage_once(pond, "load.committed", lambda found: flip_byte(found, -1), "data.mdb")
    with listening(harm), pytest.raises(Corrupt):
        pond.commit_load(parts)
    [quarantined] = pond.parts.quarantined()
    folder = pond.folder / "quarantine"
    pond.drop_map("two" if quarantined.map == "one" else "one")
    assert len(list(folder.iterdir())) == 1
    pond.drop_map(quarantined.map)
    assert not list(folder.iterdir())


def only(folder: Path, pattern: str) -> Path:
    [found] = folder.glob(pattern)
    return found


def cut_short(file: Path) -> None:
    truncate(file, 4096)


def lose_both_heads(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.write(b"\xff" * 8192)


@pytest.mark.parametrize("harm", [cut_short, lose_both_heads])
def test_a_damaged_shard_is_named_and_the_other_maps_go_on(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        for name in ("one", "two"):
            pond.create_map(name, kind="state", value="string").load({"key": ["old"], "value": ["value"]})
    file = only(tmp_path / "pond", "shards/one.*/0*/data.mdb")
    harm(file)
    with millpond.open(tmp_path / "pond") as pond:
        with pytest.raises(Corrupt) as caught:
            pond.map("one").get("old")
        assert str(file) in str(caught.value)
        assert pond.map("two").get("old") == "value"
        report = pond.verify()
        assert [problem.subject for problem in report.problems] == ["shard"]
        assert report.problems[0].place in str(file)


@pytest.mark.parametrize("content", [b"000009\n", b"\xff\xfe", b"", b"../two\n"])
def test_a_damaged_pointer_is_named_and_no_empty_map_takes_the_place_of_the_full_one(
    tmp_path: Path, content: bytes
) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        pond.create_map("one", kind="state", value="string").load({"key": ["old"], "value": ["value"]})
    pointer = only(tmp_path / "pond", "shards/one.*/current")
    pointer.write_bytes(content)
    with millpond.open(tmp_path / "pond") as pond:
        with pytest.raises(Corrupt) as caught:
            pond.map("one").get("old")
        assert str(pointer) in str(caught.value)
        with pytest.raises(Corrupt):
            pond.map("one").load({"key": ["new"], "value": ["value"]})
        assert not pond.verify().ok


@pytest.mark.parametrize("content", [b"\xff", b"", b"[]", b"{}", b'{"format": 99}'])
def test_a_damaged_pond_is_named(tmp_path: Path, content: bytes) -> None:
    with millpond.open(tmp_path / "pond"):
        pass
    (tmp_path / "pond" / "pond.json").write_bytes(content)
    with pytest.raises((Corrupt, Invalid)) as caught:
        millpond.open(tmp_path / "pond")
    assert str(tmp_path / "pond") in str(caught.value)


def test_a_damaged_space_is_named(tmp_path: Path) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        pond.create_map("one", kind="state")
    lose_both_heads(tmp_path / "pond" / "space" / "data.mdb")
    with pytest.raises(Corrupt, match="space"):
        millpond.open(tmp_path / "pond")


@pytest.mark.sample(1)
@pytest.mark.parametrize("pattern", ["manifests/*", "indexes/*", "ranges/*"])
def test_a_damaged_snapshot_is_quarantined_and_frozen_anew(pond: Pond, pattern: str) -> None:
    target = pond.map("one")
    assert target.lookup(["old"]).to_pylist() == ["value"]
    target.close()
    file = only(pond.folder, f"snapshots/one.*/{pattern}")
    flip_byte(file, file.stat().st_size // 2)
    report = pond.verify()
    assert [file.name in problem.place for problem in report.problems] == [True]
    assert pond.map("one").lookup(["old", "none"]).to_pylist() == ["value", None]
    assert pond.verify().ok
