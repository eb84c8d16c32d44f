"""Writes the golden pond of the present format: `python -m tests.data.make_pond`.

    tests/data/pond-<format>.zip     a small pond: every kind, scheme and value type; a part that waits in the queue,
                                     one that is quarantined, others that are retained; snapshots
    tests/data/pond-<format>.json    the rows of its maps as they must be read, after what waits is merged

Clock and ids are fixed, and so are the names and times in the archive. A pond that is stored is never written again
under its number: later versions must read it, or refuse it by its number.
"""

from __future__ import annotations

import json
import sys
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millpond.clock import ManualClock
from millpond.maps.loads.pond_folder import POND_FORMAT
from millpond.maps.parts.tail import DATA
from millpond.pond import Pond, open_pond
from tests.harness.part_pieces import flip_piece
from tests.harness.scratch import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millpond.refs.pond import RefPond

FOLDER = Path(__file__).parent
NOW_MS = 20_000 * 86_400_000
START = datetime(2024, 1, 1, tzinfo=UTC)
KEYS = ["a", "b", "", "ü" * 9, "long" * 60]
"""An empty key, one that is no ASCII, one that is stored by its hash."""

VALUES: dict[str, list[Any]] = {
    "string": ["x", "", "ü" * 300, None, "z"],
    "long": [0, -1, 2**63 - 1, -(2**63), None],
    "double": [0.5, -0.0, 1e300, None, 3.0],
    "boolean": [True, False, None, True, False],
    "timestamp": [START, START + timedelta(microseconds=1), None, START, START],
    "binary": [b"", b"\x00\xff", b"x" * 600, None, b"z"],
    "json": ["{}", '{"a":[1,null]}', "[]", '"text"', None],
}
STRUCT = "temp double, name string, seen timestamp"


def _structs(shift: int) -> dict[str, list[Any]]:
    seen = [START, None, START, None, START]
    return {"temp": [0.5 + shift, None, 1.0, 2.0, 3.0], "name": ["x", "", None, "ü", "z"], "seen": seen}


def _times(shift: int) -> list[datetime]:
    return [START + timedelta(days=day + shift) for day in range(len(KEYS))]


def _keyed(kind: str, shift: int) -> dict[str, list[Any]]:
    if kind == "session":
        return {"key": KEYS, "start": _times(shift), "end": _times(shift + 1)}
    return {"key": KEYS} | ({"effective_time": _times(shift)} if kind == "temporal_state" else {})


def _ranged(kind: str, shift: int) -> dict[str, list[Any]]:
    ends = {"key_start": [0, 10, -(2**63), 20, 15], "key_end": [100 + shift, 20, -1, 2**63 - 1, 15 + shift]}
    return ends | ({"effective_time": _times(shift)} if kind == "temporal_ranged_state" else {})


def maps() -> dict[str, tuple[dict[str, Any], list[dict[str, list[Any]]]]]:
    """The maps by name: their settings, and the columns of each load."""
    found: dict[str, tuple[dict[str, Any], list[dict[str, list[Any]]]]] = {}
    for type_, values in VALUES.items():
        loads = [{"key": KEYS, "value": values}, {"key": KEYS[:2], "value": values[1:3]}]
        found[f"state_{type_}"] = {"kind": "state", "value": type_}, loads
    mixed = [{"key": [type_], "value": [values[1]]} for type_, values in VALUES.items()]
    found["state_mixed"] = {"kind": "state"}, mixed
    found["state_struct"] = {"kind": "state", "value": STRUCT}, [{"key": KEYS} | _structs(shift) for shift in (0, 1)]
    for scheme, settings in _schemes().items():
        for kind in ("state", "temporal_state", "session"):
            value = {} if kind == "session" else {"value": VALUES["long"]}
            typed = {} if kind == "session" else {"value": "long"}
            loads = [_keyed(kind, shift) | value for shift in (0, 1)]
            found[f"{kind}_{scheme}"] = {"kind": kind} | typed | settings, loads
    for scheme in ("auto", "lookup"):
        for kind in ("ranged_state", "temporal_ranged_state"):
            loads = [_ranged(kind, shift) | {"value": VALUES["string"]} for shift in (0, 1)]
            found[f"{kind}_{scheme}"] = {"kind": kind, "value": "string", "scheme": scheme}, loads
    return found


def _schemes() -> dict[str, dict[str, Any]]:
    return {
        "auto": {"scheme": "auto"}, "hash8": {"scheme": "hash"}, "hash4": {"scheme": "hash", "hash_bytes": 4},
        "lookup": {"scheme": "lookup"},
    }  # fmt: skip


def build(folder: Path) -> None:
    """Make the pond."""
    with open_pond(folder, clock=ManualClock(now=NOW_MS), maps_part_retention="1000d", maps_store="shard") as pond:
        for name, (settings, loads) in maps().items():
            pond.create_map(name, **settings)
            for columns in loads:
                pond.map(name).load(_table(columns))
                if name.endswith(("_auto", "_lookup", "_struct", "_mixed")):
                    pond.map(name).freeze()
        pond.create_map("direct", kind="state", value="long", scheme="direct").load({"key": ["a"], "value": [1]})
        pond.create_map("nothing", kind="session")
        pond.map("temporal_state_auto").condense(before=START)
        _quarantine(pond)
        _queue(pond, "queued", 1)


def _table(columns: Mapping[str, list[Any]]) -> pa.Table:
    return pa.table({name: pa.array(values) for name, values in columns.items()})


def _queue(pond: Pond, name: str, value: int) -> None:
    """Enter a part, and do not merge it."""
    from tests.harness.rows import canonical_of

    definition = pond.create_map(name, kind="state", value="long").definition
    writer = pond.part_writer(name)
    writer.write(canonical_of(definition, [(("a",), value)]))
    pond.commit_load(writer.finish(), wait=False)


def _quarantine(pond: Pond) -> None:
    _queue(pond, "quarantined", 1)
    [part] = pond.parts.list("quarantined", "queued")
    place = pond.parts.file(part.part)
    assert place is not None
    flip_piece(place, DATA, 0.5)
    pond.merge()
    assert [part.state for part in pond.parts.list("quarantined")] == ["quarantined"]


def rows_of(pond: Pond | RefPond, known_at: int | None = None) -> dict[str, list[Any]]:
    """All rows of all maps, as JSON has them, at a ref or as known at a time."""
    return {
        opened.name: json.loads(json.dumps(opened.scan(known_at=known_at).read_all().to_pylist(), default=_plain))
        for opened in pond.maps()
    }


def _plain(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def pack(folder: Path, archive: Path) -> None:
    """Write a folder as an archive that depends on its files alone; locks and empty folders are not in it."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as bundle:
        for file in sorted(folder.rglob("*")):
            if file.is_file() and file.name != "lock.mdb" and file.suffix != ".lock":
                name = zipfile.ZipInfo(file.relative_to(folder).as_posix())
                name.compress_type = zipfile.ZIP_DEFLATED
                bundle.writestr(name, file.read_bytes())


def unpack(archive: Path, folder: Path) -> Path:
    """The pond of an archive, in a new folder."""
    with zipfile.ZipFile(archive) as bundle:
        bundle.extractall(folder)
    return folder


def main() -> None:
    """Write the archive and its rows, unless the number is taken."""
    archive = FOLDER / f"pond-{POND_FORMAT}.zip"
    if archive.exists():
        sys.exit(f"{archive.name} is there: a pond that is stored is not written again; is there a new format number?")
    with scratch_folder() as scratch:
        build(scratch / "pond")
        pack(scratch / "pond", archive)
        with open_pond(unpack(archive, scratch / "copy"), clock=ManualClock(now=NOW_MS, ids=10_000)) as pond:
            archive.with_suffix(".json").write_text(json.dumps(rows_of(pond), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
