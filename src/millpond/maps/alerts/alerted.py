"""Crossings that are to be told as events: rows that a change leaves, in the write that enters it.

    load ─▶ one write: log, heads of maps, what is to be told ─▶ events, with the position as their source ─▶ rows go

    ("maps", "alerted", position, number)    some crossings of the change at a position of the log, as JSON

Invariants:
* a change is entered with all that it is to tell, or not at all; so nothing is lost, whenever a process is killed;
* rows are told in the order of the log, and go after their events are stored: an event that is told again has the
  position that it had, and streams leave it out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from millpond.errors import Corrupt
from millpond.json_forms import FormError, JsonForm
from millpond.kernel.steps import step
from millpond.maps.alerts.judging import Crossing
from millpond.maps.model.keyspaces import ALERTED

if TYPE_CHECKING:
    from millpond.kernel.space import Space, Transaction
    from millpond.maps.alerts.judging import Judged
    from millpond.maps.log.log import Entry

__all__ = ("Alerted", "next_alerted", "put_alerted", "remove_alerted")

CROSSINGS_AT_ONCE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Alerted:
    """Some crossings of a map by a change, and of each rule how many more are not told.

    `first` is the number of the first among all crossings of the change.
    """

    map: str
    position: int
    stamp_ms: int
    first: int
    crossings: tuple[Crossing, ...]
    omitted: dict[str, int]


_FORM = JsonForm(Alerted, format=1)


def put_alerted(tx: Transaction, entry: Entry, outcomes: Iterable[Judged]) -> None:
    """Let what was judged be told, in the write that enters the change.

    Raises: `Conflict`, kind `head_moved`, when rules changed since it was judged.
    """
    first, numbers = 0, count()
    for outcome in outcomes:
        outcome.check(tx)
        pieces = [outcome.crossings[at : at + CROSSINGS_AT_ONCE]
                  for at in range(0, len(outcome.crossings), CROSSINGS_AT_ONCE)]  # fmt: skip
        for number, piece in enumerate(pieces, 1):
            omitted = outcome.omitted if number == len(pieces) else {}
            alerted = Alerted(
                map=outcome.map, position=entry.position, stamp_ms=entry.stamp_ms, first=first,
                crossings=tuple(piece), omitted=omitted,
            )  # fmt: skip
            tx.put(ALERTED.pack(entry.position, next(numbers)), _FORM.encode(alerted))
            first += len(piece) + len(omitted)


def next_alerted(space: Space) -> tuple[bytes, Alerted] | None:
    """The first row that is to be told, and its key; None when all is.

    Raises: `Corrupt`.
    """
    with space.read() as tx:
        row = next(tx.scan(ALERTED.range()), None)
    try:
        return None if row is None else (row[0], _FORM.decode(row[1]))
    except FormError as error:
        raise Corrupt(
            "an alert that is to be told cannot be read", kind="alert_damaged", reason=error,
            hint="open the pond with the version that wrote it, or a newer one",
        ) from error  # fmt: skip


def remove_alerted(space: Space, key: bytes) -> None:
    """Let a row go whose events are stored."""
    space.write(lambda tx: tx.delete(key))
    step("alerts.told")
