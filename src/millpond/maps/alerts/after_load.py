"""The groups that a load into layers touched, after it, without a look into what it brought: these rows are known.

    looked up under the load    JFK 10:00  90 orders     LGA 10:00  no row
    brought                     JFK 10:00  12            LGA 10:00  3
    after it                    JFK 10:00  102           LGA 10:00  3

Other groups are as the state after the load says, which is opened when it is asked for one of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.maps.alerts.crossings import Addresses, Groups, Looked, plain_keys
from millpond.maps.model.columns import value_arrow
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.tags import TAGS
from millpond.maps.predicates.predicate import Predicate
from millpond.maps.predicates.taken import taken_rows
from millpond.maps.search.combining import combined, fields_of

__all__ = ("AfterLoad",)


@dataclass(frozen=True, slots=True)
class AfterLoad:
    """The groups of a state: those at some `addresses` are the `rows` of a load, combined with what was `before`."""

    definition: MapDefinition
    before: Looked | None
    after: Groups
    addresses: Addresses
    rows: pa.RecordBatch

    def holds(self, condition: Predicate, addresses: Addresses) -> npt.NDArray[np.bool_]:
        if addresses is not self.addresses:
            return self.after.holds(condition, addresses)
        rows = self.rows
        if not {"key", TAGS}.isdisjoint(condition.columns):
            rows = rows.set_column(0, "key", plain_keys(rows.column("key")))
        mask = taken_rows(self.definition, condition, rows)  # right, where nothing was
        if self.before is not None and len(self.before.there):
            both = self._combined(rows, self.before, _stored(self.definition, condition.columns))
            mask[self.before.there.to_numpy()] = taken_rows(self.definition, condition, both)
        return mask

    def _combined(self, rows: pa.RecordBatch, before: Looked, names: Sequence[str]) -> pa.RecordBatch:
        """The rows of groups that were there, combined with them; fields without a name are null."""
        some, count = rows.take(before.there), len(before.there)
        values, by_row = some.column("value"), pa.array(np.arange(2 * count).reshape(2, count).T.reshape(-1))
        both = {
            name: pa.concat_arrays([before.column(name).take(before.there), values.field(name)]).take(by_row)
            for name in names
        }
        fields = [field for field in fields_of(self.definition) if field.name in both]
        made = combined(self.definition, fields, both, np.arange(0, 2 * count, 2), lambda _: {})
        types = list(value_arrow(self.definition.value))
        columns = [made[field.name] if field.name in made else pa.nulls(count, field.type) for field in types]
        combined_values = pa.StructArray.from_arrays(columns, fields=types)
        return some.set_column(2, "value", combined_values)

    def values(self, addresses: Addresses) -> list[dict[str, Any] | None]:
        return self.after.values(addresses)


def _stored(definition: MapDefinition, columns: Collection[str]) -> list[str]:
    """The stored fields that columns are shown by."""
    assert definition.aggregation is not None, "an aggregate has one"
    computed = {field.name: field.of for field in definition.aggregation.computed}
    needed = {name for column in columns for name in computed.get(column, (column,))}
    return [name for field in fields_of(definition) if needed & {*field.stored} for name in field.stored]
