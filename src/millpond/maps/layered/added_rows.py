"""Rows of an aggregate that both sides of a merge changed, added up where that is exact: ours + theirs - base.

| rule | exact where | outcome |
|---|---|---|
| `count`, `sum` | no bit is lost, and it is clear if any value is left | ours + theirs - base |
| `distinct` | neither side lost a text of the base | the texts of both |
| `quantiles` | the base has none, or one side left it as it was | both together, or the other side |
| `min`, `max`, `first`, `latest` | neither side fell back behind the base | the one that is further |

An address where one of its fields is not exact stays a conflict.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.maps.layered.differences import AddressRows, Difference, Mask, same_rows
from millpond.maps.model.aggregation import Rule
from millpond.maps.model.sketches import united
from millpond.maps.search.combining import Field, fields_of

__all__ = ("with_sums",)

_SAFE = float(1 << 62)

Columns = dict[str, pa.Array]


def with_sums(difference: Difference, ours: AddressRows) -> Difference:
    """A difference in which what both sides changed is one of ours, to the sum of both, where that is exact."""
    definition, positions = ours.definition, ours.positions(difference.addresses)
    if definition.aggregation is None:
        return difference
    both = ~same_rows(ours, positions, difference.old, difference.old_positions)
    both &= (positions >= 0) | (difference.new_positions >= 0)
    at = np.flatnonzero(both)
    if not len(at):
        return difference
    sides = [
        _values(rows, held[at])
        for rows, held in (
            (difference.old, difference.old_positions), (ours, positions), (difference.new, difference.new_positions),
        )
    ]  # fmt: skip
    exact = np.ones(len(at), np.bool_)
    made: Columns = {}
    for field in fields_of(definition):
        certain, columns = _merged(field, *({name: side.field(name) for name in field.stored} for side in sides))
        exact &= certain
        made |= columns
    if not exact.any():
        return difference
    kind = ours.rows.schema.field("value").type
    values = pa.StructArray.from_arrays([made[field.name] for field in kind], fields=list(kind))
    return _replaced(difference, ours, positions, at[exact], values.filter(pa.array(exact)))


def _values(rows: AddressRows, positions: npt.NDArray[np.int64]) -> pa.StructArray:
    """The fields of the rows at these places, null where there is none."""
    values = rows.rows.column("value").take(pa.array(positions, mask=positions < 0))
    return pa.StructArray.from_arrays(values.flatten(), fields=list(values.type))


def _replaced(
    difference: Difference, ours: AddressRows, positions: npt.NDArray[np.int64], at: npt.NDArray[np.int64],
    values: pa.StructArray,
) -> Difference:  # fmt: skip
    """The difference with the sums as theirs at some addresses, and our rows as their base."""
    definition, old, new = ours.definition, difference.old, difference.new
    addresses = replace(difference, addresses=difference.addresses.take(pa.array(at)),
                        old_positions=difference.old_positions[at],
                        new_positions=difference.new_positions[at])  # fmt: skip
    columns = [*addresses.address_rows().columns, values]
    sums = pa.RecordBatch.from_arrays(columns, schema=ours.rows.schema)
    old_positions, new_positions = difference.old_positions.copy(), difference.new_positions.copy()
    new_positions[at] = new.rows.num_rows + np.arange(len(at))
    here = positions[at] >= 0
    old_positions[at] = np.where(here, old.rows.num_rows + np.cumsum(here) - 1, -1)
    mine = ours.rows.take(pa.array(positions[at][here]))
    before, after = AddressRows.of(definition, [old.rows, mine]), AddressRows.of(definition, [new.rows, sums])
    return Difference(difference.addresses, before, after, old_positions, new_positions)


def _merged(field: Field, base: Columns, ours: Columns, theirs: Columns) -> tuple[Mask, Columns]:
    """True where the outcome is exact, and the outcome."""
    if field.rule.additive:
        return _sum(field, base[field.name], ours[field.name], theirs[field.name])
    if field.rule.sketched:
        return _sketch(field, base[field.name], ours[field.name], theirs[field.name])
    certain = _ahead(field, ours, base) & _ahead(field, theirs, base)
    mine = pa.array(_ahead(field, ours, theirs))
    return certain, {name: pc.if_else(mine, ours[name], theirs[name]) for name in field.stored}


def _sketch(field: Field, base: pa.Array, ours: pa.Array, theirs: pa.Array) -> tuple[Mask, Columns]:
    new, both = _flags(base.is_null()), _together(field.rule, ours, theirs)
    if field.rule is Rule.DISTINCT:
        whole = [_flags(pc.equal(_together(field.rule, side, base), side)) for side in (ours, theirs)]
        return new | (whole[0] & whole[1]), {field.name: both}
    left, other = _flags(pc.equal(ours, base)), _flags(pc.equal(theirs, base))
    changed = pc.if_else(pa.array(left), theirs, ours)
    return new | left | other, {field.name: pc.if_else(pa.array(new), both, changed)}


def _together(rule: Rule, left: pa.Array, right: pa.Array) -> pa.Array:
    """The sketches of each two."""
    pairs = np.arange(2 * len(left)).reshape(2, -1).T.reshape(-1)
    return united(rule, pa.concat_arrays([left, right]).take(pa.array(pairs)), np.arange(0, 2 * len(left), 2))


def _ahead(field: Field, side: Columns, other: Columns) -> Mask:
    """True where a side is as far as the other, or the other has nothing."""
    least = field.rule in (Rule.MIN, Rule.FIRST)
    further = pc.less_equal if least else pc.greater_equal
    ahead = further(side[field.name], other[field.name])
    if field.instant is not None:
        mine, another = side[field.instant], other[field.instant]
        before = pc.less if least else pc.greater
        ahead = pc.or_(before(mine, another), pc.and_(pc.equal(mine, another), ahead))
    mask: Mask = _flags(ahead) | _flags(pc.is_null(other[field.name]))
    return mask


def _sum(field: Field, base: pa.Array, ours: pa.Array, theirs: pa.Array) -> tuple[Mask, Columns]:
    there = [_flags(side.is_valid()) for side in (base, ours, theirs)]
    before, mine, other = (side.fill_null(0).to_numpy() for side in (base, ours, theirs))
    if pa.types.is_floating(base.type):
        both, lost = _two_sum(mine, other)
        total, more = _two_sum(both, -before)
        certain = np.isfinite(total) & (lost == 0) & (more == 0)
    else:
        # What goes over in between comes back, as long as the outcome fits.
        certain = np.abs(mine.astype(np.float64) + other.astype(np.float64) - before.astype(np.float64)) < _SAFE
        total = mine + other - before
    # Of a sum that one side lost it is not told if nothing is left, or values that add up to nothing.
    certain &= ~(there[0] & ((~there[1] & (other == before)) | (~there[2] & (mine == before))))
    certain &= ~(there[0] & ~there[1] & ~there[2])
    if field.rule is Rule.COUNT:
        certain &= total > 0
    return certain, {field.name: pa.array(total, base.type, mask=~(there[1] | there[2]))}


def _two_sum(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The sum of doubles, and what rounding lost of it (Knuth's two-sum)."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = left + right
        part = total - left
        return total, (left - (total - part)) + (right - part)


def _flags(array: pa.Array) -> Mask:
    flags: Mask = array.fill_null(False).to_numpy(zero_copy_only=False)
    return flags
