"""Bringing an index from one place to another: only what is missing there is fetched, and all of it is verified.

The index goes last, so the target never shows an index whose ranges are not all there. A fetch that is cut short is
gone on with by the next one. What lies in blocks arrives in a folder as one batch, to be mapped, and what comes to a
bucket from a folder is packed there: the ids are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from millpond.errors import Corrupt, Invalid, NotFound
from millpond.kernel.steps import step
from millpond.ranges.files import in_form
from millpond.ranges.index import (
    Index,
    RangeEntry,
    Source,
    far_entry,
    index_bytes,
    index_file,
    index_name,
    plain_index,
    range_name,
    read_index,
)
from millpond.ranges.reader import open_range, range_bytes
from millpond.ranges.verify import check_file
from millpond.stores.objects import Objects, fsync_below
from millpond.stores.objects.bringing import bring

__all__ = ("FetchReport", "fetch", "missing")


@dataclass(frozen=True, slots=True)
class FetchReport:
    """Counts of what was transferred, and of what lay in the target already, in bytes as they lie far away. The index
    counts in bytes, not in ranges.
    """

    ranges: int
    bytes: int
    ranges_reused: int
    bytes_reused: int


def missing(index: Index, present: Objects) -> list[RangeEntry]:
    """The ranges of an index that a place lacks; one listing tells, and files of unexpected sizes are verified."""
    # One listing for all: a question for each range would wait thousands of times for a bucket.
    held = {named.name: named.size for named in present.list("ranges")}
    return [entry for entry in index.entries if not _is_held(entry, held.get(range_name(entry.id)), present)]


def _is_held(entry: RangeEntry, size: int | None, present: Objects) -> bool:
    if size is None or size in (entry.size, entry.plain.size):
        return size is not None
    try:  # another version may have written it: then its size says nothing
        open_range(present, entry)
    except (NotFound, Corrupt, Invalid):
        return False
    return True


def fetch(source: Source, target: Objects, index_id: str, *, verify: bool = True) -> FetchReport:
    """Bring an index and those of its ranges that `target` lacks; what arrives is checked against its id.

    `verify` False: for a source that has checked what it gives already, with `check_file`.

    Raises: `NotFound` when the source lacks a file, `Corrupt` when it holds another than was written: the file is
    named and not taken over; `Unavailable`.
    """
    held = _held_index(target, index_id)
    data = held or index_bytes(source, index_id)
    index = read_index(data, index_id, source.where)
    # Also where the index is there already: one of its ranges may be in quarantine.
    entries = missing(index, target)
    fetched = list(bring(partial(_fetch_range, source, target, verify), entries))
    step("ranges.fetched")
    # Durable before the index that names them, or a power cut leaves an index without its ranges.
    fsync_below(target, "ranges")
    size = sum(entry.size for entry in fetched)
    if held is None:
        there = _index_there(target, index, data, {entry.id: entry for entry in fetched})
        target.put(index_name(index_id), there)
        size += (there if target.in_blocks else data).size
    else:
        fsync_below(target, "indexes")  # it may be the work of one who died before it was durable
    step("ranges.index_fetched")
    return FetchReport(
        ranges=len(entries), bytes=size,
        ranges_reused=len(index.entries) - len(entries), bytes_reused=index.size - sum(entry.size for entry in entries),
    )  # fmt: skip


def _index_there(target: Objects, index: Index, data: pa.Buffer, fetched: Mapping[str, RangeEntry]) -> pa.Buffer:
    """The file of an index as it lies in a place, where these ranges were just written."""
    if not target.in_blocks:
        return plain_index(index, data)
    there = [fetched.get(entry.id) or _entry_there(target, entry) for entry in index.entries]
    return index_file(replace(index, entries=tuple(there)))


def _entry_there(target: Objects, entry: RangeEntry) -> RangeEntry:
    """The entry of a range that lay in a bucket before, which may have come from a folder, whose indexes tell less."""
    if entry.blocks is None:
        with suppress(NotFound):  # it was collected since, and whoever brings the index will see it
            return far_entry(entry, range_bytes(target, entry))[0]
    return entry


def _held_index(target: Objects, index_id: str) -> pa.Buffer | None:
    """The index as the target has it, if it has it whole."""
    try:
        data = index_bytes(target, index_id)
        read_index(data, index_id)
    except (NotFound, Corrupt, Invalid):
        return None
    return data


def _fetch_range(source: Source, target: Objects, verify: bool, entry: RangeEntry) -> RangeEntry:
    """Bring a range; its entry as it travels."""
    name, data = range_name(entry.id), range_bytes(source, entry)
    rows = check_file(data, name, source.where) if verify else None
    if target.in_blocks:
        entry, data = far_entry(entry, data, rows)
    else:
        data = in_form(data, name, blocks=False, rows=rows)
    target.put(name, data)
    step("ranges.one_fetched")
    return entry
