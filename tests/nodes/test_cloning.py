"""A node, or a map of it, becomes a copy of a peer's: whole or not at all, whenever it is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lmdb
import pyarrow as pa
import pytest

from millpond.client.transport import Connection
from millpond.errors import Conflict, Corrupt, NotFound, Unavailable
from millpond.kernel.steps import listening
from millpond.kernel.verify import Report
from millpond.maps.log.clone import clone_folder
from millpond.maps.parts.stream import MEDIA_TYPE
from millpond.nodes.replication.clone import clone_map, clone_pond
from millpond.nodes.replication.local_peer import LocalPeer
from millpond.nodes.replication.log_agreement import Agreement, agreement
from millpond.nodes.replication.part_sources import PartSources
from millpond.nodes.replication.peer import Peer
from millpond.pond import Pond, open_pond
from millpond.settings import load_settings
from millpond.testing.faults import flip_byte, occurrences
from tests.harness.scratch import scratch_folder

if TYPE_CHECKING:
    from tests.nodes.conftest import Served

pytestmark = pytest.mark.sample(2, of="file")

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 30.0
MAPS: dict[str, dict[str, Any]] = {
    "plain": {"kind": "temporal_state", "value": "double"},
    "hashed": {"kind": "state", "value": "string", "scheme": "hash"},
    "interned": {"kind": "state", "scheme": "lookup"},
    "nets": {"kind": "ranged_state", "value": "long"},
    "seen": {"kind": "session"},
    "retained": {"kind": "state", "value": "long", "retain": "1000y"},
    "empty": {"kind": "state", "value": "long"},
}


def instants(*ms: int) -> pa.Array:
    return pa.array(ms, pa.int64()).cast(pa.timestamp("ms", tz="UTC"))


def tables(number: int) -> dict[str, pa.Table]:
    """The tables that one load brings, by map."""
    keys = [f"k{number + n}" for n in range(20)]
    return {
        "plain": pa.table({"key": keys, "effective_time": instants(*range(number, number + 20)),
                           "value": [n * 0.5 for n in range(20)]}),
        "hashed": pa.table({"key": [key * 200 for key in keys], "value": [f"v{number}"] * 20}),
        "interned": pa.table({"key": keys, "value": [number, *[number + 1] * 19]}),
        "nets": pa.table({"key_start": [10 * number], "key_end": [10 * number + 50], "value": [number]}),
        "seen": pa.table({"key": ["k"], "start": instants(number), "end": instants(number + 2)}),
        "retained": pa.table({"key": keys, "value": [number] * 20}),
    }  # fmt: skip


def fill(pond: Pond, *loads: int) -> None:
    for name, settings in MAPS.items():
        if name not in [pond_map.name for pond_map in pond.maps()]:
            pond.create_map(name, **settings)
    for number in loads:
        for name, table in tables(number).items():
            pond.map(name).load(table)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory: the question here is whether all arrives, not what survives a power cut."""
    with scratch_folder() as folder:
        yield folder


@pytest.fixture
def source(place: Path, serve: Callable[..., Served]) -> Served:
    """A node with something in every map."""
    served = serve(server_data=str(place / "source"))
    fill(served.pond, 1, 2)
    served.pond.map("plain").condense("2000-01-01T00:00Z")
    return served


@pytest.fixture
def other(place: Path) -> Path:
    """A folder with another pond, some of whose maps have the same names."""
    with open_pond(place / "other") as pond:
        pond.create_map("plain", kind="state", value="long").load(pa.table({"key": ["mine"], "value": [1]}))
        pond.create_map("mine", kind="state", value="long").load(pa.table({"key": ["mine"], "value": [1]}))
        pond.map("plain").lookup(pa.array(["mine"]))
    return place / "other"


def peer_of(served: Served, **settings: Any) -> Peer:
    return Peer(Connection(served.url, load_settings(client_attempts=1, **settings)))


def compared(served: Served, pond: Pond) -> Agreement:
    peers = [peer_of(served), LocalPeer(pond, served.clock, "http://local")]
    return served.while_time_passes(lambda: agreement(peers, served.clock, seconds=SECONDS))


def check_equal(pond: Pond, served: Served, *, verify: bool = True) -> None:
    """The pond holds what the node does, by digest and by every reader."""
    found = compared(served, pond)
    assert found.ok, found.to_dict()
    assert pond.log.position() == served.pond.log.position()
    assert pond.log.pond_id == served.pond.log.pond_id
    for pond_map in served.pond.maps():
        ours, theirs = pond.map(pond_map.name), served.pond.map(pond_map.name)
        assert ours.definition == theirs.definition
        assert ours.scan().read_all() == theirs.scan().read_all()
        if pond_map.kind.keyed:
            at = "2000-01-01T00:00Z" if pond_map.kind.timed else None
            keys = pa.array(["k1", "k2", "k9", "nobody"])
            assert ours.lookup(keys, at) == theirs.lookup(keys, at)
    report = pond.verify(full=True) if verify else Report()
    assert report.ok, [str(problem) for problem in report.problems]
    assert not clone_folder(pond.folder).exists()


# -- a whole pond -------------------------------------------------------------------------------------


def test_an_empty_pond_becomes_a_copy(source: Served, place: Path) -> None:
    with open_pond(place / "new", serve=True) as pond:
        clone_pond(pond, peer_of(source), source.clock)
        check_equal(pond, source)


def test_another_pond_becomes_a_copy_and_nothing_else(source: Served, other: Path) -> None:
    with open_pond(other, serve=True) as pond:
        held = pond.map("plain")
        clone_pond(pond, peer_of(source), source.clock)
        check_equal(pond, source)
        assert [pond_map.name for pond_map in pond.maps()] == sorted(MAPS)
        with pytest.raises(NotFound) as dropped:  # it stands for the map that was here before
            held.get("mine")
        assert dropped.value.kind == "map_dropped"
        assert pond.map("plain").get("mine") is None
        known = {path.name for path in (other / "shards").iterdir()}
        assert not [name for name in known if name.startswith("mine.")]
    with open_pond(other) as pond:
        check_equal(pond, source)


def test_what_follows_is_pulled_as_ever(source: Served, other: Path) -> None:
    with open_pond(other) as pond:
        clone_pond(pond, peer_of(source), source.clock)
        fill(source.pond, 3)
        source.pond.alter_map("plain", maintenance_suspended=True)
        follow(pond, source)
        check_equal(pond, source)
        assert pond.map("retained").shard.tracking


def follow(pond: Pond, served: Served) -> None:
    """Enter what the node has and the pond has not."""
    peer = peer_of(served)
    sources = PartSources(pond.folder, _NoUploads(), lambda: [peer])
    for entry in peer.log(pond.log.position()[0]).entries:
        pond.log.enter(entry, sources.parts([entry]))
    pond.merge()


class _NoUploads:
    def uploaded(self, _part_id: str) -> None:
        """There are none."""


def test_a_shard_may_be_ahead_of_the_log(source: Served, place: Path) -> None:
    # What comes between the state and the shards is in the shards, and is entered once more afterwards.
    def meanwhile(step: str) -> None:
        if step == "clone.state_fetched":
            source.pond.map("plain").condense("1970-01-01T00:00:00.010Z")
            fill(source.pond, 3, 4)
            source.pond.map("plain").condense("1970-01-01T00:00:00.015Z")

    with open_pond(place / "new") as pond:
        with listening(meanwhile):
            clone_pond(pond, peer_of(source), source.clock)
        assert pond.log.position()[0] < source.pond.log.position()[0]
        follow(pond, source)
        check_equal(pond, source)


def test_maps_that_come_and_go_meanwhile(source: Served, place: Path) -> None:
    steps: list[str] = []

    def meanwhile(step: str) -> None:
        if step == "clone.state_fetched":
            steps.append(step)
            if len(steps) == 1:
                source.pond.drop_map("nets")
                fill(source.pond, 5)
                source.pond.drop_map("seen")

    with open_pond(place / "new") as pond:
        with listening(meanwhile):
            clone_pond(pond, peer_of(source), source.clock)
        assert len(steps) > 1
        check_equal(pond, source)


def test_a_lost_connection_leaves_what_was_there(source: Served, other: Path) -> None:
    closed: list[str] = []

    def meanwhile(step: str) -> None:
        if step == "clone.shard_fetched" and not closed:
            closed.append(step)
            source.close()

    with open_pond(other) as pond:
        before = pond.log.position()
        with listening(meanwhile), pytest.raises(Unavailable, match="cannot be reached"):
            clone_pond(pond, peer_of(source), source.clock)
        assert pond.log.position() == before
        assert pond.map("mine").get("mine") == 1
        assert pond.verify(full=True).ok


def quarantine(served: Served, place: Path) -> tuple[str, Path]:
    """Let the node quarantine a part of map `retained`: its id, and a whole copy of it."""
    served.node.merger.stop()
    writer = served.pond.part_writer("retained")
    writer.write(pa.record_batch({"key": pa.array([b"late"]), "value": pa.array([9])}, schema=writer._schema))
    position = served.pond.commit_load(writer.finish(), wait=False).position
    [part] = served.pond.parts.list("retained", "queued")
    file = served.pond.parts.file(part.part)
    assert file is not None
    whole = Path(shutil.copyfile(file, place))
    flip_byte(file, 5000)
    served.node.merger.start()
    with pytest.raises(Corrupt, match="could not be merged"):
        served.pond.log.wait_applied(position, timeout=SECONDS)
    return part.part, whole


def test_what_the_peer_lacks_the_copy_knows_it_lacks(source: Served, place: Path) -> None:
    part, whole = quarantine(source, place / "whole")
    with open_pond(place / "new") as pond:
        clone_pond(pond, peer_of(source), source.clock)
        [quarantined] = pond.parts.list(state="quarantined")
        assert quarantined.part == part
        assert pond.map("retained").get("late") is None
        with pytest.raises(Conflict, match="quarantined a part of the map"):
            clone_map(pond, peer_of(source), "retained")
        source.pond.parts.replace(part, whole)
        source.pond.log.wait_applied(source.pond.log.position()[0], timeout=SECONDS)
        clone_map(pond, peer_of(source), "retained")
        assert pond.map("retained").get("late") == 9
        assert not pond.parts.list(state="quarantined")
        assert not list((pond.folder / "quarantine").iterdir())


# -- one map ------------------------------------------------------------------------------------------


def damaged(pond: Pond, name: str) -> None:
    """Rows of a shard are lost, and nothing tells."""
    shard = pond.map(name).shard
    rows = next(shard.read_rows())
    shard.change(lambda tx: shard.delete_rows(tx, rows.slice(0, 1)), None)


QUICK = ("plain", "interned")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in MAPS if name != "empty"]
)
def test_one_map_becomes_a_copy(source: Served, place: Path, name: str) -> None:
    with open_pond(place / "new", serve=True) as pond:
        clone_pond(pond, peer_of(source), source.clock)
        manifest = pond.map(name).freeze()
        damaged(pond, name)
        found = compared(source, pond)
        assert [(finding.map, finding.node) for finding in found.differing] == [(name, "http://local")]
        clone_map(pond, peer_of(source), name)
        check_equal(pond, source)
        assert pond.map(name).freeze().shard_version > manifest.shard_version


# -- copies -------------------------------------------------------------------------------------------


def test_a_copy_is_sent_from_any_byte_and_cached_for_a_while(source: Served) -> None:
    whole = source.get("/v1/maps/plain/shard")
    assert whole.status == 200
    assert int(whole.headers["Shard-Rows"]) == source.pond.map("plain").shard.stats().rows
    assert int(whole.headers["Shard-Position"]) == source.pond.log.applied("plain")
    tag = whole.headers["ETag"]
    rest = source.get("/v1/maps/plain/shard", headers={"Range": "bytes=4096-", "If-Range": tag})
    assert rest.status == 206
    assert rest.body == whole.body[4096:]
    assert rest.headers["Content-Range"] == f"bytes 4096-{len(whole.body) - 1}/{len(whole.body)}"
    fill(source.pond, 3)
    assert source.get("/v1/maps/plain/shard", headers={"Range": "bytes=4096-", "If-Range": tag}).body == rest.body
    other = source.get("/v1/maps/plain/shard", headers={"Range": "bytes=4096-", "If-Range": '"gone"'})
    assert other.status == 200
    assert other.headers["ETag"] != tag
    part = source.get("/v1/maps/plain/shard", headers={"Range": "bytes=10-19"})
    assert (part.status, len(part.body)) == (206, 10)
    beyond = source.get("/v1/maps/plain/shard", headers={"Range": f"bytes={1 << 40}-"})
    assert beyond.status == 200


def test_a_copy_is_an_environment(source: Served, place: Path) -> None:
    (place / "copy").mkdir()
    (place / "copy" / "data.mdb").write_bytes(source.get("/v1/maps/interned/shard").body)
    with lmdb.open(str(place / "copy"), readonly=True, max_dbs=16, lock=False) as env, env.begin() as tx:
        assert b"rows" in [bytes(name) for name, _ in tx.cursor()]


def test_copies_that_nobody_asks_for_go(source: Served) -> None:
    copies = source.node.copies
    first = copies.shard("plain")
    assert copies.shard("plain").checksum == first.checksum
    assert copies.expire() == 0
    for cached_copy in copies._cached.values():
        cached_copy.used_at -= 10_000
    assert copies.expire() >= 1
    assert not first.file.exists()
    assert copies.find(first.checksum) is None


def test_a_map_without_rows_has_no_shard(source: Served) -> None:
    answer = source.get("/v1/maps/empty/shard")
    assert (answer.status, answer.json()["kind"]) == (404, "shard_empty")
    answer = source.get("/v1/maps/plain/shard?incarnation=other")
    assert (answer.status, answer.json()["kind"]) == (404, "map_incarnation")
    answer = source.while_time_passes(lambda: source.get("/v1/maps/plain/shard?position=1000&timeout=10"))
    assert (answer.status, answer.json()["kind"]) == (503, "merge_slow")


def test_parts_are_sent_from_any_byte(source: Served) -> None:
    [part, *_] = source.pond.parts.list("plain", "retained")
    whole = source.get(f"/v1/parts/{part.part}/stream")
    assert whole.headers["Content-Type"] == MEDIA_TYPE
    rest = source.get(
        f"/v1/parts/{part.part}/stream", headers={"Range": "bytes=5000-", "If-Range": whole.headers["ETag"]}
    )
    assert (rest.status, rest.body) == (206, whole.body[5000:])
    assert source.get("/v1/parts/none/stream").json()["kind"] == "part_not_found"


# -- kills --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Children:
    """The warm process."""

    process: subprocess.Popen[str]

    def clone(self, folder: Path, url: str, *, name: str | None = None, kill_at: str | None = None) -> int:
        task = {"folder": str(folder), "url": url, "map": name, "log": f"{folder}.log", "kill_at": kill_at}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(task), file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    with subprocess.Popen(
        [sys.executable, "-m", "tests.nodes.clone_child"], cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        yield Children(process)


def one_per_name(moments: list[str]) -> list[str]:
    """The last moment of each step."""
    return list({moment.partition(":")[0]: moment for moment in moments}.values())


def kill_clone(source: Served, before: Path, folder: Path, children: Children, moment: str) -> bool:
    """Kill a clone, look at what it left, and go on; whether the pond was the new one already."""
    shutil.copytree(before, folder)
    assert children.clone(folder, source.url, kill_at=moment) == -signal.SIGKILL, moment
    with open_pond(folder, serve=True) as pond:
        new = pond.log.pond_id == source.pond.log.pond_id
        if not new:
            assert [pond_map.name for pond_map in pond.maps()] == ["mine", "plain"], moment
            assert pond.map("plain").get("mine") == pond.map("mine").get("mine") == 1, moment
            clone_pond(pond, peer_of(source), source.clock)
        check_equal(pond, source, verify=new)
    shutil.rmtree(folder)
    return new


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.full)])
def test_killed_at_a_step_of_a_clone(source: Served, other: Path, place: Path, children: Children, every: bool) -> None:
    shutil.copytree(other, place / "whole")
    assert children.clone(place / "whole", source.url) == 0
    moments = occurrences(place / "whole.log")
    assert {"clone.ready:1", "clone.shards_switched:1", "clone.space_written:1", "clone.cleaned:1"} <= set(moments)
    chosen = moments if every else one_per_name(moments)
    new = [kill_clone(source, other, place / moment.replace(":", "-"), children, moment) for moment in chosen]
    assert new == sorted(new), "from one moment on it is the new one"
    assert not new[0]
    assert new[-1]


def test_killed_at_a_step_of_a_map(source: Served, place: Path, children: Children) -> None:
    with open_pond(place / "base", serve=True) as pond:
        clone_pond(pond, peer_of(source), source.clock)
        damaged(pond, "hashed")
        pond.map("hashed").freeze()
        rows = pond.map("hashed").shard.stats().rows
    shutil.copytree(place / "base", place / "whole")
    assert children.clone(place / "whole", source.url, name="hashed") == 0
    for moment in occurrences(place / "whole.log"):
        folder = place / moment.replace(":", "-")
        shutil.copytree(place / "base", folder)
        assert children.clone(folder, source.url, name="hashed", kill_at=moment) == -signal.SIGKILL, moment
        with open_pond(folder, serve=True) as pond:
            assert pond.map("hashed").shard.stats().rows in (rows, rows + 1), moment
            assert pond.map("hashed").snapshot().lookup(pa.array(["k2" * 200])).to_pylist() == ["v2"]
            clone_map(pond, peer_of(source), "hashed")
            check_equal(pond, source)
        shutil.rmtree(folder)


def test_readers_go_on_while_a_clone_is_made(source: Served, place: Path) -> None:
    wrong: list[object] = []
    with open_pond(place / "new", serve=True) as pond:
        clone_pond(pond, peer_of(source), source.clock)
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                found = pond.map("retained").get("k2")
                if found != 2:
                    wrong.append(found)

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for _ in range(3):
            clone_pond(pond, peer_of(source), source.clock)
        stop.set()
        for reader in readers:
            reader.join()
    assert not wrong
