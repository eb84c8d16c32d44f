"""A process that takes parts that lie, and dies if one of them can make it: it says how it fared with each.

Reads a folder a line, with `definition.json`, `rows.arrow` and a part in `part/`; answers with the kind of the error,
or `merged`. What is no error of Millpond ends it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa

from millpond.clock import ManualClock
from millpond.errors import MillpondError
from millpond.maps.model.definition import MapDefinition
from millpond.maps.parts.part import PartFile, PartWriter, read_manifest
from millpond.pond import Pond, open_pond


def use(pond: Pond, definition: MapDefinition, sound: pa.RecordBatch) -> None:
    """Ask the map everything, and load into it again."""
    target = pond.map(definition.name)
    target.scan().read_all()
    target.freeze()
    writer = PartWriter(target.definition, pond.folder / "writer" / "more")
    writer.write(sound)
    pond.commit_load(writer.finish())
    address = sound.column(0)
    target.lookup(address.cast(pa.string()) if definition.kind.keyed else address, 5 if definition.kind.timed else None)
    assert target.scan().read_all().num_rows >= 1
    assert pond.verify(full=True).ok


def take(folder: Path) -> str:
    """Hand a part in, and use the map it came for."""
    definition = MapDefinition.from_dict(json.loads((folder / "definition.json").read_text()))
    [sound] = pa.ipc.open_file((folder / "rows.arrow").read_bytes()).read_all().to_batches()
    with open_pond(folder / "pond", clock=ManualClock(now=1)) as pond:
        pond.catalogue.create(definition, exist_ok=False)
        kind = "merged"
        try:
            pond.commit_load([PartFile(folder / "part", read_manifest(folder / "part"))])
        except MillpondError as error:
            kind = error.kind
        use(pond, definition, sound)
    return kind


def main() -> None:
    """Take what comes."""
    for line in sys.stdin:
        print(take(Path(line.strip())), flush=True)


if __name__ == "__main__":
    main()
