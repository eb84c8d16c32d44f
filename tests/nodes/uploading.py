"""A child for the crash test of uploads: receives a part as a node does, from wherever the last one stopped."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

from millpond.clock import SystemClock
from millpond.errors import Corrupt
from millpond.maps.model.definition import MapDefinition
from millpond.maps.parts.part import PartFile, PartWriter, read_manifest
from millpond.maps.parts.stream import PartStream, split_streams
from millpond.nodes.limits import LIMITS
from millpond.nodes.tokens import ANYBODY
from millpond.nodes.uploads.commit import LoadCommit
from millpond.nodes.uploads.receiver import Receiver
from millpond.nodes.uploads.session import UploadOffer
from millpond.pond import open_pond
from millpond.stores.files import remove_tree
from millpond.testing.faults import arm
from tests.harness.rows import canonical_of

PIECE = 80_000


def _sealed(definition: MapDefinition, folder: Path) -> PartFile:
    """The part, from an earlier life or made now."""
    made = folder / "sealed" / "part-00000"
    with suppress(Corrupt):
        return PartFile(made, read_manifest(made))
    remove_tree(made.parent)
    writer = PartWriter(definition, made.parent)
    writer.write(canonical_of(definition, [((f"k{n:05d}",), n) for n in range(2000)]))
    [part] = writer.finish()
    return part


def _send(receiver: Receiver, part: PartFile) -> None:
    stream = PartStream(part.file)
    data = b"".join(stream.chunks())
    session = receiver.begin(UploadOffer(part.manifest.id, "m", len(data), stream.head.checksum, None))
    if session is None:
        return
    for start in range(session.offset, len(data), PIECE):
        session.write([data[start : start + PIECE]])
    assert session.finish().state == "here"
    session.leave()


def _enter(commit: LoadCommit, receiver: Receiver, part: PartFile) -> None:
    _send(receiver, part)
    assert receiver.state(part.manifest.id).state in ("here", "known")
    commit.enter("load", [part.manifest.id], source="", rejected=0, stream=None, may=lambda _: True)


def _bring(commit: LoadCommit, part: PartFile) -> None:
    stream = PartStream(part.file)
    data = memoryview(b"".join(stream.chunks()))
    commit.bring("load", split_streams(data), source="", rejected=0, stream=None, caller=ANYBODY)


def main(folder: Path, way: str) -> None:
    """Receive, enter, merge, and tell how it stands. `way`: `parts`, or `whole`, with the load itself."""
    clock = SystemClock()
    with open_pond(folder / "pond", serve=True, clock=clock) as pond:
        definition = pond.create_map("m", kind="state", value="long", exist_ok=True).definition
        part = _sealed(definition, folder)
        receiver = Receiver(pond, LIMITS, clock, decides=lambda: True)
        with arm():
            commit = LoadCommit(pond, receiver)
            if way == "whole":
                _bring(commit, part)
            else:
                _enter(commit, receiver, part)
        pond.merge()
        report = {
            "state": receiver.state(part.manifest.id).state,
            "values": [pond.map("m").get("k00000"), pond.map("m").get("k01999")],
            "left": [str(path) for path in receiver.folder.rglob("*") if path.is_file()],
            "loads": [entry.body["load"] for entry in pond.log.entries(0) if entry.kind == "load"],
        }
        (folder / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
