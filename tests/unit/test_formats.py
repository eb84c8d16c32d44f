"""Whatever is written in another format is refused in one sentence that names both numbers and the way out."""

from __future__ import annotations

import json
import re
import shutil
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import xxhash
from typer.testing import CliRunner

from millpond.cli.main import app
from millpond.clock import ManualClock
from millpond.errors import Corrupt, Invalid, MillpondError
from millpond.events import codec
from millpond.maps.loads.pond_folder import OLDEST_FORMAT, POND_FORMAT
from millpond.maps.log.clone import CLONE_FORMAT, clone_folder, resume_clone, write_state
from millpond.maps.parts.part import PART_FORMAT, read_manifest
from millpond.maps.parts.tail import FILE_FORMAT, MANIFEST
from millpond.maps.shard.generation import ROLLED_UP_FORMAT, SHARD_FORMAT
from millpond.maps.snapshots import manifest as snapshot_manifest
from millpond.maps.snapshots import published
from millpond.maps.snapshots.manifest import SnapshotManifest
from millpond.nodes.backups.layout import BACKUP_FORMAT
from millpond.nodes.backups.layout import OLDEST_FORMAT as OLDEST_BACKUP
from millpond.pond import open_pond
from millpond.ranges import ids
from millpond.refs import map_entries
from millpond.stores.bucket_space import forms as space_forms
from millpond.stores.memory import MemorySpace
from tests.harness.part_pieces import put_pieces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.pond import Pond

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
OTHER = 99


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    with open_pond(tmp_path / "pond", clock=ManualClock()) as opened:
        opened.create_map("m", kind="state", value="long").load({"key": ["a"], "value": [1]})
        yield opened


def check_refusal(error: MillpondError, kind: str, known: int) -> None:
    assert error.kind == kind
    assert (error.values["found"], error.values["known"]) in ((OTHER, known), (str(OTHER), known))
    assert error.hint
    assert "\n" not in str(error)
    assert f"found={OTHER}" in str(error)


def test_the_page_lists_the_numbers_that_the_code_writes() -> None:
    rows = re.findall(r"^\| .*? \| (.*?) \| .*? \| `(\w+)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    snapshots = (
        f"{snapshot_manifest.FORMAT}; {snapshot_manifest.SUBSET_FORMAT}: a subset; "
        f"{snapshot_manifest.SECTIONS_FORMAT}: of ranges; "
        f"{snapshot_manifest.LAYERS_FORMAT}: with [layers](format/layers.md) that join or fill; "
        f"{snapshot_manifest.FIELDS_FORMAT}: with fields that changed; "
        f"{snapshot_manifest.UPDATES_FORMAT}: with update times; "
        f"{snapshot_manifest.AGGREGATES_FORMAT}: of aggregates; "
        f"{snapshot_manifest.ROLLED_UP_FORMAT}: rolled up"
    )
    assert rows == [
        (str(POND_FORMAT), "pond_format"), (str(space_forms.FORMAT), "space_format"),
        (f"{SHARD_FORMAT}; {ROLLED_UP_FORMAT}: rolled up", "shard_format"),
        (str(FILE_FORMAT), "part_format"), (str(PART_FORMAT), "part_format"),
        (
            f"{ids.FORMAT}; {ids.BLOCKS_FORMAT}: with blocks; {ids.FILTERS_FORMAT}: with filters in ranges",
            "range_format",
        ),
        (snapshots, "snapshot_format"),
        (str(map_entries.FORMAT), "map_entry_format"), (str(published.FORMAT), "snapshot_format"),
        (str(CLONE_FORMAT), "clone_format"), (str(BACKUP_FORMAT), "backup_format"),
        (str(codec.VERSION), "events_format"),
    ]  # fmt: skip


def test_the_page_says_which_earlier_formats_are_read() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"A pond of format {OLDEST_FORMAT} or {POND_FORMAT - 1} becomes one of format {POND_FORMAT}" in text
    assert f"A backup of format {OLDEST_BACKUP} to {BACKUP_FORMAT - 1} is restored" in text


def test_a_pond_of_another_format(pond: Pond) -> None:
    pond.close()
    (pond.folder / "pond.json").write_text(json.dumps({"format": OTHER}))
    with pytest.raises(Invalid) as caught:
        open_pond(pond.folder)
    check_refusal(caught.value, "pond_format", POND_FORMAT)
    result = CliRunner().invoke(app, ["maps", "--pond", str(pond.folder), "--json"])
    assert json.loads(result.output)["error"]["kind"] == "pond_format"
    assert "Traceback" not in result.output


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("found", [OTHER, 0])
def test_a_shard_of_another_format(pond: Pond, found: int) -> None:
    shard = pond.map("m").shard
    with shard.exclusive():
        shard.change(lambda tx: tx.put(b"format", found.to_bytes(8, "big"), db=shard.tables.info), None)
    pond.close()
    with open_pond(pond.folder, clock=ManualClock()) as opened:
        for ask in (lambda: opened.map("m").get("a"), lambda: opened.map("m").load({"key": ["b"], "value": [2]})):
            with pytest.raises(Invalid) as caught:
                ask()
            assert caught.value.kind == "shard_format"
            assert (caught.value.values["found"], caught.value.values["known"]) == (found, ROLLED_UP_FORMAT)
        problems = opened.verify().problems
        assert any("the shard has a format this version does not know" in problem.found for problem in problems)


def test_a_part_of_another_format(pond: Pond) -> None:
    file = pond.folder / "some-part"
    payload = {"format": OTHER}
    checksum = xxhash.xxh3_128_hexdigest(json.dumps(payload, sort_keys=True).encode())
    put_pieces(file, {MANIFEST: json.dumps(payload | {"checksum": checksum}).encode()})
    with pytest.raises(Corrupt) as caught:
        read_manifest(file)
    check_refusal(caught.value, "part_format", PART_FORMAT)
    tail = b"MPFILE" + struct.pack("<H4Q", OTHER, 0, 0, 0, 0)
    file.write_bytes(tail + struct.pack("<Q", xxhash.xxh3_64_intdigest(tail)))
    with pytest.raises(Corrupt) as caught:
        read_manifest(file)
    check_refusal(caught.value, "part_format", FILE_FORMAT)


def test_a_snapshot_of_another_format(pond: Pond) -> None:
    manifest = pond.map("m").freeze()
    payload = json.loads(manifest.to_bytes()) | {"format": OTHER}
    with pytest.raises(Invalid) as caught:
        SnapshotManifest.from_bytes(json.dumps(payload).encode())
    check_refusal(caught.value, "snapshot_format", snapshot_manifest.ROLLED_UP_FORMAT)


@pytest.mark.parametrize("row", [b"", b"{", b"[]", b"5", b'{"format": 1}', b'{"format": 1, "maps": 5}'])
def test_a_torn_clone_is_named(pond: Pond, row: bytes) -> None:
    pond.close()
    ready = clone_folder(pond.folder) / "ready.json"
    ready.parent.mkdir()
    ready.write_bytes(row)
    for _ in range(2):
        with pytest.raises(Corrupt) as caught:
            open_pond(pond.folder, clock=ManualClock())
        assert caught.value.kind == "clone_state"
        assert caught.value.values["file"] == ready
    shutil.rmtree(ready.parent)
    with open_pond(pond.folder, clock=ManualClock()) as opened:
        assert opened.map("m").get("a") == 1


def test_a_clone_of_another_format(pond: Pond) -> None:
    folder = clone_folder(pond.folder)
    folder.mkdir()
    about = {"format": OTHER, "id": "c", "pond": pond.log.pond_id, "position": 1, "maps": []}
    (folder / "ready.json").write_text(json.dumps(about))
    with pytest.raises(Invalid) as caught:
        resume_clone(pond.folder, pond.space)
    check_refusal(caught.value, "clone_format", CLONE_FORMAT)
    (folder / "ready.json").write_text(json.dumps(about | {"format": CLONE_FORMAT}))
    with MemorySpace().read() as tx:
        write_state(tx, folder / "state.arrow")
    table = pa.ipc.open_stream(folder / "state.arrow").read_all()
    with pa.OSFile(str(folder / "state.arrow"), "wb") as sink:
        schema = table.schema.with_metadata({"format": str(OTHER)})
        with pa.ipc.new_stream(sink, schema) as stream:
            stream.write_table(table.cast(schema))
    with pytest.raises(Invalid) as caught:
        resume_clone(pond.folder, pond.space)
    check_refusal(caught.value, "clone_format", CLONE_FORMAT)
