"""Objects in memory whose swaps are not answered at first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.errors import Uncertain
from millpond.stores.objects import MemoryObjects

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ("LossyObjects",)


class LossyObjects(MemoryObjects):
    """Each of the next swaps lands, or not, as `outcomes` say, and its answer is lost."""

    outcomes: tuple[bool, ...] = ()

    def swap(self, name: str, data: bytes | memoryview | pa.Buffer, expected: str | None) -> str:
        if not self.outcomes:
            return super().swap(name, data, expected)
        lands, self.outcomes = self.outcomes[0], self.outcomes[1:]
        if lands:
            super().swap(name, data, expected)
        raise Uncertain("the bucket's answer was lost", kind="objects_uncertain")
