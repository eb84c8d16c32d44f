"""Checking an index and its ranges, byte by byte; what is damaged is told by name and can be set aside.

A file that is set aside lies under `quarantine/` with its name. Who wants it then is told that it is missing: nothing
damaged is read by mistake, and nothing is passed over in silence. `fetch` brings it again from a place that has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from millpond.errors import Corrupt, Invalid, MillpondError, NotFound
from millpond.stores.range_index import index_name, load_index, range_name
from millpond.stores.range_keys import first_unordered, key_column
from millpond.stores.range_reader import open_range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.stores.objects import Objects
    from millpond.stores.range_index import Index, RangeEntry

__all__ = ("Problem", "quarantine", "verify")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: with which object, its kind as errors carry it, and in words."""

    object: str
    kind: str
    message: str

    @property
    def damaged(self) -> bool:
        """Whether the object is there but is not what was written."""
        return not self.kind.endswith("_not_found")


def verify(objects: Objects, index_id: str) -> list[Problem]:
    """Everything that is wrong with an index and its ranges; every file is read whole. An empty list: all is well.

    Raises: `Unavailable` when the place does not answer: then nothing is known.
    """
    try:
        index = load_index(objects, index_id)
    except (NotFound, Corrupt, Invalid) as error:
        return [_problem(index_name(index_id), error)]
    return [
        *_check_index(index),
        *(problem for entry in index.entries for problem in _check_range(objects, index, entry)),
    ]


def quarantine(objects: Objects, name: str) -> str:
    """Set a damaged object aside; its new name. It is kept for who wants to look at it.

    Raises: `NotFound`.
    """
    aside = f"quarantine/{name.rpartition('/')[2]}"
    objects.rename(name, aside)
    return aside


def _check_index(index: Index) -> Iterator[Problem]:
    for before, after in pairwise(index.entries):
        if before.last >= after.first:
            yield Problem(index_name(index.id), "index_order", f"ranges overlap. before={before.id} after={after.id}")


def _check_range(objects: Objects, index: Index, entry: RangeEntry) -> Iterator[Problem]:
    name = range_name(entry.id)
    try:
        batch = open_range(objects, entry, verify=True)
        batch.validate(full=True)
    except (NotFound, Corrupt) as error:
        yield _problem(name, error)
        return
    except ValueError as error:
        yield Problem(name, "range_damaged", f"the columns are not well formed. reason={error}")
        return
    if not batch.schema.equals(index.schema):
        yield Problem(name, "range_schema", "the columns are not those of the index")
        return
    keys = key_column(batch.column("key"))
    if first_unordered(keys.offsets, keys.data) >= 0:
        yield Problem(name, "range_order", "keys do not ascend")
    if len(keys) == 0 or (keys[0], keys[len(keys) - 1]) != (entry.first, entry.last):
        yield Problem(name, "range_damaged", "first and last key are not those of the index")


def _problem(name: str, error: MillpondError) -> Problem:
    return Problem(name, error.kind, str(error))
