"""Parts that lie: a sound part with some of its bytes or fields changed, and checksums that fit again."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash
from hypothesis import strategies as st

from millpond.errors import Corrupt
from millpond.maps.model.definition import MapDefinition
from millpond.maps.parts.part import PartFile, PartWriter, read_manifest, verify_part
from millpond.maps.parts.tail import DATA, MANIFEST, TOUCHED
from millpond.maps.parts.validate import validate_part
from millpond.stores.lmdb.page_format import HEADER, PAGE
from tests.harness.models import Row
from tests.harness.part_pieces import pieces_of, put_pieces
from tests.harness.rows import canonical_of

ODD: tuple[Any, ...] = (None, -1, 0, 1, 2**63, 2**70, 1.5, True, "", "x", [], {}, [-1], [2**70], {"rows": 1}, {"x": -1})


@dataclass(frozen=True)
class Mutation:
    """Bytes put into a file at a page and an offset, a field of the manifest, or a new length in pages."""

    piece: str = DATA
    page: int = 0
    at: int = 0
    data: bytes = b""
    field: str = ""
    value: Any = None
    pages: int | None = None


def sealed(definition: MapDefinition, folder: Path, rows: list[Row]) -> PartFile:
    writer = PartWriter(definition, folder)
    writer.write(canonical_of(definition, rows))
    [part] = writer.finish()
    return part


@st.composite
def mutations(draw: st.DrawFn) -> list[Mutation]:
    return draw(st.lists(_mutation(), min_size=1, max_size=4))


def _mutation() -> st.SearchStrategy[Mutation]:
    page, number = st.integers(0, 12), st.sampled_from((0, 1, 2, 3, 4, 6, 8, 15, 16, 48, 255, 511, 2040, 4095, 65_535))
    shorts = number.map(lambda value: struct.pack("<H", value))
    longs = st.sampled_from((0, 1, 2, 3, 4, 5, 7, 2**31, 2**32 - 1, 2**48 - 1, 2**64 - 1))
    fields = ("id", "map", "incarnation", "definition", "rows", "tables", "least", "greatest", "longest_session",
              "source", "data_bytes", "salt", "format", "other")  # fmt: skip
    heads = st.integers(0, HEADER // 2 + 20).map(lambda place: 2 * place)
    return st.one_of(
        st.builds(Mutation, page=page, at=heads, data=shorts),
        st.builds(Mutation, page=page, at=st.integers(0, PAGE // 2 - 1).map(lambda place: 2 * place), data=shorts),
        st.builds(Mutation, page=page, at=st.integers(PAGE - 200, PAGE - 1), data=st.binary(min_size=1, max_size=1)),
        st.builds(Mutation, page=st.sampled_from((0, 1, 2)), at=st.integers(0, 200),
                  data=longs.map(lambda value: struct.pack("<Q", value))),
        st.builds(Mutation, pages=st.integers(0, 8)),
        st.builds(Mutation, piece=st.just(TOUCHED), at=st.integers(0, 2000),
                  data=st.binary(min_size=1, max_size=4)),
        st.builds(Mutation, piece=st.just(MANIFEST), field=st.sampled_from(fields), value=st.sampled_from(ODD)),
    )  # fmt: skip


def mutate(part: PartFile, changes: list[Mutation]) -> None:
    """Change a part, and make its checksums fit."""
    pieces = pieces_of(part.file)
    for change in changes:
        if change.field:
            continue
        data = bytearray(pieces[change.piece])
        if change.pages is not None:
            data = data[: change.pages * PAGE].ljust(change.pages * PAGE, b"\0")
        elif data:
            at = (change.page * PAGE + change.at) % len(data)
            data[at : at + len(change.data)] = change.data[: len(data) - at]
        pieces[change.piece] = bytes(data)
    manifest = json.loads(pieces[MANIFEST]) | {
        "data_bytes": len(pieces[DATA]),
        "data_checksum": xxhash.xxh3_128_hexdigest(pieces[DATA]),
        "touched_checksum": xxhash.xxh3_128_hexdigest(pieces[TOUCHED]),
    }
    manifest |= {change.field: change.value for change in changes if change.field}
    _sign(part.file, pieces, manifest)


def _sign(file: Path, pieces: dict[str, bytes], manifest: dict[str, Any]) -> None:
    manifest.pop("checksum", None)
    checksum = xxhash.xxh3_128_hexdigest(json.dumps(manifest, sort_keys=True).encode())
    put_pieces(file, pieces | {MANIFEST: json.dumps(manifest | {"checksum": checksum}).encode()})


def give_its_id(part: PartFile, definition: MapDefinition) -> PartFile | None:
    """The part with the id that its rows make, where its rows can be read at all; None where its manifest cannot."""
    file = part.file
    try:
        validate_part(file, verify_part(file), definition)
    except Corrupt as error:
        if error.kind == "part_other":
            pieces = pieces_of(file)
            _sign(file, pieces, json.loads(pieces[MANIFEST]) | {"id": error.values["found"]})
    try:
        return PartFile(part.file, read_manifest(file))
    except Corrupt:
        return None
