"""Maintenance does to a shard what the model says: every kind, every scheme, in changes of any size."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.clock import ManualClock
from millpond.maps.maintenance.maintenance import MaintenanceReport, compact, condense, retain
from millpond.maps.model.definition import PLAIN_KINDS, Kind, MapDefinition, Scheme
from millpond.maps.model.one_value import python_value
from millpond.maps.shard.shard import Shard
from tests.harness import strategies
from tests.harness.models import MapModel, bits_of
from tests.harness.rows import canonical_of
from tests.rings.sampling import examples

if TYPE_CHECKING:
    import pyarrow as pa

    from tests.harness.models import Row

few = settings(max_examples=examples(4, 12))  # each example syncs a handful of files
TIMED = [kind for kind in PLAIN_KINDS if kind.timed]


def put(shard: Shard, model: MapModel, part: list[Row], now: int) -> None:
    model.put(part, now=now)
    unique = MapModel(model.kind, overwrite=model.overwrite)
    unique.put(part)
    rows = canonical_of(shard.definition, unique.scan())
    longest = max((int(row[2]) - int(row[1]) for row in unique.rows), default=0) if model.kind is Kind.SESSION else 0
    shard.change(lambda tx: shard.put_rows(tx, rows, now, overwrite=shard.definition.overwrite), None, longest=longest)


def contents(batches: list[pa.RecordBatch], definition: MapDefinition) -> list[object]:
    rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    return sorted((bits_of(row) for row in rows), key=lambda row: row[: len(definition.kind.address)])  # type: ignore[index]


def check(shard: Shard, model: MapModel) -> None:
    definition = shard.definition
    expected = contents([canonical_of(definition, model.scan())], definition)
    assert contents(list(shard.read_rows()), definition) == expected
    assert shard.stats().rows == len(model.rows)


def ask(shard: Shard, key: str | int, at: int) -> object:
    found = shard.get(key.encode() if isinstance(key, str) else key, at)
    return python_value(found, shard.definition.value) if isinstance(found, bytes) else found


class Drawn:
    """A shard and its model with a few merged parts."""

    def __init__(self, data: st.DataObject, folder: pytest.TempPathFactory, kind: Kind, **settings: object) -> None:
        definition = replace(data.draw(strategies.definitions(kind=kind)), **settings)  # type: ignore[arg-type]
        self.pools = data.draw(strategies.pools(definition))
        self.model = MapModel(kind, overwrite=definition.overwrite)
        self.shard = Shard(folder.mktemp("shard"), definition)
        self.now = 0
        for self.now in range(1, 1 + data.draw(st.integers(1, 3))):
            part = data.draw(strategies.rows(definition, self.pools, most=20))
            put(self.shard, self.model, part, self.now)
        self.rows_per_change = data.draw(st.integers(2, 6) | st.just(100))
        beside = st.sampled_from(self.pools.times).flatmap(lambda ms: st.integers(ms - 1, ms + 1))
        by_update = definition.condense_by == "update_time"
        self.before = data.draw(st.integers(1, self.now + 1) if by_update else beside)

    def condense(self) -> MaintenanceReport:
        return condense(
            self.shard, self.shard.definition, self.before, clock=ManualClock(now=100),
            rows_per_change=self.rows_per_change,
        )  # fmt: skip

    def retain(self, before: int) -> MaintenanceReport:
        return retain(
            self.shard, self.shard.definition, before, clock=ManualClock(now=100),
            rows_per_change=self.rows_per_change,
        )  # fmt: skip


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(1)
@pytest.mark.parametrize("by", ["effective_time", "update_time"])
@pytest.mark.parametrize("kind", TIMED)
@few
@given(data=st.data())
def test_condensing_does_what_the_model_says(
    kind: Kind, by: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    drawn = Drawn(data, tmp_path_factory, kind, condense_by=by)
    questions = data.draw(strategies.questions(drawn.shard.definition, drawn.pools))
    known = [drawn.model.answer(*question) for question in questions]
    report = drawn.condense()
    assert report.rows_removed == drawn.model.condense(drawn.before, by=by)
    check(drawn.shard, drawn.model)
    if kind.temporal:
        assert bits_of([ask(drawn.shard, *question) for question in questions]) == bits_of(known), "no answer changes"
    else:
        held = [answer is not None for answer in known]
        assert [ask(drawn.shard, *question) is not None for question in questions] == held, "no time is lost or won"
        assert [ask(drawn.shard, *question) for question in questions] == [
            drawn.model.answer(*question) for question in questions
        ]
    version = drawn.shard.version
    again = drawn.condense()
    assert (again.rows_removed, again.changes, drawn.shard.version) == (0, 0, version)
    assert drawn.model.condense(drawn.before, by=by) == 0
    drawn.shard.close()


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", TIMED)
@few
@given(data=st.data())
def test_retention_by_effective_time_does_what_the_model_says(
    kind: Kind, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    drawn = Drawn(data, tmp_path_factory, kind)
    report = drawn.retain(drawn.before)
    assert report.rows_removed == drawn.model.retain(drawn.before)
    check(drawn.shard, drawn.model)
    assert drawn.retain(drawn.before).changes == 0
    drawn.shard.close()


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", PLAIN_KINDS)
@few
@given(data=st.data())
def test_retention_by_update_time_does_what_the_model_says(
    kind: Kind, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    by = "update_time" if kind.timed else data.draw(st.sampled_from(("update_time", "effective_time")))
    condense_by = data.draw(st.sampled_from(("update_time", "effective_time")))
    drawn = Drawn(data, tmp_path_factory, kind, retain_ms=1, retain_by=by, condense_by=condense_by)
    if kind.timed and data.draw(st.booleans()):
        drawn.condense()
        drawn.model.condense(drawn.before, by=condense_by)
    before = data.draw(st.integers(0, drawn.now + 1))
    assert drawn.retain(before).rows_removed == drawn.model.retain(before, by="update_time")
    check(drawn.shard, drawn.model)
    drawn.shard.close()


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", PLAIN_KINDS)
@few
@given(data=st.data())
def test_compacting_keeps_every_row(kind: Kind, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    drawn = Drawn(data, tmp_path_factory, kind, retain_ms=data.draw(st.none() | st.just(1)))
    report = compact(drawn.shard, clock=ManualClock())
    assert (report.rows_removed, report.changes) == (0, 1)
    check(drawn.shard, drawn.model)
    part = data.draw(strategies.rows(drawn.shard.definition, drawn.pools))
    put(drawn.shard, drawn.model, part, drawn.now + 1)
    check(drawn.shard, drawn.model)
    assert [path.name for path in drawn.shard.folder.iterdir() if path.name.isdigit()] == ["000002"]
    drawn.shard.close()


@pytest.mark.usefixtures("processor")
@few
@given(data=st.data())
def test_interned_strings_that_no_row_uses_are_forgotten(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    drawn = Drawn(data, tmp_path_factory, Kind.TEMPORAL_STATE, scheme=Scheme.LOOKUP)
    drawn.retain(drawn.before)
    drawn.model.retain(drawn.before)
    with drawn.shard.view() as view:
        assert view.tx is not None
        counts = {name: view.tx.stat(db)["entries"] for name, db in view.store.dbs.items()}
    if drawn.shard.version > drawn.now:
        assert counts["keys"] == counts["key_ids"] == len({address[0] for address in drawn.model.rows})
        assert counts["values"] == counts["value_ids"] == len({bits_of(value) for value in drawn.model.rows.values()})
    drawn.shard.close()
