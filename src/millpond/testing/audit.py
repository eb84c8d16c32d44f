"""Holding readers against the model: ask both, and say where they differ.

Each function takes the model (`models.MapModel`) and a reader, and asserts that both tell the same. Tests after every
change call these; so may anybody who doubts a map whose history is known.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from millpond.maps.longs import pack_long
from millpond.maps.values import python_value
from millpond.testing.models import bits_of
from millpond.testing.rows import canonical_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from millpond.maps.kinds import MapDefinition
    from millpond.maps.shard import Shard
    from millpond.testing.models import Address, MapModel, Row
    from millpond.testing.strategies import Question

__all__ = ("ask_shard", "audit_shard", "canonical_bits", "spans_of")


def ask_shard(shard: Shard, question: Question) -> object:
    """What the shard answers, in the model's words."""
    key, at = question
    found = shard.get(key.encode() if isinstance(key, str) else key, at)
    return python_value(found, shard.definition.value) if isinstance(found, bytes) else found


def canonical_bits(batches: Iterable[pa.RecordBatch], definition: MapDefinition) -> list[object]:
    """Canonical rows sorted by address, comparable by `==`."""
    told = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    address = len(definition.kind.address)
    return [bits_of(row) for row in sorted(told, key=lambda row: row[:address])]


def spans_of(model: MapModel) -> list[Address]:
    """The distinct ranges of a ranged model, sorted."""
    return [] if model.kind.keyed else sorted({address[:2] for address in model.rows})


def audit_shard(shard: Shard, model: MapModel, questions: Sequence[Question]) -> None:
    """Every question, every row, the count, and the rows of half of the keys (or ranges) alone."""
    definition = shard.definition
    for question in questions:
        told = ask_shard(shard, question)
        assert bits_of(told) == bits_of(model.answer(*question)), (question, told, model.answer(*question))
    assert _read(shard, batch_rows=3) == _bits(definition, model.scan())
    assert shard.stats().rows == len(model.rows)
    _audit_some_keys(shard, model)
    _audit_bounds(shard, model)


def _read(shard: Shard, keys: list[bytes] | None = None, **bounds: int) -> list[object]:
    return canonical_bits(shard.read_rows(keys, **bounds), shard.definition)  # type: ignore[arg-type]


def _bits(definition: MapDefinition, rows: Sequence[Row]) -> list[object]:
    return canonical_bits([canonical_of(definition, rows)], definition)


def _audit_some_keys(shard: Shard, model: MapModel) -> None:
    if model.kind.keyed:
        chosen = sorted({address[0] for address in model.rows})[::2]
        asked = [str(key).encode() for key in chosen]
        rows = [row for row in model.scan() if row[0][0] in chosen]
    else:
        spans = spans_of(model)[::2]
        asked = [b"".join(pack_long(int(number), plain=False) for number in span) for span in spans]
        rows = [row for row in model.scan() if row[0][:2] in spans]
    assert _read(shard, asked) == _bits(shard.definition, rows)


def _audit_bounds(shard: Shard, model: MapModel) -> None:
    """Ranged maps between two starts: exactly the rows that start there."""
    starts = sorted({int(address[0]) for address in model.rows}) if not model.kind.keyed else []
    for lower, upper in pairwise(starts):
        rows = [row for row in model.scan() if lower <= int(row[0][0]) <= upper]
        assert _read(shard, lower=lower, upper=upper) == _bits(shard.definition, rows), (lower, upper)
