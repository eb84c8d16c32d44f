"""A trial of a rule on a map in a shard, which keeps no history of loads: the buckets that it holds, in their order.

    flights > 100, for 2 buckets      09:00 ✓   10:00 ✓   11:00 ✓   12:00 ·   13:00 ✓   14:00 ✓
                                                told                                     told

Invariants:
* a crossing is the bucket in which the condition holds as often, one after another, as the rule says, and not oftener;
* of very many the first keys are told, the others counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays.radix import I64
from millpond.maps.alerts.judging import CROSSINGS_MAX, Crossing, plain_values
from millpond.maps.alerts.rules import AlertRule
from millpond.maps.layered.rows import batches_of_spans
from millpond.maps.model.columns import value_arrow
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.display import present
from millpond.maps.model.rolled_up import shown_ends
from millpond.maps.predicates.taken import taken_rows
from millpond.maps.snapshots.manifest import SnapshotManifest
from millpond.maps.snapshots.rows_of_groups import GroupSpan
from millpond.stores.objects import Objects
from millpond.times.buckets import bucket_ends
from millpond.times.instants import instant_text

__all__ = ("BucketTrial", "try_buckets")


@dataclass(slots=True)
class BucketTrial:
    """The outcome: the buckets that were judged, from the first on, the crossings by the start of their bucket, and how
    many more there are.
    """

    first_ms: int | None = None
    buckets: int = 0
    crossings: list[tuple[int, Crossing]] = field(default_factory=list)
    omitted: int = 0


def try_buckets(objects: Objects, manifest: SnapshotManifest, rule: AlertRule, since_ms: int) -> BucketTrial:
    """Judge the buckets of a snapshot that end after a time.

    Raises: `Corrupt`, `NotFound`, naming the file.
    """
    definition, trial = manifest.definition, BucketTrial()
    condition = rule.condition(definition)
    for rows in _whole_keys(objects, manifest):
        times, ends = rows.column("time").to_numpy(), _ends(definition, rows)
        recent = ends > since_ms
        if not recent.any():
            continue
        follows = _neighbours(rows, times, ends)
        made = _runs(taken_rows(definition, condition, rows), follows) == rule.buckets
        first, positions = int(times[recent].min()), np.flatnonzero(made & recent)
        trial.first_ms = first if trial.first_ms is None else min(first, trial.first_ms)
        trial.buckets += int(recent.sum())
        room = CROSSINGS_MAX - len(trial.crossings)
        trial.omitted += max(len(positions) - room, 0)
        trial.crossings += _shown(definition, rule, rows.take(pa.array(positions[:room])))
    trial.crossings.sort(key=lambda made: made[0])
    return trial


def _whole_keys(objects: Objects, manifest: SnapshotManifest) -> Iterator[pa.RecordBatch]:
    """The rows of a snapshot, those of a key together, in order of time."""
    for pieces in batches_of_spans(objects, manifest, GroupSpan()):
        if batches := [batch for batch in pieces if batch.num_rows]:
            yield pa.concat_batches(batches)


def _ends(definition: MapDefinition, rows: pa.RecordBatch) -> I64:
    aggregation = definition.aggregation
    assert aggregation is not None, "an aggregate has one"
    times = rows.column("time").to_numpy()
    if aggregation.resolution == "none":
        return np.full(len(times), np.iinfo(np.int64).max)
    return shown_ends(aggregation, times, bucket_ends(times, aggregation.resolution, aggregation.time_zone))


def _neighbours(rows: pa.RecordBatch, times: I64, ends: I64) -> npt.NDArray[np.bool_]:
    """The rows whose bucket begins where that of the row before them ends, of the same key."""
    keys, follows = rows.column("key"), np.zeros(len(times), np.bool_)
    follows[1:] = pc.equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False) & (times[1:] == ends[:-1])
    return follows


def _runs(holds: npt.NDArray[np.bool_], follows: npt.NDArray[np.bool_]) -> I64:
    """For each row, in how many buckets, one after another up to its own, the condition holds."""
    position = np.arange(len(holds))
    begins = holds.copy()
    begins[1:] &= ~(holds[:-1] & follows[1:])
    return np.where(holds, position - np.maximum.accumulate(np.where(begins, position, 0)) + 1, 0)


def _shown(definition: MapDefinition, rule: AlertRule, rows: pa.RecordBatch) -> Iterator[tuple[int, Crossing]]:
    names = [field.name for field in value_arrow(definition.shown) if not pa.types.is_binary(field.type)]
    values = present(definition, rows, names).to_pylist()
    pairs = zip(rows.column("key").to_pylist(), rows.column("time").to_pylist(), values, strict=True)
    for key, time, after in pairs:
        yield time, Crossing(rule=rule.name, when=rule.when, key=key.decode(), bucket=instant_text(time), before=None,
                             after=plain_values(after))  # fmt: skip
