"""The cost of a load: its part's folder moves once, its bytes are summed once, and little is synced."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millpond.clock import ManualClock
from millpond.errors import Corrupt
from millpond.kernel.steps import listening
from millpond.maps.model.definition import MapDefinition
from millpond.maps.parts import part as parts_module
from millpond.maps.parts.part import PartFile, PartWriter, read_manifest
from millpond.maps.parts.verified_parts import MANIFEST_BYTES_MAX, AcceptedParts
from millpond.pond import open_pond
from millpond.testing.faults import flip_byte
from tests.harness.rows import canonical_of

if TYPE_CHECKING:
    from collections.abc import Callable

SYNCS = {
    "part": 4,  # data, keys, manifest, and the names of these
    "adopted": 1,  # the folder's name in parts/
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
        assert sorted(Path(name).name for name in sums) == ["touched.arrow"], (
            "both files are summed when they are written, and not again by the process that wrote them"
        )


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
    return Path(part.folder)


def test_a_part_is_summed_again_when_somebody_wrote_to_it(sealed: Path) -> None:
    accepted, definition = AcceptedParts(), definition_of(sealed)
    assert accepted.verify(sealed, definition) == accepted.verify(sealed, definition)
    moved = sealed.rename(sealed.parent / "elsewhere")
    assert accepted.verify(moved, definition).rows == 1
    flip_byte(moved / "data.mdb", -1)
    for _ in range(2):
        with pytest.raises(Corrupt, match="damaged"):
            accepted.verify(moved, definition)


def test_the_manifest_of_a_known_part_is_parsed_once(sealed: Path) -> None:
    accepted, definition = AcceptedParts(), definition_of(sealed)
    first = accepted.verify(sealed, definition)
    assert accepted.verify(sealed, definition) is first
    writer = PartWriter(definition, sealed.parent / "long", source="x" * MANIFEST_BYTES_MAX)
    writer.write(canonical_of(definition, [(("b",), 1)]))
    long = Path(writer.finish()[0].folder)
    assert accepted.verify(long, definition) is not accepted.verify(long, definition), "long ones are not retained"
    os.utime(sealed / "manifest.json", ns=(1, 1))
    assert accepted.verify(sealed, definition) is not first
    assert accepted.verify(sealed, definition) == first


def test_a_part_without_a_file_is_never_taken_for_summed(sealed: Path) -> None:
    accepted, definition = AcceptedParts(), definition_of(sealed)
    manifest = accepted.verify(sealed, definition)
    (sealed / "touched.arrow").unlink()
    with pytest.raises(Corrupt, match="missing"):
        accepted.verify(sealed, definition)
    accepted.note_sealed([PartFile(str(sealed), manifest)])
    with pytest.raises(Corrupt, match="missing"):
        accepted.verify(sealed, definition)


def test_a_part_that_this_process_sealed_is_not_read_again(sealed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accepted = AcceptedParts()
    accepted.note_sealed([PartFile(str(sealed), read_manifest(sealed))])
    sums: list[str] = []
    counting(monkeypatch, parts_module, "checksum_file", sums)
    assert accepted.verify(sealed, definition_of(sealed)).rows == 1
    assert sums == []


def definition_of(part: Path) -> MapDefinition:
    return MapDefinition.from_dict(read_manifest(part).definition)
