"""The sections of an open snapshot of ranges, each opened when a number is first looked up in it.

Invariants:
* Kernels read a line of the table only after `need` returned for its section; a line is written once.
* What a line points to is held as long as the table.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from millpond.arrays.radix import I64
from millpond.maps.search.group_table import COUNT
from millpond.maps.search.groups import Groups
from millpond.maps.search.intervals import LINE, Intervals
from millpond.maps.search.validate import check_positions, damaged

__all__ = ("OpenSections", "group_counts", "pieces_of")


class OpenSections:
    """Sections as kernels read them: where they begin, and a table with a line for each that was needed."""

    def __init__(
        self, lower: I64, breaks: tuple[int, int], uses: Sequence[I64], counts: I64,
        load: Callable[[int], tuple[Intervals, str]],
    ) -> None:  # fmt: skip
        """`breaks` are the first and the last of all; `uses` the pieces that each section's places count, `counts` the
        groups of each piece; `load` gives a section's index, and the name of its file.
        """
        self.lower = lower
        self.first, self.last = breaks
        self.table = np.zeros((len(lower), LINE), np.int64)
        self._uses, self._counts, self._load = uses, counts, load
        self._held: dict[int, Intervals] = {}
        self._open = np.zeros(len(lower), np.bool_)
        self._lock = threading.Lock()

    def need(self, needed: npt.NDArray[np.bool_]) -> None:
        """Open what is not open yet of the sections marked.

        Raises: `NotFound`, `Corrupt`, naming the file.
        """
        if not np.any(needed & ~self._open):
            return
        with self._lock:
            for number in np.flatnonzero(needed & ~self._open).tolist():
                index, name = self._load(number)
                uses = self._uses[number]
                check_positions(index.place, self._counts[uses], name)
                self._held[number] = index
                self.table[number] = index.line(uses)
                self._open[number] = True


def pieces_of(groups: Groups, uses: Sequence[Sequence[str]], name: str) -> list[I64]:
    """The pieces of the range files that sections use, whose object names are given.

    Raises: `Corrupt`, naming the list, when it tells of others than the snapshot has.
    """
    number = {piece: count for count, piece in reversed(list(enumerate(groups.names)))}
    try:
        return [np.array([number[piece] for piece in pieces], np.int64) for pieces in uses]
    except KeyError as error:
        raise damaged(name) from error


def group_counts(groups: Groups) -> I64:
    """The number of groups of each piece."""
    return groups.table[:-1, COUNT]
