"""Building the interval index of a ranged map, section by section, from the ranges of all its layers.

The line of numbers is cut where about `ENDS_MAX` ranges begin or end between two cuts. What a section needs are the
ranges that begin or end in it, and of those that hold all of it the ones that can answer at some time: the narrowest,
the narrowest of those that were known before it, and so on. Sections are worked out a few at a time, as memory allows;
for each few, the range files that reach into them are read once.

Invariants:
* Every number is in one section, and its section holds each visible range that is the narrowest to hold it at some
  instant.
* A section of before serves again when no touched range holds a number of it and all range files that it uses are part
  of the snapshot: a group that a newer layer hides is a touched one.
* The same layers give the same sections when all are built, whatever memory there is.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond import ranges
from millpond.arrays.ahead import ordered_results
from millpond.arrays.compiled import kernel
from millpond.arrays.radix import I64, U64, ordered_u64, radix_order, unordered_i64
from millpond.kernel.steps import step
from millpond.maps.search.groups import Groups
from millpond.maps.search.intervals import ALWAYS, LAST_NUMBER, Intervals
from millpond.maps.search.visible import visible_groups
from millpond.maps.snapshots.groups_of_rows import range_bounds
from millpond.maps.snapshots.section_list import Section, SectionList, store_section, store_sections
from millpond.stores.objects import Objects

__all__ = ("write_sections",)

ENDS_MAX = 1 << 16
"""Larger: fewer files; smaller: a refreeze writes less, and a section is built in less memory."""
SAMPLES = 256
"""Ends of ranges that are looked at for each section, to cut them about equal."""
GROW = 2
"""A section that is built anew is cut when it holds more than this many times `ENDS_MAX`."""
ENTRY_BYTES = 48
HELD = 1
"""Ranges are small beside what sorting rows takes, for which the bound was set."""
ENTRIES_LEAST = 1 << 16
COVERS_MAX = 8
"""Entries per group, on average, for ranges that hold whole sections; beyond, sections are made larger."""
LARGER = 8
THREADS_MAX = 4

Opener = Callable[[Sequence[ranges.Index]], "Groups"]
Spans = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Files:
    """The range files of all layers: how they are opened, how far they reach, whether their rows have times."""

    layers: Sequence[ranges.Index]
    open: Opener
    reach: dict[str, int]
    temporal: bool

    def near(self, spans: Spans) -> Groups:
        """The groups of the files that reach into one of these spans, which ascend."""
        lower, upper = (np.array([span[side] for span in spans], np.int64) for side in (0, 1))

        def meets(entry: ranges.RangeEntry) -> bool:
            span = int(np.searchsorted(upper, _start(entry.first)))
            return span < len(lower) and int(lower[span]) <= self.reach[entry.id]

        return self.open([
            replace(index, entries=tuple(entry for entry in index.entries if meets(entry))) for index in self.layers
        ])  # fmt: skip


class _TooDeepError(Exception):
    """Too many ranges hold whole sections."""


@dataclass(frozen=True, slots=True)
class _Entries:
    """Ranges and the sections, by number, of which each holds some numbers (all of them: those from first to last)."""

    first: I64
    last: I64
    starts: I64
    ends: I64
    since: I64
    place: I64

    @classmethod
    def of(cls, parts: Sequence[_Entries]) -> _Entries:
        columns = [[getattr(part, name) for part in parts] for name in cls.__slots__]
        return cls(*(np.concatenate([np.zeros(0, np.int64), *column]) for column in columns))

    def take(self, which: npt.NDArray[Any] | slice) -> _Entries:
        return _Entries(*(getattr(self, name)[which] for name in _Entries.__slots__))

    def __len__(self) -> int:
        return len(self.starts)

    def within(self, first: I64 | int, last: I64 | int | None = None) -> _Entries:
        """The same ranges, of other sections: from `first` to `last`."""
        columns = [np.zeros(len(self), np.int64) + bound for bound in (first, first if last is None else last)]
        return replace(self, first=columns[0], last=columns[1])

    def pruned(self) -> _Entries:
        """Without those that never answer: beside them stands a narrower one for as many sections, known as early."""
        widths: U64 = self.ends.view(np.uint64) - self.starts.view(np.uint64)
        columns = [self.first.view(np.uint64), self.last.view(np.uint64), widths, ~ordered_u64(self.starts)]
        order = radix_order(columns)
        return self.take(order[_answering(order, self.first, self.last, self.since)])


@kernel
def _answering(order, first, last, since):  # type: ignore[no-untyped-def]
    """Mark, best first within equal sections, the ranges that are known before all better ones."""
    keep = np.zeros(len(order), np.bool_)
    least = 0
    for i in range(len(order)):
        here, before = order[i], order[max(i - 1, 0)]
        if i == 0 or first[here] != first[before] or last[here] != last[before] or since[here] < least:
            keep[i] = True
            least = since[here]
    return keep


def write_sections(
    objects: Objects, layers: Sequence[ranges.Index], open_groups: Opener, *, temporal: bool,
    earlier: SectionList | None, touched: pa.Array | None, bytes_max: int | None,
) -> str:  # fmt: skip
    """Write the sections over these layers, and the list of them, whose id is returned.

    Those of `known` that nothing `touched` concerns are taken over. `bytes_max` bounds the ranges that are held.

    Raises: `Unavailable` when the place is full.
    """
    ids = [entry.id for index in layers for entry in index.entries]
    files = _Files(layers, open_groups, _reach(layers, open_groups, {} if earlier is None else earlier.reach), temporal)
    retained, spans = _stale(earlier, set(ids), touched)
    most, built = ENDS_MAX, list[Section]()
    while spans:
        plan = _plan(files, spans, most)
        try:
            built = list(_build(objects, files, plan, bytes_max, len(plan) > len(spans)))
            break
        except _TooDeepError:
            most *= LARGER
    sections = sorted([*retained, *built], key=lambda section: section.lower)
    step("freeze.sections_written")
    return store_sections(objects, SectionList(tuple(sections), {id_: files.reach[id_] for id_ in ids}))


def _start(order_key: bytes) -> int:
    return int.from_bytes(order_key[:8], "big") - (1 << 63)


def _ends_of(keys: pa.Array) -> tuple[I64, I64]:
    starts, ends = range_bounds(keys)
    return unordered_i64(starts), unordered_i64(ends)


def _reach(layers: Sequence[ranges.Index], open_groups: Opener, lengths: dict[str, int]) -> dict[str, int]:
    """The greatest end of each file; those that are not known yet are read."""
    reach = {}
    for index in layers:
        for entry in index.entries:
            if entry.id in lengths:
                reach[entry.id] = lengths[entry.id]
            elif entry.id not in reach:
                (batch,) = open_groups([replace(index, entries=(entry,))]).batches
                reach[entry.id] = int(_ends_of(batch.column("key"))[1].max())
    return reach


def _stale(earlier: SectionList | None, ids: set[str], touched: pa.Array | None) -> tuple[list[Section], Spans]:
    """The sections that serve again, and the spans of numbers between them."""
    if earlier is None or touched is None:
        return [], [(int(ALWAYS), int(LAST_NUMBER))]
    starts, ends = _ends_of(touched.cast(pa.binary()))
    lower = earlier.lower
    change = np.zeros(len(lower) + 1, np.int64)
    np.add.at(change, np.searchsorted(lower, starts, "right") - 1, 1)
    np.add.at(change, np.searchsorted(lower, ends, "right"), -1)
    concerned = np.cumsum(change)[:-1] > 0
    retained: list[Section] = []
    spans: Spans = []
    for section, span, concern in zip(earlier.sections, earlier.spans(), concerned.tolist(), strict=True):
        if not concern and ids.issuperset(section.uses):
            retained.append(section)
        elif spans and spans[-1][1] == span[0] - 1:
            spans[-1] = (spans[-1][0], span[1])
        else:
            spans.append(span)
    return retained, spans


def _plan(files: _Files, spans: Spans, most: int) -> Spans:
    """The sections into which spans are cut: about `most` ends of ranges in each."""
    stride = max(1, most // SAMPLES)
    skip, samples = 0, [np.zeros(0, np.int64)]
    for batch in files.near(spans).batches:
        starts, ends = _ends_of(batch.column("key").take(np.arange(skip, batch.num_rows, stride)))
        skip = (skip - batch.num_rows) % stride
        samples += [starts, ends[ends < LAST_NUMBER] + 1]
    sample = np.sort(np.concatenate(samples))
    plan: Spans = []
    for low, high in spans:
        inside = sample[np.searchsorted(sample, low, "right") : np.searchsorted(sample, high, "right")]
        count = math.ceil(len(inside) * stride / most)
        # One section that has grown a little stays one: else each change would make two of it.
        count = count if len(inside) * stride > GROW * most else 1
        cuts = sorted({int(inside[len(inside) * cut // count]) for cut in range(1, count)})
        plan += itertools.pairwise([low, *cuts, high + 1])
    return [(low, after - 1) for low, after in plan]


def _build(objects: Objects, files: _Files, plan: Spans, bytes_max: int | None, bounded: bool) -> Iterator[Section]:
    """The sections of a plan, written.

    Raises: `_TooDeepError`, if `bounded`.
    """
    entries = len(plan) * ENDS_MAX if bytes_max is None else max(ENTRIES_LEAST, bytes_max * HELD // ENTRY_BYTES)
    together = max(1, entries // ENDS_MAX)
    ids = [entry.id for index in files.layers for entry in index.entries]
    left = COVERS_MAX * (sum(index.count for index in files.layers) + ENDS_MAX)
    threads = min(THREADS_MAX, len(os.sched_getaffinity(0)))

    def inputs(spans: Spans) -> Iterator[tuple[tuple[int, int], _Entries]]:
        nonlocal left
        ends, covers = _entries_of(files, spans, ids, entries)
        for number, span in enumerate(spans):
            whole = covers.take((covers.first <= number) & (number <= covers.last)).within(number).pruned()
            left -= len(whole)
            if bounded and left < 0:
                raise _TooDeepError
            yield span, _Entries.of([ends[number], whole])

    def build(item: tuple[tuple[int, int], _Entries]) -> Iterator[Section]:
        yield _section(objects, *item, ids)

    for begin in range(0, len(plan), together):
        for built in ordered_results(build, inputs(plan[begin : begin + together]), threads):
            yield from built


def _section(objects: Objects, span: tuple[int, int], entries: _Entries, ids: Sequence[str]) -> Section:
    pieces = np.unique(entries.place >> 32)
    place = (np.searchsorted(pieces, entries.place >> 32) << 32) | (entries.place & 0xFFFFFFFF)
    index = Intervals.build(span, entries.starts, entries.ends, entries.since, place)
    first, last = (int(index.breaks[0]), int(index.breaks[-1])) if len(index.breaks) else (0, 0)
    return Section(span[0], first, last, store_section(objects, index), tuple(ids[piece] for piece in pieces.tolist()))


def _entries_of(files: _Files, spans: Spans, ids: Sequence[str], most: int) -> tuple[list[_Entries], _Entries]:
    """The visible ranges that begin or end in each span, and those that hold all of some, as few as may answer."""
    lower, upper = (np.array([span[side] for span in spans], np.int64) for side in (0, 1))
    number = {ranges.range_name(id_): count for count, id_ in reversed(list(enumerate(ids)))}
    groups = files.near(spans)
    ends: list[_Entries] = []
    covers: list[_Entries] = []
    held = bound = most
    for batch, seen, name in zip(groups.batches, visible_groups(groups), groups.names, strict=True):
        entries = _ranges_of(batch, seen, number[name], files.temporal)
        first, last = np.searchsorted(upper, entries.starts), np.searchsorted(lower, entries.ends, "right") - 1
        meets = first <= last
        entries, first, last = entries.take(meets), first[meets], last[meets]
        whole_first, whole_last = first + (entries.starts > lower[first]), last - (entries.ends < upper[last])
        begins, stops = whole_first > first, (whole_last < last) & ((whole_first == first) | (first != last))
        ends += [entries.within(first).take(begins), entries.within(last).take(stops)]
        whole = whole_first <= whole_last
        covers.append(entries.within(whole_first, whole_last).take(whole).pruned())
        held -= len(covers[-1])
        if held < 0:
            covers = [_Entries.of(covers).pruned()]
            bound = max(bound, 2 * len(covers[0]))
            held = bound - len(covers[0])
    together = _Entries.of(ends)
    together = together.take(np.argsort(together.first, kind="stable"))
    cuts = np.searchsorted(together.first, np.arange(len(spans) + 1)).tolist()
    return [together.take(slice(*cut)) for cut in itertools.pairwise(cuts)], _Entries.of(covers).pruned()


def _ranges_of(batch: pa.RecordBatch, seen: npt.NDArray[np.bool_], piece: int, temporal: bool) -> _Entries:
    starts, ends = _ends_of(batch.column("key"))
    rows = np.flatnonzero(seen)
    since = _known_since(batch.column("rows"), seen) if temporal else np.full(len(rows), ALWAYS)
    nowhere = np.zeros(len(rows), np.int64)
    return _Entries(nowhere, nowhere, starts[rows], ends[rows], since, (np.int64(piece) << 32) | rows)


def _known_since(rows: pa.Array, seen: npt.NDArray[np.bool_]) -> I64:
    """The least effective time of each group that is seen."""
    offsets = np.frombuffer(rows.buffers()[1], np.int32)[rows.offset : rows.offset + len(rows)]
    times: I64 = rows.values.field("effective_time").to_numpy()
    return times[offsets[seen]]
