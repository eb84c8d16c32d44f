"""The id of a part: a hash of its map, its salt and its rows, made when it is sealed and again when it is accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from millpond.maps.model.definition import MapDefinition

__all__ = ("ContentId",)


class ContentId:
    """An id in the making. After `begin_table`, add key offsets, keys, value offsets and values, each in any pieces.

    Offsets are int64 from 0, one more than there are rows, over the bytes of the whole table.
    """

    def __init__(self, definition: MapDefinition, salt: str) -> None:
        self._summed = xxhash.xxh3_128()
        self._summed.update(f"{definition.name}\n{definition.incarnation}\n{salt}\n".encode())

    def begin_table(self, table: str, rows: int) -> None:
        """Begin the next table, in the order in which the part has them."""
        self._summed.update(f"{table}\n{rows}\n".encode())

    def add(self, column: npt.NDArray[Any]) -> None:
        """Add the next piece of a column."""
        self._summed.update(np.ascontiguousarray(column).data)

    def hexdigest(self) -> str:
        """The id, 32 hexadecimal digits."""
        return self._summed.hexdigest()
