"""Maintenance killed at every step: answers stay right, doing it again ends the same, and nothing is left over."""

from __future__ import annotations

import os
import shutil
import signal
from typing import TYPE_CHECKING

import pytest

from millpond.clock import ManualClock
from millpond.maps.maintenance.maintenance import compact, condense, retain
from millpond.maps.model.definition import Kind, MapDefinition, Scheme, parse_value_type
from millpond.maps.shard.shard import Shard
from millpond.testing.faults import arm, occurrences
from tests.harness.models import MapModel
from tests.harness.rows import canonical_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.models import Row

CASES = [(Kind.TEMPORAL_STATE, Scheme.AUTO), (Kind.TEMPORAL_STATE, Scheme.LOOKUP), (Kind.SESSION, Scheme.HASH)]
CONDENSE_BEFORE, RETAIN_BEFORE = 60, 20


def rows_of(kind: Kind) -> list[Row]:
    if kind is Kind.SESSION:
        return [((f"k{key}", 10 * n, 10 * n + 5 + 5 * (n % 3)), None) for key in range(4) for n in range(10)]
    return [((f"k{key}", 10 * n), f"v{n // 3}") for key in range(4) for n in range(10)]


def definition(kind: Kind, scheme: Scheme) -> MapDefinition:
    value = parse_value_type("string") if kind.valued else None
    return MapDefinition(name="m", kind=kind, incarnation="0", scheme=scheme, value=value)


def tend(shard: Shard) -> None:
    clock = ManualClock()
    condense(shard, shard.definition, CONDENSE_BEFORE, clock=clock, rows_per_change=12)
    retain(shard, shard.definition, RETAIN_BEFORE, clock=clock, rows_per_change=12)
    compact(shard, clock=clock)


def in_a_child(act: Callable[[], None]) -> int:
    """Run `act` in a forked child: its exit code, negative for the signal that ended it."""
    child = os.fork()
    if not child:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def contents(shard: Shard) -> list[tuple[object, ...]]:
    return sorted(tuple(row.values()) for batch in shard.read_rows() for row in batch.to_pylist())


def answers(shard: Shard) -> list[object]:
    return [shard.get(b"k%d" % key, time) is not None for key in range(4) for time in range(RETAIN_BEFORE, 130)]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("kind", "scheme"), CASES)
def test_killed_at_any_step(kind: Kind, scheme: Scheme, tmp_path: Path) -> None:
    shape = definition(kind, scheme)
    model = MapModel(kind)
    model.put(rows_of(kind))
    template = Shard(tmp_path / "template", shape)
    rows = canonical_of(shape, model.scan())
    template.change(lambda tx: template.put_rows(tx, rows, 0, overwrite=True), None, longest=15)
    held, everything = answers(template), set(contents(template))
    template.close()

    def run(folder: Path, **armed: str) -> int:
        shutil.copytree(tmp_path / "template", folder)

        def act() -> None:
            with arm(**armed):
                tend(Shard(folder, shape))

        return in_a_child(act)

    assert run(tmp_path / "whole", log=str(tmp_path / "log")) == 0
    model.condense(CONDENSE_BEFORE)
    model.retain(RETAIN_BEFORE)
    wanted = sorted(tuple(row.values()) for row in canonical_of(shape, model.scan()).to_pylist())
    moments = occurrences(tmp_path / "log")
    names = {moment.partition(":")[0] for moment in moments}
    assert {"condense.batch_committed", "retain.batch_committed", "compact.copied", "shard.switched"} <= names
    condensed = max(number for number, moment in enumerate(moments) if moment.startswith("condense."))
    for number, moment in enumerate(moments):
        folder = tmp_path / str(number)
        assert run(folder, kill_at=moment) == -signal.SIGKILL, moment
        shard = Shard(folder, shape)
        # Retention takes answers away, and is meant to; condensing does not.
        if number <= condensed:
            assert answers(shard) == held, moment
        if kind is not Kind.SESSION:
            assert set(contents(shard)) <= everything, moment
        tend(shard)
        assert contents(shard) == wanted, moment
        left = {path.name for path in folder.iterdir() if path.is_dir()} - {"touched"}
        assert left == {(folder / "current").read_text().strip()}, moment
        shard.close()
