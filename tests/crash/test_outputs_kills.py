"""A process killed while it writes topics of output: each record is there once, and none is missing."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("littlehorse")
if find_spec("confluent_kafka") is None:
    pytest.skip("the extra kafka is not installed", allow_module_level=True)

from millpond.kernel.log import Log
from millpond.stores.lmdb.space import LmdbSpace
from millpond.stores.memory import MemorySpace
from millpond.testing.faults import KILL_AT
from millpond.workflows.keyspaces import COMMANDS, OUTPUT
from millpond.workflows.outputs import outputs_after
from millpond.workflows.processor import Partition
from millpond.workflows.store import initialize
from tests.crash.outputs_killed import relay_to, turned
from tests.rings.forked import run_python
from tests.topic_records import committed

PROGRAM = Path(__file__).parent / "outputs_killed.py"
STEPS = ("workflows.batch_uncommitted", "workflows.batch_committed", "workflows.output_written")
Records = dict[tuple[str, str], list[bytes]]


def run(*words: str, **environment: str) -> int:
    return run_python(str(PROGRAM), *words, **environment).returncode


def expected(space: LmdbSpace) -> Records:
    """The records of the command log, applied once more."""
    fresh, records = MemorySpace(), defaultdict[tuple[str, str], list[bytes]](list)
    partition = Partition(fresh.write(lambda tx: initialize(tx, 1)), outputs=True)
    with space.read() as tx:
        for record in partition.log.records(tx):
            fresh.write(lambda to, record=record: partition.apply(to, [record.entry], record.stamp_ms))
    with fresh.read() as tx:
        for _, output in outputs_after(tx, (0, 0), count=10_000, size=1 << 30):
            if output.topic:
                records[output.topic, output.key].append(output.record)
    return records


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", STEPS)
def test_what_was_written_when_the_process_died_is_there_once(tmp_path: Path, name: str, kafka_server: str) -> None:
    for at in (2, 6):
        folder, cluster = tmp_path / f"killed-{at}", f"killed-{os.getpid()}-{name.rpartition('.')[2]}-{at}"
        assert run(str(folder), kafka_server, cluster, **{KILL_AT: f"{name}:{at}"}) == -signal.SIGKILL
        space = LmdbSpace(folder)
        with space.read() as tx:
            newest = Log(COMMANDS, bytes, bytes).head(tx).position
        relay = relay_to(kafka_server, cluster, space, newest)
        while turned(relay):
            pass
        records: Records = defaultdict(list)
        for topic in ("execution", "metadata"):
            for _, key, data in committed(kafka_server, f"{cluster}_acme_{topic}"):
                records[topic, key].append(data)
        assert records == expected(space)
        with space.read() as tx:
            assert next(tx.keys(OUTPUT.range()), None) is None
        space.close()
