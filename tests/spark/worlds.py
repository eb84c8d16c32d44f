"""Small worlds for every kind of map: definitions, rows that meet again, nest and repeat, and questions about them.

Drawn from a seed, so that a test runs one Spark job for hundreds of cases.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from millpond.maps.model.definition import Kind, MapDefinition, ScalarType, Scheme, ValueType, parse_value_type
from tests.harness.models import MapModel
from tests.harness.rows import table_of

if TYPE_CHECKING:
    from millpond import Map, Pond
    from tests.harness.models import Row

START_MS = 1_357_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KEYS = ("", "a", "ab", "é", "\U0001f600", "k" * 29, "k" * 30, "k" * 511, "k" * 3_000, *(f"key{n}" for n in range(20)))


def definition(kind: str, value: str | None = None, **settings: Any) -> MapDefinition:
    return MapDefinition(
        name=f"{kind}_map", kind=Kind(kind), incarnation="0" * 16,
        value=None if value is None else parse_value_type(value), **settings,
    )  # fmt: skip


WORLDS = [
    pytest.param(definition("state"), id="state of any type"),
    pytest.param(definition("state", "binary", scheme=Scheme.HASH, hash_bits=2), id="state, clashing"),
    pytest.param(definition("temporal_state", "temp double, note string, seen timestamp"), id="temporal_state"),
    pytest.param(definition("temporal_state", "string", scheme=Scheme.LOOKUP, overwrite=False), id="first wins"),
    pytest.param(definition("ranged_state", "long"), id="ranged_state"),
    pytest.param(definition("temporal_ranged_state", "boolean"), id="temporal_ranged_state"),
    pytest.param(definition("session"), id="session"),
]


def create(pond: Pond, definition: MapDefinition) -> Map:
    return pond.create_map(
        definition.name, kind=definition.kind, value=definition.value, scheme=definition.scheme,
        hash_bytes=definition.hash_bytes, hash_bits=definition.hash_bits, overwrite=definition.overwrite,
    )  # fmt: skip


class World:
    """Rows of one map in the order they come, the model of them, and questions."""

    def __init__(self, definition: MapDefinition, seed: int, rows: int = 400) -> None:
        self.definition = definition
        self.draw = np.random.default_rng(seed)
        self.rows: list[Row] = [(self._address(), self._value()) for _ in range(rows)]
        self.model = MapModel(definition.kind, overwrite=definition.overwrite)
        self.model.put(self.rows)

    def table(self) -> pa.Table:
        return table_of(self.definition, self.rows)

    def questions(self, count: int = 300) -> pa.Table:
        """Keys (numbers, for ranged maps) and times; some of them null."""
        keys = [None if self.draw.random() < 0.02 else self._wanted_key() for _ in range(count)]
        times = [None if self.draw.random() < 0.02 else self._time(2) for _ in range(count)]
        kind = pa.string() if self.definition.kind.keyed else pa.int64()
        instants = pa.array(times, pa.int64()).cast(pa.timestamp("ms", tz="UTC"))
        return pa.table({"number": pa.array(range(count)), "wanted": pa.array(keys, kind), "moment": instants})

    def answers(self, questions: pa.Table) -> list[object]:
        """The model's answers, as Spark shows them."""
        pairs = zip(questions["wanted"].to_pylist(), questions["moment"].cast(pa.int64()).to_pylist(), strict=True)
        return [self._answer(key, time) for key, time in pairs]

    def _answer(self, key: Any, time: int | None) -> object:
        if key is None or (time is None and self.definition.kind.timed):
            return None
        answer = self.model.answer(key, time or 0)
        if self.definition.kind is Kind.SESSION and isinstance(answer, tuple):
            return {"start": moment(answer[0]), "end": moment(answer[1])}
        return answer

    def _address(self) -> tuple[Any, ...]:
        kind = self.definition.kind
        if kind.keyed:
            head: tuple[Any, ...] = (KEYS[self.draw.integers(len(KEYS))],)
        else:
            head = tuple(sorted(int(n) for n in self.draw.integers(-60, 60, 2)))
        if kind is Kind.SESSION:
            return (*head, *sorted((self._time(), self._time())))
        return (*head, self._time()) if kind.temporal else head

    def _wanted_key(self) -> Any:
        if not self.definition.kind.keyed:
            return int(self.draw.integers(-70, 70))
        key = KEYS[self.draw.integers(len(KEYS))]
        return key + "\0" if self.draw.random() < 0.1 else key

    def _time(self, beyond: int = 0) -> int:
        return START_MS + 1_000 * int(self.draw.integers(-beyond, 30 + beyond))

    def _value(self) -> object:
        value = self.definition.value
        if not self.definition.kind.valued:
            return None
        if self.draw.random() < 0.1:
            return None
        if value is None:
            return f"value {self.draw.integers(9)}"
        if value.fields:
            return {name: self._scalar(scalar) for name, scalar in value.fields}
        return self._scalar(value.scalar)

    def _scalar(self, scalar: ScalarType | None) -> object:
        number = int(self.draw.integers(-5, 5))
        return {
            ScalarType.DOUBLE: number / 4, ScalarType.LONG: number << 40, ScalarType.BOOLEAN: number > 0,
            ScalarType.STRING: "v" * (number + 5), ScalarType.BINARY: b"\xff" * (100 * (number + 5)),
            ScalarType.TIMESTAMP: moment(START_MS + number),
        }[scalar or ScalarType.LONG]  # fmt: skip


def moment(millis: int) -> datetime:
    return EPOCH + timedelta(milliseconds=millis)


def plain(value: object) -> object:
    """A value that Spark collected, comparable with the model's."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, bytearray):
        return bytes(value)
    as_dict = getattr(value, "asDict", None)
    return {name: plain(inner) for name, inner in as_dict().items()} if as_dict else value


__all__ = ("START_MS", "WORLDS", "ValueType", "World", "create", "definition", "moment", "plain")
