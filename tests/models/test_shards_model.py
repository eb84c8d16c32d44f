"""A shard answers as the model does: every kind, every scheme, clashing hashes, after puts and deletes."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.maps.model.definition import PLAIN_KINDS, Kind
from millpond.maps.model.key_prefix import escape_key
from millpond.maps.shard.shard import Shard
from tests.harness import strategies
from tests.harness.audit import audit_shard
from tests.harness.models import MapModel
from tests.harness.rows import canonical_of
from tests.harness.scratch import scratch_folder

if TYPE_CHECKING:
    from tests.harness.models import Address, Row


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


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("kind", PLAIN_KINDS)
@given(data=st.data())
def test_a_shard_answers_as_the_model(kind: Kind, data: st.DataObject) -> None:
    definition = data.draw(strategies.definitions(kind=kind))
    pools = data.draw(strategies.pools(definition))
    model = MapModel(kind, overwrite=definition.overwrite)
    with scratch_folder() as folder, closing(Shard(folder, definition)) as shard:
        for _ in range(data.draw(st.integers(1, 3))):
            put(shard, model, data.draw(strategies.rows(definition, pools)))
            if data.draw(st.booleans()):
                known = st.sampled_from(sorted(model.rows)) if model.rows else st.nothing()
                unknown = strategies.rows(definition, pools, most=2).map(lambda part: part[0][0])
                delete(shard, model, data.draw(st.lists(known | unknown, min_size=1, max_size=4)))
            audit_shard(shard, model, data.draw(strategies.questions(definition, pools)))


@given(st.data())
def test_keys_that_meet_only_when_escaped_are_distinct(data: st.DataObject) -> None:
    one, other = data.draw(strategies.keys()), data.draw(strategies.keys())
    together = [escape_key(key.encode()) + b"\0" for key in (one, other)]
    assert (together[0] == together[1]) == (one == other)
    assert one == other or not together[0].startswith(together[1])
    assert (together[0] < together[1]) == (one.encode() < other.encode())
