"""Bounds of a snapshot: only some keys, only a window of time, and a refusal to answer for anything else.

| bounds on | takes the questions | and so holds |
|---|---|---|
| keys `[lower, upper)` of a keyed map | for keys in between, as bytes of UTF-8 | their rows |
| numbers `[lower, upper)` of a ranged map | for numbers in between | the ranges that hold one of them |
| a window `[since, until)` | for instants in between | rows of the window and of its beginning, see below |

Of each key (each range) a window holds, besides the rows in it, the one that counts when it begins; of sessions those
that touch it.

Invariants:
* A question inside is answered as the whole snapshot answers it.
* A question outside is an error that names the bounds, never a null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays.radix import I64
from millpond.error_values import shown
from millpond.errors import Invalid
from millpond.json_forms import plain, stable_json
from millpond.maps.inputs.single_key import single_key
from millpond.maps.model.definition import Kind, MapDefinition
from millpond.maps.model.store_limits import aggregate_unsupported
from millpond.ranges.files import content_id
from millpond.times.instants import parse_instant

__all__ = ("SnapshotBounds", "narrow_rows", "snapshot_bounds", "pair_of")

Bound = str | int | None
Mask = npt.NDArray[np.bool_]
_SPEC_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotBounds:
    """Half-open bounds; None: unbounded on that side. Make it with `snapshot_bounds`, which checks them.

    `lower, upper` are text for keyed maps and numbers for ranged ones; `since, until` are UTC milliseconds.
    """

    lower: Bound = None
    upper: Bound = None
    since: int | None = None
    until: int | None = None

    @property
    def spec(self) -> str:
        """A name for these bounds that can name a folder."""
        return content_id(stable_json(plain(self)))[:_SPEC_DIGITS]

    @property
    def windowed(self) -> bool:
        """True when time is bounded."""
        return self.since is not None or self.until is not None

    def check(self, definition: MapDefinition, keys: pa.Array, instants: I64, in_range: Mask) -> None:
        """Refuse questions that this snapshot cannot answer.

        `keys` are as `questions.keys_of` tells them. `known` says where there is an instant; empty: everywhere.

        Raises: `Invalid` naming the first bound that is passed, and the question that passes it.
        """
        if self.lower is not None or self.upper is not None:
            least, most = _key_span(keys) if definition.kind.keyed else _number_span(keys)
            self._check_span(least, most, _comparable(self.lower), _comparable(self.upper), "key")
        if self.windowed:
            known_instants = instants[in_range] if len(in_range) else instants
            if len(keys) and len(known_instants):
                self._check_span(int(known_instants.min()), int(known_instants.max()), self.since, self.until, "time")

    def _check_span(self, least: Any, most: Any, lower: Any, upper: Any, what: str) -> None:
        outside = None
        if lower is not None and least is not None and least < lower:
            outside = least
        elif upper is not None and most is not None and most >= upper:
            outside = most
        if outside is None:
            return
        bound = outside.decode(errors="replace") if isinstance(outside, bytes) else outside
        bounds = (self.since, self.until) if what == "time" else (self.lower, self.upper)
        raise Invalid(
            f"the {what} is outside of the bounds of the snapshot", kind="outside_snapshot", value=repr(bound),
            lower=bounds[0], upper=bounds[1], hint="ask the whole map, or a snapshot with wider bounds",
        )  # fmt: skip


def snapshot_bounds(
    definition: MapDefinition, keys: Sequence[Bound] | None = None, window: Sequence[object] | None = None
) -> SnapshotBounds | None:
    """Bounds for a map, checked; None when nothing is bounded. Instants in any form that names one.

    Raises: `Invalid` for bounds that the map cannot have, or that hold nothing.
    """
    lower, upper = pair_of(keys, "keys")
    since, until = (None if instant is None else parse_instant(instant) for instant in pair_of(window, "window"))
    if (since is not None or until is not None) and not definition.kind.timed:
        raise _wrong("the map has no times", definition, hint="narrow it by keys")
    if (since is not None or until is not None) and definition.kind is Kind.AGGREGATE:
        raise aggregate_unsupported(definition.name, "window")
    lower, upper = _key_bound(definition, lower), _key_bound(definition, upper)
    pairs: tuple[tuple[Any, Any], ...] = ((_comparable(lower), _comparable(upper)), (since, until))
    for low, high in pairs:
        if low is not None and high is not None and not low < high:
            raise _wrong("the bounds hold nothing", definition, hint="the lower bound is held, the upper one is not")
    if all(bound is None for bound in (lower, upper, since, until)):
        return None
    return SnapshotBounds(lower=lower, upper=upper, since=since, until=until)


def pair_of(pair: Sequence[Any] | None, name: str) -> tuple[Any, Any]:
    """A lower and an upper bound; None for none.

    Raises: `Invalid` for what is no pair.
    """
    if pair is None:
        return None, None
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise Invalid(
            "bounds are a pair", kind="snapshot_bounds", name=name, hint=f"{name}=(lower, upper), None for no bound"
        )
    return pair[0], pair[1]


def _key_bound(definition: MapDefinition, value: Any) -> Bound:
    if value is None:
        return None
    if definition.kind.keyed and not isinstance(value, str):
        # Bounds are in the order of text, in which 10 comes before 9: a number would not say what it seems to.
        raise _wrong("the keys of this map are text", definition, bound=shown(value))
    try:
        bound = single_key(definition, value)
        plain = bound.decode() if isinstance(bound, bytes) else bound
    except (Invalid, UnicodeDecodeError) as error:
        expected = "the keys of this map are text" if definition.kind.keyed else "this map is asked by whole numbers"
        raise _wrong(expected, definition, bound=shown(value)) from error
    if plain is None:
        raise _wrong("no key of this map can be there", definition, bound=shown(value))
    return plain


def _wrong(message: str, definition: MapDefinition, hint: str | None = None, **values: object) -> Invalid:
    return Invalid(message, kind="snapshot_bounds", hint=hint, map=definition.name, **values)


def _comparable(bound: Bound) -> bytes | int | None:
    return bound.encode() if isinstance(bound, str) else bound


def _key_span(column: pa.Array) -> tuple[bytes | None, bytes | None]:
    """The least and the greatest key that is asked for, as bytes; None for none."""
    if pa.types.is_dictionary(column.type):
        # What a dictionary holds beyond what is used is not asked for.
        column = column.dictionary.take(column.indices.drop_null().unique())
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    least_and_greatest = pc.min_max(column.cast(pa.large_binary() if wide else pa.binary())).as_py()
    return least_and_greatest["min"], least_and_greatest["max"]


def _number_span(numbers: pa.Array) -> tuple[int | None, int | None]:
    least_and_greatest = pc.min_max(numbers).as_py()
    return least_and_greatest["min"], least_and_greatest["max"]


# -- rows ---------------------------------------------------------------------------------------------


def narrow_rows(
    definition: MapDefinition, subset: SnapshotBounds, rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The canonical rows that questions inside of the bounds may need.

    All rows of one key (one range) must be in one batch, side by side in order of time, as `thaw` yields them.
    """
    for batch in rows:
        rest = _narrow(definition, subset, batch)
        if rest.num_rows:
            yield rest


def _narrow(definition: MapDefinition, subset: SnapshotBounds, batch: pa.RecordBatch) -> pa.RecordBatch:
    if subset.lower is not None or subset.upper is not None:
        inside = _in_keys if definition.kind.keyed else _in_numbers
        batch = batch.filter(pa.array(inside(subset, batch)))
    if subset.windowed:
        within = _touching if definition.kind is Kind.SESSION else _holding
        batch = batch.filter(pa.array(within(subset, batch)))
    return batch


def _in_keys(subset: SnapshotBounds, batch: pa.RecordBatch) -> Mask:
    keys, inside = batch.column("key"), np.ones(batch.num_rows, np.bool_)
    lower, upper = _comparable(subset.lower), _comparable(subset.upper)
    if lower is not None:
        inside &= _flags(pc.greater_equal(keys, pa.scalar(lower, keys.type)))
    if upper is not None:
        inside &= _flags(pc.less(keys, pa.scalar(upper, keys.type)))
    return inside


def _in_numbers(subset: SnapshotBounds, batch: pa.RecordBatch) -> Mask:
    inside = np.ones(batch.num_rows, np.bool_)
    if isinstance(subset.lower, int):
        inside &= _longs(batch, "key_end") >= subset.lower
    if isinstance(subset.upper, int):
        inside &= _longs(batch, "key_start") < subset.upper
    return inside


def _touching(subset: SnapshotBounds, batch: pa.RecordBatch) -> Mask:
    """Sessions that hold an instant of the window; they hold both their ends."""
    inside = np.ones(batch.num_rows, np.bool_)
    if subset.since is not None:
        inside &= _longs(batch, "end") >= subset.since
    if subset.until is not None:
        inside &= _longs(batch, "start") < subset.until
    return inside


def _holding(subset: SnapshotBounds, batch: pa.RecordBatch) -> Mask:
    """Rows before the window's end that are not replaced, by one of the same key, when it begins."""
    times = _longs(batch, "effective_time")
    inside = np.ones(batch.num_rows, np.bool_)
    if subset.until is not None:
        inside &= times < subset.until
    if subset.since is not None:
        replaced = np.zeros(batch.num_rows, np.bool_)
        replaced[:-1] = _same_as_next(batch) & (times[1:] <= subset.since)
        inside &= ~replaced
    return inside


def _same_as_next(batch: pa.RecordBatch) -> Mask:
    """For each row but the last, whether the next one is of the same key or range."""
    rest = max(batch.num_rows - 1, 0)
    if "key" in batch.schema.names:
        keys = batch.column("key")
        return _flags(pc.equal(keys.slice(0, rest), keys.slice(1)))
    starts, ends = _longs(batch, "key_start"), _longs(batch, "key_end")
    same: Mask = (starts[:-1] == starts[1:]) & (ends[:-1] == ends[1:])
    return same


def _longs(batch: pa.RecordBatch, name: str) -> I64:
    return batch.column(name).to_numpy()


def _flags(column: pa.Array) -> Mask:
    flags: Mask = column.to_numpy(zero_copy_only=False)
    return flags
