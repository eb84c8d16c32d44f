"""Sights of readers, worked out from the rows of a scan or the answers of a lookup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tests.harness.chaos.batches import Batch, LoadId
from tests.harness.chaos.oracle import Sight
from tests.harness.models import bits_of

if TYPE_CHECKING:
    from millpond.maps.model.definition import MapDefinition

__all__ = ("sight_of_answers", "sight_of_rows")

SHOWN_ROWS = 3


def sight_of_answers(batch: Batch, answers: Sequence[object]) -> Sight:
    """The sight of one lookup of all own rows of a load."""
    found = [bits_of(answer) for answer in answers]
    absent = bits_of(None)
    right = [answer == wanted for answer, wanted in zip(found, batch.answers, strict=True)]
    strange = tuple(
        f"{question} of {batch.load} is {answer}"
        for question, answer, is_right in zip(batch.questions, found, right, strict=True)
        if not is_right and answer != absent
    )[:SHOWN_ROWS]
    only = frozenset((batch.load,))
    return Sight(
        batch.load.map, only, whole=only if all(right) else frozenset(),
        half=only if any(right) and not all(right) else frozenset(), strange=strange,
    )  # fmt: skip


def sight_of_rows(definition: MapDefinition, batches: Iterable[Batch], rows: Sequence[object]) -> Sight:
    """The sight of a scan; `rows` as `presented_rows` makes them, `batches` of all loads of the map that were begun."""
    width = len(definition.kind.address)
    addresses = Counter(_address(row, width) for row in rows)
    left = set(rows)
    whole, half, marks = set[LoadId](), set[LoadId](), dict[int, int | None]()
    for batch in batches:
        seen = batch.shown & left
        left -= seen
        if seen:
            (whole if seen == batch.shown else half).add(batch.load)
        if batch.mark is not None:
            marks.setdefault(batch.load.writer, None)
        if batch.mark is not None and batch.shown_mark in left:
            left.discard(batch.shown_mark)
            marks[batch.load.writer] = batch.load.number
    doubled = [str(address) for address, count in addresses.items() if count > 1]
    return Sight(
        definition.name, None, frozenset(whole), frozenset(half), marks, tuple(doubled[:SHOWN_ROWS]),
        tuple(str(row) for row in list(left)[:SHOWN_ROWS]),
    )  # fmt: skip


def _address(row: object, width: int) -> object:
    assert isinstance(row, tuple)
    return row[:width]
