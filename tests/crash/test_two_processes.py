"""Two processes on one pond at once: loads beside loads, readers beside loads and maintenance."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.clock import ManualClock
from millpond.maps.maintenance import maintenance
from millpond.maps.model.definition import Store
from tests.harness.audit import audit_map
from tests.harness.models import MapModel
from tests.harness.rows import canonical_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond import Pond
    from tests.harness.models import Row

pytestmark = pytest.mark.sample(2, of="file")

ROOT = Path(__file__).resolve().parents[2]
LOADS = 12

LOADER = """
import sys
import millpond
from tests.harness.rows import canonical_of

folder, who, loads = sys.argv[1], sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
with millpond.open(folder) as pond:
    for number in range(loads):
        parts, key = [], f"{who} {number}"
        for name in ("one", "two"):
            writer = pond.part_writer(name)
            writer.write(canonical_of(pond.map(name).definition, [((key,), key), (("last",), key)]))
            parts += writer.finish()
        pond.commit_load(parts)
        assert [pond.map(name).get(key) for name in ("one", "two")] == [key, key], key
"""

READER = """
import sys
from pathlib import Path
import millpond

folder, stop, reads = sys.argv[1], Path(sys.argv[2]), 0
with millpond.open(folder) as pond:
    target = pond.map("m")
    questions = [(f"k{key}", at) for key in range(4) for at in range(-1, 60, 7)]
    expected = [None if at < 0 else f"v{at // 10}" for _, at in questions]
    print("ready", flush=True)
    while not stop.exists() or not reads:
        assert [target.get(key, at=at) for key, at in questions] == expected, reads
        answers = target.lookup([key for key, _ in questions], [at for _, at in questions])
        assert answers.to_pylist() == expected, reads
        held = target.scan("key = 'k1'").read_all().column("value").to_pylist()
        assert {f"v{n}" for n in range(6)} == set(held), reads
        reads += 1
print(reads)
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)], env={**os.environ, "PYTHONPATH": path}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip


def wait_until_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


@pytest.mark.parametrize("store", Store)
@pytest.mark.parametrize("retention", [0, "7d"])
def test_loads_of_two_processes_are_all_there_and_whole(tmp_path: Path, retention: str | int, store: Store) -> None:
    with millpond.open(tmp_path / "pond", maps_part_retention=retention) as pond:
        pond.create_map("one", kind="state", value="string", scheme="hash", hash_bits=3)
        pond.create_map("two", kind="state", value="string", scheme="lookup", store=store)
    processes = {who: start(LOADER, tmp_path / "pond", who, LOADS) for who in ("a", "b")}
    for process in processes.values():
        wait_until_ready(process)
    for process in processes.values():
        process.communicate("go\n")
    assert [process.returncode for process in processes.values()] == [0, 0]
    with millpond.open(tmp_path / "pond") as pond:
        last = pond.map("one").get("last")
        assert last in {f"{who} {LOADS - 1}" for who in processes}
        for pond_map in pond.maps():
            model = MapModel(pond_map.kind)
            keys = [f"{who} {number}" for who in processes for number in range(LOADS)]
            model.put([*(((key,), key) for key in keys), (("last",), last)])
            audit_map(pond_map, model, [(key, 0) for key in (*keys, "last", "none")])
        assert pond.verify().ok
        assert list((pond.folder / "quarantine").iterdir()) == []
        retained = {path.name for path in (pond.folder / "parts").iterdir()}
        assert retained == {part.part for part in pond.parts.list()}
        # Of layers no parts are retained.
        assert len(retained) == ((4 if store is Store.SHARD else 2) * LOADS if retention else 0)
        assert [entry.position for entry in pond.log.entries(0)] == list(range(1, 2 * LOADS + 3))


@pytest.mark.parametrize("store", Store)
def test_loads_of_several_threads_are_all_there_while_others_read(tmp_path: Path, store: Store) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        for name, scheme in (("one", "auto"), ("two", "lookup")):
            pond.create_map(name, kind="state", value="string", scheme=scheme, store=store)

        def load(who: str) -> None:
            for number in range(LOADS // 2):
                parts, key = [], f"{who} {number}"
                for name in ("one", "two"):
                    writer = pond.part_writer(name)
                    writer.write(canonical_of(pond.map(name).definition, [((key,), key), (("last",), key)]))
                    parts += writer.finish()
                pond.commit_load(parts)
                assert [pond.map(name).get(key) for name in ("one", "two")] == [key, key]

        def read(_: str) -> None:
            for number in range(LOADS):
                answers = pond.map("two").lookup([f"a {number}", "nobody"]).to_pylist()
                assert answers in ([f"a {number}", None], [None, None])
                pond.map("one").compact()

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda act: act[0](act[1]), [(load, "a"), (load, "b"), (read, "")]))
        for pond_map in pond.maps():
            keys = [f"{who} {number}" for who in ("a", "b") for number in range(LOADS // 2)]
            model = MapModel(pond_map.kind)
            model.put([*(((key,), key) for key in keys), (("last",), pond.map("one").get("last"))])
            audit_map(pond_map, model, [(key, 0) for key in (*keys, "last", "none")])
        assert pond.verify().ok


def rows(value: Callable[[int], str]) -> list[Row]:
    return [((f"k{key}", at), value(at)) for key in range(4) for at in range(60)]


def bring(pond: Pond, rows: list[Row]) -> None:
    writer = pond.part_writer("m")
    writer.write(canonical_of(pond.map("m").definition, rows))
    pond.commit_load(writer.finish())


@pytest.mark.parametrize("scheme", ["auto", "hash", "lookup"])
def test_another_process_reads_the_same_during_maintenance_and_loads(tmp_path: Path, scheme: str) -> None:
    with millpond.open(tmp_path / "pond", clock=ManualClock(now=1)) as pond:
        target = pond.create_map("m", kind="temporal_state", value="string", scheme=scheme)
        bring(pond, rows(lambda at: f"v{at // 10}"))
        stop = tmp_path / "stop"
        reader = start(READER, tmp_path / "pond", stop)
        wait_until_ready(reader)
        for turn in range(4):
            maintenance.condense(target.shard, target.definition, 60, clock=pond.clock, rows_per_change=24)
            assert target.info()["rows"] >= 24
            target.compact()
            target.freeze()
            bring(pond, [(("other", turn), "x"), *rows(lambda at: f"v{at // 10}")][: 1 + 60 * turn])
        stop.touch()
        output, _ = reader.communicate()
        assert reader.returncode == 0
        assert int(output) > 0
        assert pond.verify().ok


def test_a_reader_keeps_its_snapshot_while_the_pond_moves_on(tmp_path: Path) -> None:
    clock = ManualClock(now=1)
    with millpond.open(tmp_path / "pond", clock=clock) as pond:
        target = pond.create_map("m", kind="temporal_state", value="string")
        bring(pond, rows(lambda at: f"v{at}"))
        held = target.snapshot()
        keys = [f"k{key}" for key in range(4)] + ["new"]
        before = held.lookup(keys, 30)
        written = []
        for turn in range(3):
            clock.advance(3_600_000)
            there = files(target)
            bring(pond, [(("k1", 30), f"turn {turn}"), (("new", 0), f"turn {turn}")])
            target.freeze()
            written.append(len(files(target) - there))
            assert held.lookup(keys, 30).equals(before)
            assert target.lookup(keys, 30).to_pylist() == ["v30", f"turn {turn}", "v30", "v30", f"turn {turn}"]
        assert max(written) <= 3, "a range, an index and a manifest: a small change writes small files"
        assert manifest_of(held) in files(target)
        held.close()
        clock.advance(3_600_000)
        bring(pond, [(("new", 1), "last")])
        target.freeze()
        assert manifest_of(held) not in files(target)


def files(target: millpond.Map) -> set[str]:
    folders = ("ranges", "indexes", "manifests")
    return {named.name for folder in folders for named in target.objects.list(folder)}


def manifest_of(snapshot: object) -> str:
    return f"manifests/{snapshot.manifest.id}.json"  # type: ignore[attr-defined]
