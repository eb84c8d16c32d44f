"""The cost of a load: its part moves once, its bytes are summed once, and little is synced."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lmdb
import pytest

from millpond.clock import ManualClock
from millpond.errors import Corrupt
from millpond.kernel.steps import listening
from millpond.maps.model.definition import MapDefinition
from millpond.maps.parts import part as parts_module
from millpond.maps.parts.part import PartFile, PartWriter, read_manifest
from millpond.maps.parts.stream import PartStream, split_streams
from millpond.maps.parts.tail import DATA
from millpond.maps.parts.verified_parts import BESIDE_ROWS_MAX, AcceptedParts
from millpond.nodes.limits import LIMITS
from millpond.nodes.tokens import ANYBODY
from millpond.nodes.uploads.commit import LoadCommit
from millpond.nodes.uploads.receiver import Receiver
from millpond.pond import open_pond
from tests.harness.part_pieces import flip_piece, pieces_of
from tests.harness.rows import canonical_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SYNCS = {
    "part": 1,
    "adopted": 1,  # the part's name in parts/
}
"""Besides those of LMDB: one commit of the space enters the load, one of the shard merges it, one ends it, two each."""


def counting(patch: pytest.MonkeyPatch, target: Any, name: str, counted: list[str]) -> None:
    real: Callable[..., Any] = getattr(target, name)

    def spy(*arguments: Any, **options: Any) -> Any:
        result = real(*arguments, **options)
        counted.append(str(arguments[0]))
        return result

    patch.setattr(target, name, spy)


@pytest.mark.parametrize("retention", [None, "7d"], ids=["not-retained", "retained"])
def test_a_load_moves_its_part_once_and_syncs_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retention: str | None
) -> None:
    with open_pond(tmp_path / "pond", clock=ManualClock(), maps_part_retention=retention) as pond:
        target = pond.create_map("m", kind="state", value="long")
        target.load({"key": ["a"], "value": [1]})
        syncs: list[str] = []
        renames: list[str] = []
        sums: list[str] = []
        with monkeypatch.context() as patch:
            counting(patch, os, "fsync", syncs)
            counting(patch, Path, "rename", renames)
            counting(patch, parts_module, "checksum_file", sums)
            target.load({"key": ["b"], "value": [2]})
        assert target.get("b") == 2
        assert len(syncs) == sum(SYNCS.values())
        moved = [name for name in renames if "/part-" in name and not Path(name).name.startswith(".")]
        assert len(moved) == 1, renames
        assert not sums, "all is summed when it is written, and not again by the process that wrote it"


def test_a_part_is_queued_then_merging_then_gone(tmp_path: Path) -> None:
    states: list[str] = []
    with open_pond(tmp_path / "pond", clock=ManualClock()) as pond:
        target = pond.create_map("m", kind="state", value="long")

        def look(step: str) -> None:
            if step in ("load.committed", "merge.part_put", "merge.dequeued"):
                states.extend(part.state for part in pond.parts.list())

        target.load({"key": ["a"], "value": [1]})
        with listening(look):
            target.load({"key": ["b"], "value": [2]})
        assert states == ["queued", "merging"]
        assert pond.parts.list() == []


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    with open_pond(tmp_path / "pond", clock=ManualClock()) as pond:
        definition = pond.create_map("m", kind="state", value="long").definition
    writer = PartWriter(definition, tmp_path / "written")
    writer.write(canonical_of(definition, [(("a",), 1)]))
    [part] = writer.finish()
    return part.file


def test_a_part_is_summed_again_when_somebody_wrote_to_it(sealed: Path) -> None:
    accepted, definition = AcceptedParts(), definition_of(sealed)
    assert accepted.verify(sealed, definition) == accepted.verify(sealed, definition)
    moved = sealed.rename(sealed.parent / "elsewhere")
    assert accepted.verify(moved, definition).rows == 1
    flip_piece(moved, DATA, 0.9)
    for _ in range(2):
        with pytest.raises(Corrupt, match="damaged"):
            accepted.verify(moved, definition)


def test_the_manifest_of_a_known_part_is_parsed_once(sealed: Path) -> None:
    accepted, definition = AcceptedParts(), definition_of(sealed)
    first = accepted.verify(sealed, definition)
    assert accepted.verify(sealed, definition) is first
    writer = PartWriter(definition, sealed.parent / "long", source="x" * BESIDE_ROWS_MAX)
    writer.write(canonical_of(definition, [(("b",), 1)]))
    long = writer.finish()[0].file
    assert accepted.verify(long, definition) is not accepted.verify(long, definition), "long ones are not retained"
    os.utime(sealed, ns=(1, 1))
    assert accepted.verify(sealed, definition) is not first
    assert accepted.verify(sealed, definition) == first


def test_a_part_that_is_gone_is_never_taken_for_summed(sealed: Path) -> None:
    accepted, definition = AcceptedParts(), definition_of(sealed)
    manifest = accepted.verify(sealed, definition)
    sealed.unlink()
    with pytest.raises(Corrupt, match="cannot be read"):
        accepted.verify(sealed, definition)
    accepted.note_sealed([PartFile(sealed, manifest)])
    with pytest.raises(Corrupt, match="cannot be read"):
        accepted.verify(sealed, definition)


def test_a_part_that_this_process_sealed_is_not_read_again(sealed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accepted = AcceptedParts()
    accepted.note_sealed([PartFile(sealed, read_manifest(sealed))])
    sums: list[str] = []
    counting(monkeypatch, parts_module, "checksum_file", sums)
    assert accepted.verify(sealed, definition_of(sealed)).rows == 1
    assert sums == []


def definition_of(part: Path) -> MapDefinition:
    return MapDefinition.from_dict(read_manifest(part).definition)


class Made:
    """The files and folders below one that this process makes; a hook of audits cannot be taken away again."""

    def __init__(self) -> None:
        self.below: Path | None = None
        self.names: list[str] = []
        sys.addaudithook(self._see)

    def _see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.below is None or not (event == "os.mkdir" or (event == "open" and arguments[2] & os.O_CREAT)):
            return
        place = Path(str(arguments[0]))
        if place.is_relative_to(self.below) and not place.exists():
            self.names.append(place.name)


@pytest.fixture(scope="module")
def made() -> Iterator[Made]:
    seen = Made()
    yield seen
    seen.below = None


def test_a_load_that_comes_whole_makes_one_file(tmp_path: Path, made: Made) -> None:
    with open_pond(tmp_path / "pond", clock=ManualClock()) as pond:
        definition = pond.create_map("m", kind="state", value="long").definition
        commit = LoadCommit(pond, Receiver(pond, LIMITS, ManualClock(), decides=lambda: True))
        parts = []
        made.below, made.names = tmp_path, []
        for key in "ab":
            writer = PartWriter(definition, tmp_path / "written" / key)
            writer.write(canonical_of(definition, [((key,), 1)]))
            parts += writer.finish()
        assert made.names.count("part-00000") == 2 and {*made.names} == {"written", "a", "b", "part-00000"}
        for number, part in enumerate(parts):
            body = memoryview(b"".join(PartStream(part.file).chunks()))
            made.names = []
            commit.bring(f"load-{number}", split_streams(body), source="", rejected=0, stream=None, caller=ANYBODY)
            assert [name[:33] for name in made.names if not name.endswith(".lock")] == [f"{part.manifest.id}."]
        made.below = None
        pond.merge()
        assert [pond.map("m").get(key) for key in "ab"] == [1, 1]


@pytest.mark.parametrize("behind", [1, 48, 4095, 4096, 100_000])
def test_lmdb_reads_nothing_behind_its_last_page(sealed: Path, behind: int) -> None:
    data = pieces_of(sealed)[DATA]
    for tail in (b"", b"\xff" * behind, data[:behind]):
        file = sealed.with_name(f"with {len(tail)} {tail[:1].hex()}")
        file.write_bytes(data + tail)
        with lmdb.open(str(file), subdir=False, readonly=True, lock=False, max_dbs=8) as env:
            [table] = read_manifest(sealed).tables
            with env.begin(db=env.open_db(table.encode(), create=False)) as tx:
                assert [key for key, _ in tx.cursor()] == [b"a\0"]
            assert env.info()["last_pgno"] == len(data) // 4096 - 1
