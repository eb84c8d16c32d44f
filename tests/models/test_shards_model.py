"""A shard answers as the model does: every kind, every scheme, clashing hashes, after puts and deletes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.maps.address import escape_key
from millpond.maps.kinds import Kind
from millpond.maps.longs import pack_long
from millpond.maps.shard import Shard
from millpond.maps.values import python_value
from millpond.testing import strategies
from millpond.testing.models import MapModel, bits_of
from millpond.testing.rows import canonical_of

if TYPE_CHECKING:
    import pyarrow as pa

    from millpond.maps.kinds import MapDefinition
    from millpond.testing.models import Address, Row
    from millpond.testing.strategies import Pools, Question


def put(shard: Shard, model: MapModel, part: list[Row]) -> None:
    model.put(part)
    unique = MapModel(model.kind, overwrite=model.overwrite)
    unique.put(part)
    rows = canonical_of(shard.definition, unique.scan())
    longest = max((int(row[2]) - int(row[1]) for row in unique.rows), default=0) if model.kind is Kind.SESSION else 0
    shard.change(lambda tx: shard.put_rows(tx, rows, 0, overwrite=shard.definition.overwrite), None, longest=longest)


def delete(shard: Shard, model: MapModel, addresses: list[Address]) -> None:
    known = sorted(set(addresses))
    expected = sum(model.rows.pop(address, model) is not model for address in known)
    batch = canonical_of(shard.definition, [(address, None) for address in known]).select(list(model.kind.address))
    assert shard.change(lambda tx: shard.delete_rows(tx, batch), None) == expected


def ask(shard: Shard, question: Question) -> object:
    key, at = question
    found = shard.get(key.encode() if isinstance(key, str) else key, at)
    return python_value(found, shard.definition.value) if isinstance(found, bytes) else found


def contents(batches: list[pa.RecordBatch], definition: MapDefinition) -> list[object]:
    told = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    return sorted((bits_of(row) for row in told), key=lambda row: row[: len(definition.kind.address)])  # type: ignore[index]


def check(shard: Shard, model: MapModel, pools: Pools, asked: list[Question]) -> None:
    definition = shard.definition
    for question in asked:
        assert bits_of(ask(shard, question)) == bits_of(model.answer(*question)), question
    everything = canonical_of(definition, model.scan())
    assert contents(list(shard.read_rows(batch_rows=3)), definition) == contents([everything], definition)
    assert shard.stats().rows == len(model.rows)
    some = [row for row in model.scan() if row[0][0] in pools.keys[::2] or row[0][:2] in spans(model)[::2]]
    wanted = [key.encode() for key in pools.keys[::2]]
    if not definition.kind.keyed:
        wanted = [b"".join(pack_long(int(n), plain=False) for n in span) for span in spans(model)[::2]]
    assert contents(list(shard.read_rows(wanted)), definition) == contents([canonical_of(definition, some)], definition)


def spans(model: MapModel) -> list[Address]:
    return [] if model.kind.keyed else sorted({address[:2] for address in model.rows})


@pytest.mark.parametrize("kind", Kind)
@given(data=st.data())
def test_a_shard_answers_as_the_model(
    kind: Kind, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    definition = data.draw(strategies.definitions(kind=kind))
    pools = data.draw(strategies.pools(definition))
    model = MapModel(kind, overwrite=definition.overwrite)
    shard = Shard(tmp_path_factory.mktemp("shard"), definition)
    try:
        for _ in range(data.draw(st.integers(1, 3))):
            put(shard, model, data.draw(strategies.rows(definition, pools)))
            if data.draw(st.booleans()):
                known = st.sampled_from(sorted(model.rows)) if model.rows else st.nothing()
                unknown = strategies.rows(definition, pools, most=2).map(lambda part: part[0][0])
                delete(shard, model, data.draw(st.lists(known | unknown, min_size=1, max_size=4)))
            check(shard, model, pools, data.draw(strategies.questions(definition, pools)))
    finally:
        shard.close()


@given(st.data())
def test_keys_that_meet_only_when_escaped_are_kept_apart(data: st.DataObject) -> None:
    one, other = data.draw(strategies.keys()), data.draw(strategies.keys())
    together = [escape_key(key.encode()) + b"\0" for key in (one, other)]
    assert (together[0] == together[1]) == (one == other)
    assert one == other or not together[0].startswith(together[1])
    assert (together[0] < together[1]) == (one.encode() < other.encode())
