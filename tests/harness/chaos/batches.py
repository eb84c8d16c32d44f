"""The data of a campaign: five maps, one of each kind, and the rows of every load.

Invariants:
* the rows of a load are a function of the seed, the map, the writer and the number of the load;
* the addresses of a load are its own, but for its **mark**: one address that all loads of a writer to a map share,
  with the number of the load as its value. So a load is there or not, whatever came later, and the mark shows
  which load came last. Sessions have no values, and no mark.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from millpond.maps.model.definition import PLAIN_KINDS, Kind
from tests.harness.audit import shown_answer
from tests.harness.models import MapModel, bits_of

if TYPE_CHECKING:
    from tests.harness.models import Row
    from tests.harness.strategies import Question

__all__ = ("MAPS", "Batch", "LoadId", "batch_of", "mark_question")

MAPS = {kind.value: kind for kind in PLAIN_KINDS}
"""The maps by name: each is called after its kind."""
ROWS_MAX = 12
EPOCH_MS = 1_700_000_000_000
WIDTH = 10


@dataclass(frozen=True, slots=True, order=True)
class LoadId:
    """The identity of a load: its map, its writer, and its number among the writer's loads of that map, from 1."""

    map: str
    writer: int
    number: int

    def __str__(self) -> str:
        return f"{self.map}/{self.writer}/{self.number}"


@dataclass(frozen=True, eq=False)
class Batch:
    """The rows of one load. `own` are at addresses of its own; `mark` is the row that later loads replace."""

    load: LoadId
    own: tuple[Row, ...]
    mark: Row | None

    @property
    def rows(self) -> list[Row]:
        """All rows, as they are loaded."""
        return [*self.own, *([] if self.mark is None else [self.mark])]

    @cached_property
    def questions(self) -> list[Question]:
        """A question for each own row."""
        return [_question(MAPS[self.load.map], row) for row in self.own]

    @cached_property
    def answers(self) -> list[object]:
        """The answer to each question when the load is there, comparable by `==`."""
        model = MapModel(MAPS[self.load.map])
        model.put(self.own)
        return [bits_of(shown_answer(model, question)) for question in self.questions]

    @cached_property
    def shown(self) -> frozenset[object]:
        """The own rows as a scan shows them, in the form of `rows.presented`."""
        return frozenset(self._shown(row) for row in self.own)

    @cached_property
    def shown_mark(self) -> object:
        """The mark in the same form, or None."""
        return None if self.mark is None else self._shown(self.mark)

    def _shown(self, row: Row) -> object:
        address, value = row
        return bits_of(address + ((value,) if MAPS[self.load.map].valued else ()))


@lru_cache(maxsize=50_000)
def batch_of(seed: int, load: LoadId) -> Batch:
    """The rows of a load."""
    chance = random.Random(f"rows {seed} {load}")
    kind = MAPS[load.map]
    count = chance.randint(2, ROWS_MAX)
    own = tuple(
        (_address(kind, load.writer, load.number, at), chance.getrandbits(40) if kind.valued else None)
        for at in range(count)
    )
    mark = (_address(kind, load.writer, 0, 0), load.number) if kind.valued else None
    return Batch(load, own, mark)


def mark_question(name: str, writer: int) -> Question:
    """The question whose answer is the number of the writer's last load, for a map with values."""
    return _question(MAPS[name], (_address(MAPS[name], writer, 0, 0), None))


def _address(kind: Kind, writer: int, number: int, at: int) -> tuple[str | int, ...]:
    """An address of the load's own; number 0 is that of marks."""
    time = EPOCH_MS + number * 1000 + at
    start = (writer * 10_000_000 + number * ROWS_MAX * 2 + at) * WIDTH
    place: tuple[str | int, ...] = (f"w{writer}-{number:06d}-{at}",) if kind.keyed else (start, start + WIDTH - 1)
    if kind is Kind.SESSION:
        return (*place, time, time + 500)
    return (*place, time) if kind.timed else place


def _question(kind: Kind, row: Row) -> Question:
    address = row[0]
    time = address[1] if kind is Kind.SESSION else address[-1]
    assert kind is Kind.SESSION or not kind.timed or isinstance(time, int)
    return address[0], int(time) if kind.timed else 0
