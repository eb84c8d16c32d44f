"""Merging what waits: maps in parallel, the loads of one map in their order.

A part that cannot be merged goes to `quarantine/` with its reason and never blocks those behind it. A full disk
stops the merge; the parts stay staged and are merged next time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from millpond.errors import Corrupt
from millpond.maps.loads import Loads, Quarantined, Queued
from millpond.maps.merge import Received, merge_parts
from millpond.maps.parts import read_manifest, verify_part
from millpond.maps.shard import WRITE_LOCK_SECONDS, Shard

__all__ = ("Merged", "merge_waiting")


@dataclass(slots=True)
class Merged:
    """What a round of merging did."""

    rows: dict[str, int] = field(default_factory=dict)
    quarantined: list[Quarantined] = field(default_factory=list)


def merge_waiting(
    loads: Loads, shard_of: Callable[[str], Shard], maps: Iterable[str] | None = None,
    wait_seconds: float = WRITE_LOCK_SECONDS,
) -> Merged:  # fmt: skip
    """Merge everything that waits for these maps (all: None).

    Raises: `Unavailable` when the disk is full or a map stays busy; what was not merged stays staged.
    """
    names = sorted({queued.map for queued in loads.queued()} if maps is None else set(maps))
    merged = Merged()
    if len(names) <= 1:
        for name in names:
            _merge_map(loads, shard_of(name), merged, wait_seconds)
        return merged
    with ThreadPoolExecutor(min(len(names), os.cpu_count() or 1)) as pool:
        # `list` waits for all and raises the first error, when every other map has been merged.
        list(pool.map(lambda name: _merge_map(loads, shard_of(name), merged, wait_seconds), names))
    return merged


def _merge_map(loads: Loads, shard: Shard, merged: Merged, wait_seconds: float) -> None:
    with shard.exclusive(wait_seconds):
        for parts in loads.next_loads(shard.definition.name):
            whole = _checked(loads, parts, merged)
            if whole:
                _merge_load(loads, shard, whole, merged)


def _checked(loads: Loads, parts: Sequence[Queued], merged: Merged) -> list[tuple[Queued, Received]]:
    """The parts that are whole, moved to `merging/`; the others are put aside."""
    whole = []
    for queued in parts:
        try:
            folder = loads.take(queued)
            adopted = not (folder / "data.mdb").exists()
            # A part whose file already became the shard is told from a damaged one by the merge.
            manifest = read_manifest(folder) if adopted else verify_part(folder)
            whole.append((queued, Received(folder, manifest)))
        except Corrupt as error:
            merged.quarantined.append(loads.quarantine(queued, str(error)))
    return whole


def _merge_load(loads: Loads, shard: Shard, parts: Sequence[tuple[Queued, Received]], merged: Merged) -> None:
    queued = [each for each, _ in parts]
    try:
        report = merge_parts(shard, [received for _, received in parts], queued[0].load_number, loads.clock.now_ms())
    except Corrupt as error:
        merged.quarantined += [loads.quarantine(each, str(error)) for each in queued]
        return
    loads.finish(queued)
    merged.rows[shard.definition.name] = merged.rows.get(shard.definition.name, 0) + report.rows
