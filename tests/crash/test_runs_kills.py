"""Processes killed between the slices of a deletion and of a migration."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import WfRunId

from millpond.stores.lmdb.space import LmdbSpace
from millpond.testing.faults import KILL_AT, STEPS_LOG
from millpond.workflows.store import Kind, RunReads, delete_run
from tests.harness.contracts.run_stores import objects_of_run, put_all, put_legacy, rows_of, store_in
from tests.harness.legacy_rows import migrate_store
from tests.rings.forked import run_python
from tests.rings.sampling import drawn

PROGRAM = Path(__file__).parent / "runs_killed.py"
NODES = 8


def run(verb: str, folder: Path, **environment: str) -> int:
    return run_python(str(PROGRAM), verb, str(folder), **environment).returncode


def slices(verb: str, prepared: Path, tmp_path: Path) -> int:
    """The number of steps between slices of the whole act, done on a copy."""
    shutil.copytree(prepared, tmp_path / "whole")
    log = tmp_path / "steps"
    assert run(verb, tmp_path / "whole", **{STEPS_LOG: str(log)}) == 0
    return sum(line.startswith("workflows.") for line in log.read_text().splitlines())


def test_a_migration_that_is_killed_loses_and_doubles_nothing(tmp_path: Path) -> None:
    objects = objects_of_run("asdf", nodes=NODES)
    space = LmdbSpace(tmp_path / "prepared", durable=False)
    put_legacy(space, objects)
    store_in(space)
    space.close()
    count = slices("migrate", tmp_path / "prepared", tmp_path)
    assert count > 3
    for at in drawn(range(1, count + 1), 3, name="slices"):
        folder = tmp_path / f"killed-{at}"
        shutil.copytree(tmp_path / "prepared", folder)
        assert run("migrate", folder, **{KILL_AT: f"workflows.migrated_slice:{at}"}) == -signal.SIGKILL
        space = LmdbSpace(folder)
        store = store_in(space)
        reads = RunReads("default", store.initialization)
        with space.read() as tx:
            assert [reads.get(tx, message.id) for message in objects] == objects
            assert list(reads.objects(tx, ("asdf",), Kind.NODE_RUN)) == objects[1 : 1 + NODES]
        migrate_store(space, {"default": store}.__getitem__)
        assert rows_of(space) == rows_of_folder(tmp_path / "whole")
        space.close()


def test_a_deletion_that_is_killed_goes_on_to_its_end(tmp_path: Path) -> None:
    space = LmdbSpace(tmp_path / "prepared", durable=False)
    put_all(space, store_in(space), objects_of_run("asdf", nodes=NODES) + objects_of_run("stays"))
    space.close()
    count = slices("delete", tmp_path / "prepared", tmp_path)
    assert count > 3
    for at in drawn(range(1, count + 1), 3, name="slices"):
        folder = tmp_path / f"killed-{at}"
        shutil.copytree(tmp_path / "prepared", folder)
        assert run("delete", folder, **{KILL_AT: f"workflows.deleted_slice:{at}"}) == -signal.SIGKILL
        space = LmdbSpace(folder)
        store = store_in(space)
        with space.read() as tx:
            assert store.get(tx, WfRunId(id="asdf")) is None
            unfinished = list(store.deletions(tx))
        assert unfinished == [("asdf",)]
        delete_run(space, store, unfinished[0])
        assert rows_of(space) == rows_of_folder(tmp_path / "whole")
        space.close()


def rows_of_folder(folder: Path) -> list[tuple[bytes, bytes]]:
    space = LmdbSpace(folder, readonly=True)
    rows = rows_of(space)
    space.close()
    return rows
