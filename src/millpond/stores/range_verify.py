"""Checking files that are named by their content, and above all an index and its ranges, byte by byte.

What is damaged is told by its name and can be set aside: then it lies under `quarantine/`, and who wants it is told
that it is missing. Nothing damaged is read by mistake, and nothing is passed over in silence. `fetch` brings it again
from a place that has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from millpond.errors import Corrupt, Invalid, NotFound
from millpond.kernel.verify import Report, checked, problem
from millpond.stores.range_index import content_id, index_name, load_index, range_name
from millpond.stores.range_keys import first_unordered, key_column
from millpond.stores.range_reader import open_range

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from millpond.stores.objects import Objects
    from millpond.stores.range_index import Index, RangeEntry

__all__ = ("Verifier", "quarantine", "verify")


def verify(objects: Objects, index_id: str) -> Report:
    """Everything that is wrong with an index and its ranges; every file is read whole.

    Raises: `Unavailable` when the place does not answer: then nothing is known.
    """
    return Verifier(objects).index(index_id)


def quarantine(objects: Objects, name: str) -> str:
    """Set a damaged object aside; its new name. It is kept for who wants to look at it.

    Raises: `NotFound`.
    """
    aside = f"quarantine/{PurePosixPath(name).name}"
    objects.rename(name, aside)
    return aside


@dataclass(frozen=True, slots=True)
class Verifier:
    """How files of one place are checked, and what is done about those that are damaged.

    `subject` and `remedy` are what the report says of them; `set_aside` moves damaged ones into quarantine.
    """

    objects: Objects
    subject: str = "range file"
    remedy: str = "fetch it again from a place that has it, or make it anew"
    set_aside: bool = False

    def index(self, index_id: str) -> Report:
        """Check an index and all its ranges.

        Raises: `Unavailable`.
        """
        name = index_name(index_id)
        try:
            index = load_index(self.objects, index_id)
        except (NotFound, Corrupt, Invalid) as error:
            return self._wrong(name, error)
        found = next(_faults_of_index(index), None)
        report = checked(self.subject) if found is None else self._wrong(name, found)
        for entry in index.entries:
            report += self._range(index, entry)
        return report

    def file(self, name: str) -> Report:
        """Check any file whose name, but for its suffix, is the id of its content.

        Raises: `Unavailable`.
        """
        try:
            whole = content_id(self.objects.get(name)) == PurePosixPath(name).stem
        except NotFound as error:
            return self._wrong(name, error)
        return checked(self.subject) if whole else self._wrong(name, "the file is not what was written")

    def _range(self, index: Index, entry: RangeEntry) -> Report:
        name = range_name(entry.id)
        try:
            batch = open_range(self.objects, entry, verify=True)
        except (NotFound, Corrupt) as error:
            return self._wrong(name, error)
        found = next(_faults_of_range(batch, index, entry), None)
        return checked(self.subject) if found is None else self._wrong(name, found)

    def _wrong(self, name: str, found: str | NotFound | Corrupt | Invalid) -> Report:
        # a missing file cannot be moved; one of a newer format is not damaged
        if self.set_aside and not isinstance(found, NotFound | Invalid):
            name = quarantine(self.objects, name)
        told = found if isinstance(found, str) else found.message
        return problem(self.subject, f"{self.objects.where}/{name}", told, self.remedy)


def _faults_of_index(index: Index) -> Iterator[str]:
    for before, after in pairwise(index.entries):
        if before.last >= after.first:
            yield f"ranges overlap: {before.id} and {after.id}"


def _faults_of_range(batch: pa.RecordBatch, index: Index, entry: RangeEntry) -> Iterator[str]:
    """What a right checksum does not tell: that it was written wrong."""
    try:
        batch.validate(full=True)
    except ValueError as error:
        yield f"the columns are not well formed: {error}"
        return
    if not batch.schema.equals(index.schema):
        yield "the columns are not those of the index"
        return
    keys = key_column(batch.column("key"))
    if first_unordered(keys.offsets, keys.data) >= 0:
        yield "keys do not ascend"
    if len(keys) == 0 or (keys[0], keys[len(keys) - 1]) != (entry.first, entry.last):
        yield "first and last key are not those of the index"
