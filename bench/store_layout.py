"""Blocks read from the disk to delete a run, and to read a whole run: the legacy layout against the grouped one.

Each run has three node runs and a task run. The store is many times larger than RocksDB's cache of blocks (1 MB; blocks
of 64 KB), ids are random, and runs are taken in the order in which they were made. RocksDB counts the blocks itself.
In the legacy layout the run, its nodes and its task are read, each for the list of its tags, and then deleted.

    python bench/store_layout.py            100,000 runs
    python bench/store_layout.py --quick    15,000 runs
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from littlehorse.model import NodeRun, NodeRunId, TaskRun, TaskRunId, WfRun, WfRunId, WfSpecId
from rocksdict import BlockBasedOptions, Cache, Options, Rdict

from _results import Run, version
from millpond.kernel.scans import delete_rows
from millpond.kernel.space import Transaction
from millpond.stores.rocksdb.space import RocksSpace
from millpond.workflows.store import Address, Initialization, Kind, RunStore, delete_run
from millpond.workflows.store.addresses import group_of
from millpond.workflows.store.legacy import legacy_range, unwrap
from millpond.workflows.store.messages import Stored
from tests.harness.legacy_rows import write_legacy

TENANT = "default"
BLOCK_BYTES, CACHE_BYTES = 64 * 1024, 1 << 20
SAMPLE = 1_000
WRITE_RUNS = 200
SINCE_MS = 1_700_000_000_000

Put = Callable[[Transaction, Stored], None]


def options() -> Options:
    tables = BlockBasedOptions()
    tables.set_block_size(BLOCK_BYTES)
    tables.set_block_cache(Cache(CACHE_BYTES))
    tables.set_bloom_filter(10.0, False)
    chosen = Options(raw_mode=True)
    chosen.create_if_missing(True)
    chosen.set_block_based_table_factory(tables)
    chosen.enable_statistics()
    return chosen


def objects(name: str, number: int) -> list[Stored]:
    run_id, spec = WfRunId(id=name), WfSpecId(name="canary", major_version=1)
    run = WfRun(id=run_id, wf_spec_id=spec, status=2)  # type: ignore[arg-type]
    run.start_time.FromMilliseconds(SINCE_MS + number)
    thread = run.thread_runs.add(wf_spec_id=spec, thread_spec_name="entrypoint", current_node_position=2)
    thread.start_time.CopyFrom(run.start_time)
    nodes = []
    for at, word in enumerate(("0-entrypoint-ENTRYPOINT", "1-canary-worker-task-TASK", "2-exit-EXIT")):
        place = NodeRunId(wf_run_id=run_id, position=at)
        node = NodeRun(id=place, wf_spec_id=spec, status=2, thread_spec_name="entrypoint", node_name=word)  # type: ignore[arg-type]
        node.arrival_time.CopyFrom(run.start_time)
        node.end_time.CopyFrom(run.start_time)
        nodes.append(node)
    task = TaskRun(id=TaskRunId(wf_run_id=run_id, task_guid="0-1"), status=3, timeout_seconds=15)  # type: ignore[arg-type]
    task.task_def_id.name = "canary-worker-task"
    task.scheduled_at.CopyFrom(run.start_time)
    attempt = task.attempts.add(task_worker_id="worker-1")
    attempt.start_time.CopyFrom(run.start_time)
    attempt.output.int = number
    return [run, *nodes, task]


def put_legacy(tx: Transaction, message: Stored) -> None:
    words = {WfRun: ("wfSpecName_canary", "wfSpecId_canary/00001/00000", "majorVersion_canary/00001"),
             TaskRun: ("taskDefName_canary-worker-task",)}.get(type(message), ())  # fmt: skip
    tags = [f"{word}{more}" for word in words for more in ("", f"__status_{message.status}")]  # type: ignore[union-attr]
    run = message.id.id if isinstance(message, WfRun) else message.id.wf_run_id.id  # type: ignore[union-attr]
    write_legacy(tx, TENANT, message, tuple(f"{type(message).__name__}/__{tag}/{SINCE_MS}/{run}" for tag in tags))


def build(folder: Path, names: list[str], put: Put) -> None:
    """A store of these runs, compacted."""
    space = RocksSpace(folder, durable=False, options=options())
    for start in range(0, len(names), WRITE_RUNS):

        def write(tx: Transaction, start: int = start) -> None:
            for number, name in enumerate(names[start : start + WRITE_RUNS], start):
                for message in objects(name, number):
                    put(tx, message)

        space.write(write)
    space.close()
    whole = Rdict(str(folder), options())
    whole.flush()
    whole.compact_range(None, None)
    whole.close()


def legacy_rows(tx: Transaction, name: str) -> list[tuple[bytes, bytes]]:
    kinds = (Kind.RUN, Kind.NODE_RUN, Kind.TASK_RUN)
    return [row for kind in kinds for row in tx.scan(legacy_range(TENANT, (name,), kind))]


def read_legacy(space: RocksSpace, name: str) -> None:
    with space.read() as tx:
        assert len(legacy_rows(tx, name)) == 5  # type: ignore[arg-type]


def delete_legacy(space: RocksSpace, name: str) -> None:
    def delete(tx: Transaction) -> None:
        for key, value in legacy_rows(tx, name):
            kind = Kind(int(key.split(b"/")[2]))
            delete_rows(tx, [key, *unwrap(TENANT, Address((name,), kind), value).tag_keys])

    space.write(delete)


def read_grouped(space: RocksSpace, name: str) -> None:
    with space.read() as tx:
        assert len(list(tx.scan(group_of(TENANT, (name,)).range()))) == 7  # with two lists of tags


def blocks(folder: Path, names: list[str], act: Callable[[RocksSpace, str], None]) -> float:
    """The data blocks read for each run, beginning with a cold cache."""
    chosen = options()
    space = RocksSpace(folder, durable=False, options=chosen)
    before = misses(chosen)
    for name in names:
        act(space, name)
    after = misses(chosen)
    space.close()
    return (after - before) / len(names)


def misses(chosen: Options) -> int:
    found = re.search(r"rocksdb\.block\.cache\.data\.miss COUNT : (\d+)", chosen.get_statistics() or "")
    assert found is not None
    return int(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    runs = 15_000 if parser.parse_args().quick else 100_000
    run = Run("store_layout")
    dice = random.Random(7)
    names = [f"{dice.getrandbits(128):032x}" for _ in range(runs)]
    store = RunStore(TENANT, Initialization(0), lambda _: False)
    with tempfile.TemporaryDirectory() as folder:
        old, new = Path(folder) / "legacy", Path(folder) / "grouped"
        build(old, names, put_legacy)
        build(new, names, store.put)
        for path in (old, new):
            size = sum(file.stat().st_size for file in path.iterdir())
            print(f"{path.name}: {size / 1e6:.0f} MB on the disk, compressed")
        print("| act | legacy | grouped | fewer by |\n|---|---|---|---|")
        sample = names[runs // 2 : runs // 2 + SAMPLE]
        row(run, "read a whole run", blocks(old, sample, read_legacy), blocks(new, sample, read_grouped))
        deleted = blocks(new, names[:SAMPLE], lambda space, name: delete_run(space, store, (name,)))
        row(run, "delete a run", blocks(old, names[:SAMPLE], delete_legacy), deleted)
    run.write({"rocksdict": version("rocksdict")}, whole=runs == 100_000, runs=runs)


def row(run: Run, act: str, legacy: float, grouped: float) -> None:
    run.note(act, "Millpond, grouped", grouped, unit="blocks")
    run.note(act, "the legacy layout", legacy, unit="blocks")
    print(f"| {act} | {legacy:.2f} blocks | {grouped:.2f} blocks | **{legacy / grouped:.1f}×** |")


if __name__ == "__main__":
    main()
