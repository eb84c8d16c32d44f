"""The list of a ranged map's sections: which index answers for which numbers, and to which range files it refers.

    intervals/<id>.arrow     the list, which the manifest names
    intervals/<id>.arrow     one for each section, see `intervals.py`

Invariants:
* Sections begin at the least number there is, ascend strictly, and each goes on to where the next begins.
* The places of a section count the range files that `uses` names, not those of the snapshot: what a section holds does
  not change when layers are put on others, so its file serves as long as those files do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millpond.arrays.radix import I64
from millpond.maps.search.intervals import ALWAYS, INTERVALS_SCHEMA, LAST_NUMBER, Intervals
from millpond.maps.search.validate import damaged
from millpond.maps.snapshots.manifest import SnapshotManifest
from millpond.ranges.files import content_id, put_content, read_batch, write_batch
from millpond.stores.objects import Objects, fsync_below
from millpond.stores.verified import verify_once

__all__ = (
    "INTERVALS", "Section", "SectionList", "interval_files", "intervals_name", "load_section", "load_sections",
    "store_section", "store_sections",
)  # fmt: skip

INTERVALS = "intervals"

_ID, _FILE = pa.binary(20), pa.binary(32)
_TYPES = {"lower": pa.int64(), "first": pa.int64(), "last": pa.int64(), "id": _ID, "offsets": pa.int64(),
          "uses": pa.int64(), "files": _FILE, "reach": pa.int64()}  # fmt: skip
SECTIONS_SCHEMA = pa.schema([(name, pa.large_list(kind)) for name, kind in _TYPES.items()])


@dataclass(frozen=True, slots=True)
class Section:
    """One section: the least number it answers for, its first and last break, the id of its file, and the ids of the
    range files that its places count.
    """

    lower: int
    first: int
    last: int
    id: str
    uses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SectionList:
    """All sections in order; `reach`: the greatest end of each range file of the snapshot, by its id."""

    sections: tuple[Section, ...]
    reach: dict[str, int]

    @property
    def lower(self) -> I64:
        """The first number of each section."""
        return np.array([section.lower for section in self.sections], np.int64)

    def spans(self) -> Iterator[tuple[int, int]]:
        """The first and the last number of each section."""
        for here, after in itertools.pairwise(self.sections):
            yield here.lower, after.lower - 1
        yield self.sections[-1].lower, int(LAST_NUMBER)

    def to_batch(self) -> pa.RecordBatch:
        """One row of lists."""
        number = {id_: count for count, id_ in enumerate(self.reach)}
        values: dict[str, list[Any]] = {
            "lower": [section.lower for section in self.sections],
            "first": [section.first for section in self.sections],
            "last": [section.last for section in self.sections],
            "id": [bytes.fromhex(section.id) for section in self.sections],
            "offsets": list(itertools.accumulate((len(section.uses) for section in self.sections), initial=0)),
            "uses": [number[id_] for section in self.sections for id_ in section.uses],
            "files": [bytes.fromhex(id_) for id_ in self.reach],
            "reach": list(self.reach.values()),
        }
        columns = [
            pa.LargeListArray.from_arrays(pa.array([0, len(values[name])], pa.int64()), pa.array(values[name], kind))
            for name, kind in _TYPES.items()
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SECTIONS_SCHEMA)

    @classmethod
    def from_batch(cls, batch: pa.RecordBatch) -> SectionList | None:
        """The inverse of `to_batch`; None when it makes no sense, as only a damaged file does."""
        columns = {name: batch.column(name).values.to_pylist() for name in _TYPES}
        lower, offsets, files = columns["lower"], columns["offsets"], [id_.hex() for id_ in columns["files"]]
        counts = {len(lower), len(columns["first"]), len(columns["last"]), len(columns["id"]), len(offsets) - 1}
        whole = (
            len(counts) == 1 and lower and lower[0] == ALWAYS and all(a < b for a, b in itertools.pairwise(lower))
            and offsets[0] == 0 and offsets[-1] == len(columns["uses"]) and offsets == sorted(offsets)
            and len(files) == len(columns["reach"]) and all(0 <= use < len(files) for use in columns["uses"])
        )  # fmt: skip
        if not whole:
            return None
        uses = [files[use] for use in columns["uses"]]
        spans = itertools.pairwise(offsets)
        sections = (
            Section(low, first, last, id_.hex(), tuple(uses[begin:end]))
            for low, first, last, id_, (begin, end) in zip(
                lower, columns["first"], columns["last"], columns["id"], spans, strict=True
            )
        )
        return cls(tuple(sections), dict(zip(files, columns["reach"], strict=True)))


def intervals_name(id_: str) -> str:
    """The name of the object of a section, or of a list of them."""
    return f"{INTERVALS}/{id_}.arrow"


def store_sections(objects: Objects, sections: SectionList) -> str:
    """Write a list whose sections are all there; its id."""
    return _store(objects, sections.to_batch())


def store_section(objects: Objects, index: Intervals) -> str:
    """Write the index of a section; its id."""
    return _store(objects, index.to_batch())


def _store(objects: Objects, batch: pa.RecordBatch) -> str:
    data = write_batch(batch)
    id_ = content_id(data)
    if not put_content(objects, intervals_name(id_), data):
        fsync_below(objects, INTERVALS)  # it may be the work of one who died before it was durable
    return id_


def load_sections(objects: Objects, manifest: SnapshotManifest, names: Sequence[str] = ()) -> SectionList | None:
    """The list of a ranged map's sections; None for keyed kinds.

    Older snapshots have one index, which counts all their range files, `names`: it is taken for the only section.

    Raises: `NotFound`, `Corrupt`, naming the file.
    """
    if manifest.sections is None:
        if manifest.intervals is None:
            return None
        only = Section(int(ALWAYS), 0, 0, manifest.intervals, tuple(names))
        return SectionList((only,), dict.fromkeys(names, int(LAST_NUMBER)))
    name = intervals_name(manifest.sections)
    sections = SectionList.from_batch(_load(objects, manifest.sections, SECTIONS_SCHEMA))
    if sections is None:
        raise damaged(name)
    return sections


def load_section(objects: Objects, id_: str) -> Intervals:
    """The index of one section, mapped where it lies.

    Raises: `NotFound`, `Corrupt`, naming the file.
    """
    index = Intervals.from_batch(_load(objects, id_, INTERVALS_SCHEMA))
    if index is None:
        raise damaged(intervals_name(id_))
    return index


def _load(objects: Objects, id_: str, schema: pa.Schema) -> pa.RecordBatch:
    name = intervals_name(id_)
    data, file = objects.get(name), objects.local_path(name)
    if not (content_id(data) == id_ if file is None else verify_once(file, lambda: content_id(data) == id_)):
        raise damaged(name)
    try:
        batch = read_batch(data, name)
        batch.validate()
    except (pa.ArrowException, UnicodeError) as error:
        raise damaged(name) from error
    if not batch.schema.equals(schema):
        raise damaged(name)
    return batch


def interval_files(objects: Objects, manifest: SnapshotManifest) -> Iterator[str]:
    """The names of a snapshot's files of intervals: first that of the list, which must be there to go on.

    Raises: `NotFound`, `Corrupt`, naming the list.
    """
    top = manifest.sections or manifest.intervals
    if top is None:
        return
    yield intervals_name(top)
    if manifest.sections is not None:
        sections = load_sections(objects, manifest)
        assert sections is not None, "ranged maps have them"
        yield from dict.fromkeys(intervals_name(section.id) for section in sections.sections)
