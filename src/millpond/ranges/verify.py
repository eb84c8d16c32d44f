"""Checking files that are named by their content, and above all an index and its ranges: bytes and columns.

A damaged file is reported by its name and can be quarantined: then it lies under `quarantine/`, and who wants it is
told that it is missing. Nothing damaged is read by mistake, and nothing is passed over in silence. `fetch` brings it
again from a place that has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millpond.errors import Corrupt, Invalid, NotFound
from millpond.kernel.verify import Report, checked, problem
from millpond.ranges.blocks import checksum_of, filter_of
from millpond.ranges.files import content_id, read_sealed
from millpond.ranges.ids import columns_id
from millpond.ranges.index import Index, RangeEntry, index_name, load_index, quarantine_name, range_name, read_index
from millpond.ranges.key_columns import first_unordered, key_column
from millpond.ranges.reader import open_range
from millpond.stores.objects import Objects, originals

if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ("Verifier", "check_file", "quarantine", "verify")


def verify(objects: Objects, index_id: str) -> Report:
    """Everything that is wrong with an index and its ranges; every file is read whole.

    Raises: `Unavailable` when the place does not answer: then nothing is known.
    """
    return Verifier(objects).index(index_id)


def check_file(data: pa.Buffer, name: str, where: str, *, arriving: bool = True) -> pa.RecordBatch | None:
    """Check the bytes of a file against its name: of ranges and indexes their checksum and then the id of their
    columns, of all others the id of their bytes. Without `arriving`, a range was checked so once: its checksum will do.
    Answers the rows of a range, so that they need not be unpacked again.

    Raises: `Corrupt`; `Invalid` for a file of another format. Both name the file.
    """
    path = PurePosixPath(name)
    if path.parent.name == "indexes":
        read_index(data, path.stem, where)
    elif path.parent.name == "ranges":
        batch = read_sealed("range", path.stem, data, name=name, where=where)
        if arriving and not _has_id(batch, path.stem):
            raise Corrupt("the columns are not those of the id", kind="range_damaged", object=name, where=where)
        return batch
    elif content_id(data) != path.stem:
        raise Corrupt("the file is not what was written", kind="file_damaged", object=name, where=where)
    return None


def _has_id(batch: pa.RecordBatch, id_: str) -> bool:
    """True when the columns make this id; False also when they are not well formed."""
    try:
        # Hashing follows offsets. Those of a file from elsewhere may lead anywhere.
        batch.validate()
        return columns_id("range", batch) == id_
    except (pa.ArrowException, ArithmeticError, LookupError, TypeError, ValueError, Invalid):
        return False


def quarantine(objects: Objects, name: str) -> str:
    """Quarantine a damaged object; its new name. It is kept for who wants to look at it.

    Raises: `NotFound`.
    """
    target = quarantine_name(name)
    objects.rename(name, target)
    return target


@dataclass(frozen=True, slots=True)
class Verifier:
    """A check of the files of one place, with the treatment of damaged ones.

    `subject` and `remedy` are what the report says of them; `quarantine_folder` moves damaged ones into quarantine.
    """

    objects: Objects
    subject: str = "range file"
    remedy: str = "fetch it again from a place that has it, or make it anew"
    quarantine_folder: bool = False

    def index(self, index_id: str) -> Report:
        """Check an index and all its ranges.

        Raises: `Unavailable`.
        """
        name = index_name(index_id)
        try:
            index = load_index(self.objects, index_id)
        except (NotFound, Corrupt, Invalid) as error:
            return self._wrong(name, error)
        # Its ranges are checked all the same, for other indexes may list them, too.
        fault = next(_faults_of_index(index), None)
        report = checked(self.subject) if fault is None else self._wrong(name, fault)
        for entry in index.entries:
            report += self._range(index, entry)
        return report

    def file(self, name: str) -> Report:
        """Check any file that is named by its content.

        Raises: `Unavailable`.
        """
        try:
            check_file(self.objects.get(name), name, self.objects.where)
        except (NotFound, Corrupt, Invalid) as error:
            return self._wrong(name, error)
        return checked(self.subject)

    def _range(self, index: Index, entry: RangeEntry) -> Report:
        name = range_name(entry.id)
        try:
            batch = open_range(self.objects, entry, verify=True)
        except (NotFound, Corrupt, Invalid) as error:
            return self._wrong(name, error)
        # The first is enough: the file goes as a whole, and what comes next mostly follows from it.
        fault = next(_faults_of_range(batch, index, entry), None)
        return checked(self.subject) if fault is None else self._wrong(name, fault)

    def _wrong(self, name: str, fault: str | NotFound | Corrupt | Invalid) -> Report:
        # a missing file, or one in quarantine, cannot be moved; one of a newer format is not damaged
        remedy, objects = self.remedy, self.objects
        if self.quarantine_folder and not isinstance(fault, NotFound | Invalid) and objects.exists(name):
            name, remedy = quarantine(objects, name), f"it was quarantined; {remedy}"
        reason = fault if isinstance(fault, str) else fault.message
        return problem(self.subject, f"{originals(objects).where.rstrip('/')}/{name}", reason, remedy)


def _faults_of_index(index: Index) -> Iterator[str]:
    for before, after in pairwise(index.entries):
        if before.last >= after.first:
            yield f"ranges overlap: {before.id} and {after.id}"


def _faults_of_range(batch: pa.RecordBatch, index: Index, entry: RangeEntry) -> Iterator[str]:
    """Semantic checks: order, boundaries, counts; a right checksum does not exclude that the range was written
    wrong.
    """
    try:
        # First, since all that follows reads by the offsets of the columns.
        batch.validate(full=True)
    except ValueError as error:
        yield f"the columns are not well formed: {error}"
        return
    if not batch.schema.equals(index.schema):
        yield "the columns are not those of the index"
        return
    if not _has_id(batch, entry.id):
        yield "the columns are not those of the id"
        return
    keys = key_column(batch.column("key"))
    if first_unordered(keys.offsets, keys.data) >= 0:
        yield "keys do not ascend"
    if len(keys) == 0 or (keys[0], keys[len(keys) - 1]) != (entry.first, entry.last):
        yield "first and last key are not those of the index"
    # A reader chooses a block by these keys, and looks into no other: a wrong one hides what is there.
    table = entry.blocks
    if table is not None and [keys[row] for row in np.cumsum([0, *table.rows[:-1]])] != list(table.firsts):
        yield "the blocks of the index do not begin where it says"
    if _has_other_filter(entry, batch.column("key")):
        yield "the filter of the index is not that of the keys"


def _has_other_filter(entry: RangeEntry, keys: pa.Array) -> bool:
    """True when an index has, or names by its checksum, a filter that is not that of the keys of a range."""
    if entry.filter is None and not entry.filter_checksum:
        return False
    # A wrong filter hides keys, and nothing shows it: the range is not even read.
    expected = filter_of(keys)
    return checksum_of(expected) != entry.filter_checksum if entry.filter is None else bool(expected != entry.filter)
