"""Damaged files: each is named, quarantined where it can be had again, and never skipped in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.clock import ManualClock
from millpond.errors import Corrupt, Invalid
from millpond.kernel.steps import listening
from millpond.maps.parts.tail import DATA, MANIFEST
from millpond.testing.faults import flip_byte, truncate
from tests.harness.part_pieces import PIECES, bounds_of, flip_piece, pieces_of, put_pieces, quarantined_in
from tests.harness.rows import canonical_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from millpond import Pond
    from millpond.maps.parts.part import PartFile


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


def damage_once(pond: Pond, at: str, act: Callable[[Path], None]) -> Callable[[str], None]:
    """A listener that does `act` to the first part that is on its way, at the first step of that name."""
    done: list[str] = []

    def listen(step: str) -> None:
        if step == at and not done:
            done.append(step)
            first, *_ = pond.loads.queue.parts()
            act(pond.loads.places.part(first.part))

    return listen


@pytest.mark.parametrize("piece", PIECES)
def test_a_part_that_is_damaged_before_it_is_handed_over_is_refused_and_nothing_is_entered(
    pond: Pond, piece: str
) -> None:
    parts = part_of(pond, "one", "new") + part_of(pond, "two", "new")
    place = parts[1].file
    flip_piece(place, piece, 0.5)
    with pytest.raises(Corrupt) as caught:
        pond.commit_load(parts)
    assert (caught.value.values["file"], caught.value.values["piece"]) == (place, piece)
    assert answers(pond, "new") == (None, None)
    assert pond.map("one").info()["parts_queued"] == 0


def test_a_manifest_that_tells_another_number_is_damaged(pond: Pond) -> None:
    parts = part_of(pond, "one", "new")
    place = parts[0].file
    pieces = pieces_of(place)
    put_pieces(place, pieces | {MANIFEST: pieces[MANIFEST].replace(b'"rows": 1', b'"rows": 3')})
    with pytest.raises(Corrupt, match="damaged"):
        pond.commit_load(parts)
    assert answers(pond, "new") == (None, None)


@pytest.mark.sample(2)
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("piece", PIECES)
def test_a_part_that_is_damaged_while_queued_is_quarantined_with_its_reason(pond: Pond, piece: str, cut: bool) -> None:
    parts = part_of(pond, "one", "new") + part_of(pond, "two", "new")

    def harm(found: Path) -> None:
        if cut:
            truncate(found, sum(bounds_of(found, piece)) // 2)
        else:
            flip_piece(found, piece, 0.5)

    staged = damage_once(pond, "load.committed", harm)
    with listening(staged), pytest.raises(Corrupt) as caught:
        pond.commit_load(parts)
    assert caught.value.kind == "part_quarantined"
    quarantined = quarantined_in(pond.folder)
    assert str(quarantined) in str(caught.value)
    assert f"piece={'tail' if cut else piece}" in json.loads(Path(f"{quarantined}.json").read_text())["reason"]
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
        harm = damage_once(pond, "load.committed", lambda found: flip_piece(found, DATA, 0.9))
        with listening(harm), listening(crash), pytest.raises(Crash):
            pond.commit_load(parts)
    with millpond.open(tmp_path / "pond", clock=ManualClock(now=1, ids=100)) as pond:
        reason = Path(f"{quarantined_in(pond.folder)}.json")
        assert "piece=data" in json.loads(reason.read_text())["reason"]
        assert pond.map("one").info()["parts_queued"] == 0
        assert len(pond.verify().problems) == 1


def test_the_quarantine_of_a_map_goes_with_it(pond: Pond) -> None:
    parts = [*part_of(pond, "one", "new"), *part_of(pond, "two", "new")]
    harm = damage_once(pond, "load.committed", lambda found: flip_piece(found, DATA, 0.9))
    with listening(harm), pytest.raises(Corrupt):
        pond.commit_load(parts)
    [quarantined] = pond.parts.quarantined()
    folder = pond.folder / "quarantine"
    pond.drop_map("two" if quarantined.map == "one" else "one")
    assert len(list(folder.iterdir())) == 2, "the part, and the reason"
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
