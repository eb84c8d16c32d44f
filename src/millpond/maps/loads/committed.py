"""The result of a commit, as the pond remembers it for a load that comes again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ("Committed",)


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of a commit: its position in the log, and its parts.

    `rows` counts for each map what was brought, also in parts that were there already: `duplicates` of them.
    """

    load: str
    position: int
    first_number: int
    parts: int
    duplicates: int
    rejected: int
    rows: dict[str, int]

    @property
    def numbers(self) -> range:
        """The numbers of its parts."""
        return range(self.first_number, self.first_number + self.parts)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Committed:
        """The commit remembered for a load."""
        return cls(
            load=row["load"], position=row["position"], first_number=row["number"], parts=row["parts"],
            duplicates=row["duplicates"], rejected=row["rejected"], rows=dict(row["rows"]),
        )  # fmt: skip
