"""Bytes that went bad on the disk are an error that names the file, never another answer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millpond.clock import ManualClock
from millpond.errors import Corrupt
from millpond.kernel.cache import Cache
from millpond.maps.snapshots.refresh import current_manifest
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.pond import Pond, open_pond
from millpond.stores import verified
from millpond.stores.verified import is_verified, verify_once

KEYS = [f"key-{number:05d}" for number in range(2000)]


def pond_with_snapshots(folder: Path) -> Pond:
    pond = open_pond(folder, clock=ManualClock(10_000))
    numbers = list(range(2000))
    pond.create_map("keyed", kind="state", value="long").load(pa.table({"key": KEYS, "value": numbers}))
    ranged = pa.table(
        {"key_start": [n * 10 for n in numbers], "key_end": [n * 10 + 8 for n in numbers], "value": numbers}
    )
    pond.create_map("ranged", kind="ranged_state", value="long").load(ranged)
    return pond


def snapshot(pond: Pond, name: str) -> Snapshot:
    target = pond.map(name)
    manifest = current_manifest(pond.space, target.objects, target.definition)
    assert manifest is not None
    return Snapshot.open(target.objects, manifest)


def rot(file: Path) -> None:
    """Change one bit of a file behind everybody's back: its size and time of change stay."""
    before, data = file.stat(), bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize(
    ("name", "folder"), [("keyed", "ranges"), ("ranged", "ranges"), ("ranged", "intervals"), ("keyed", "indexes")]
)
def test_one_bit_is_noticed_by_who_opens_the_file_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, folder: str
) -> None:
    questions: list[Any] = KEYS[::7] if name == "keyed" else list(range(0, 20_000, 7))
    with pond_with_snapshots(tmp_path / "pond") as pond:
        expected = pond.map(name).lookup(questions).to_pylist()
        root = Path(pond.map(name).objects.where) / folder
    file = max(root.iterdir(), key=lambda file: file.stat().st_size)  # of intervals, the section and not the list
    rot(file)
    monkeypatch.setattr(verified, "_verified", Cache(100))  # as in another process
    with open_pond(tmp_path / "pond", clock=ManualClock(20_000)) as pond:
        with pytest.raises(Corrupt) as caught, snapshot(pond, name) as opened:
            assert opened.lookup(questions).to_pylist() == expected
        assert file.name in str(caught.value)
        assert not pond.verify().ok, "it is quarantined"
        assert pond.map(name).lookup(questions).to_pylist() == expected


def test_a_file_is_read_whole_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verified, "_verified", Cache(100))
    file, looks = tmp_path / "file", []
    file.write_bytes(b"content")

    def whole() -> bool:
        looks.append(file.read_bytes())
        return looks[-1].startswith(b"content")

    assert verify_once(file, whole)
    assert verify_once(file, whole)
    assert is_verified(file)
    assert len(looks) == 1
    file.write_bytes(b"content, changed")
    assert not is_verified(file)
    assert verify_once(file, whole)
    assert len(looks) == 2
    file.write_bytes(b"rotten")
    for _ in range(2):
        assert not verify_once(file, whole), "what is damaged is never remembered as whole"
    assert len(looks) == 4


def test_files_are_forgotten_oldest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verified, "_verified", Cache(3))
    files = [tmp_path / str(number) for number in range(5)]
    for file in files:
        file.write_bytes(b"")
        assert verify_once(file, lambda: True)
    assert [is_verified(file) for file in files] == [False, False, True, True, True]
