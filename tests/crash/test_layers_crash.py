"""A process killed anywhere while it writes or folds layers: what is seen is whole, and a second try ends the same."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from millpond.maps.snapshots.manifest import list_manifests
from millpond.maps.snapshots.rows_of_groups import GroupSpan, thaw
from millpond.stores.objects import FolderObjects
from millpond.testing.faults import KILL_AT, STEPS_LOG, occurrences
from tests.rings.forked import run_python
from tests.rings.sampling import drawn

CHILD = """
import sys
from millpond.maps.model.definition import Kind, MapDefinition, parse_value_type
from millpond.maps.snapshots.layers import fold_layers, on_top, substitute, write_layer
from millpond.maps.snapshots.manifest import LayerMode, store_manifest
from millpond.stores.objects import FolderObjects
from millpond.testing import faults
from tests.harness.rows import canonical_of

armed = faults.arm()
objects = FolderObjects(sys.argv[1])
definition = MapDefinition(
    name="m", kind=Kind(sys.argv[2]), incarnation="0" * 16, value=parse_value_type("long"),
    retain_ms=1 if sys.argv[3:] else None, retain_by="update_time",
)
ranged = not definition.kind.keyed
head = None
for version, mode in enumerate(("join", "fill", "join"), 1):
    key = (lambda n: (n, n + 9, version % 2)) if ranged else (lambda n: (f"k{n}", version % 2))
    rows = [(key(n), version * 100 + n) for n in range(version, 9)]
    layer = write_layer(objects, definition, [canonical_of(definition, rows)], LayerMode(mode))
    head = on_top(objects, head, definition, layer, version=version, created_ms=version)
    store_manifest(objects, head)
head = substitute(objects, head, fold_layers(objects, head, head.layers), created_ms=4)
store_manifest(objects, head)
print(head.id)
"""
KINDS = ("temporal_state", "temporal_ranged_state", "temporal_state timed", "temporal_ranged_state timed")


def run_child(folder: Path, kind: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_python("-c", CHILD, str(folder), *kind.split(), **variables)


def states(folder: Path) -> dict[str, list[dict[str, object]]]:
    """The rows of every manifest that can be seen."""
    objects = FolderObjects(folder)
    return {
        manifest.id: sorted(
            (
                row
                for batch in thaw(objects, manifest, GroupSpan(), updates=manifest.updates)
                for row in batch.to_pylist()
            ),
            key=repr,
        )
        for manifest in list_manifests(objects)
    }


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_any_step(kind: str, tmp_path: Path) -> None:
    done = run_child(tmp_path / "whole", kind, **{STEPS_LOG: str(tmp_path / "log")})
    assert done.returncode == 0, done.stderr
    whole, moments = states(tmp_path / "whole"), occurrences(tmp_path / "log")
    assert {"layers.layer_written", "layers.folded", "ranges.indexed"} <= {
        moment.partition(":")[0] for moment in moments
    }
    assert len(whole) == 4
    assert all(("updated" in row) == kind.endswith("timed") for rows in whole.values() for row in rows)
    for number, moment in drawn(list(enumerate(moments)), 2, name=f"layers {kind}"):
        folder = tmp_path / str(number)
        killed = run_child(folder, kind, **{KILL_AT: moment})
        assert killed.returncode == -signal.SIGKILL, (moment, killed.stderr)
        seen = states(folder) if folder.exists() else {}
        assert seen.items() <= whole.items(), moment
        again = run_child(folder, kind)
        assert (again.returncode, again.stdout) == (0, done.stdout), (moment, again.stderr)
        assert states(folder) == whole
