"""The result of a commit, as the pond remembers it for a load that comes again."""

from __future__ import annotations

from dataclasses import dataclass

from millpond.maps.log.deduplication import RememberedLoad

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
    def of(cls, load: RememberedLoad) -> Committed:
        """The commit remembered for a load."""
        return cls(
            load=load.load, position=load.position, first_number=load.number, parts=load.parts,
            duplicates=load.duplicates, rejected=load.rejected, rows=dict(load.rows),
        )  # fmt: skip
