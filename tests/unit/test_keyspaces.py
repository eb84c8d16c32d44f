"""Keyspaces are registered once, and a pond has no row outside of them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.clock import ManualClock
from millpond.errors import Corrupt, Internal
from millpond.events.embedded.jobs import SpaceQueues
from millpond.events.event import NewEvent
from millpond.events.jobs.queues import Queue, Queues
from millpond.events.jobs.submissions import NewJob, Submissions
from millpond.events.location import open_streams
from millpond.events.names import StreamName
from millpond.events.shared_jobs import HoldsJobs
from millpond.kernel.keys import EVERYTHING, encode
from millpond.kernel.keyspace import REGISTRY, Registry, Scope
from millpond.maps.log.clone import CLONE_FORMAT, Clone, adopt_clone, clone_folder, write_quarantine, write_state
from millpond.maps.model.keyspaces import HISTORY_AGE, PART_RETENTION, POND_ID
from millpond.pond import open_pond
from millpond.stores.memory import MemorySpace
from millpond.testing.faults import flip_byte
from tests.harness.rows import canonical_of

if TYPE_CHECKING:
    from pathlib import Path

    from millpond import Pond
    from millpond.kernel.keyspace import Keyspace

DAY = 86_400_000
WORDS = st.sampled_from(["a", "ab", "b", "log", ""])
REST = st.lists(st.one_of(WORDS, st.integers(-3, 3)), max_size=2).map(tuple)
OF_NODES = {
    "maps/alert_mark/<map>",
    "pond/confirmed/<url>",
    "pond/copied",
    "pond/handed_over",
    "pond/nodes",
    "pond/promise",
}
"""The keyspaces that only a pond of several nodes has rows in, or a copy of another."""
OF_BUCKETS = {
    "maps/collecting/<folder>", "maps/purged/<folder>", "maps/rewriting/<folder>/<writer>",
    "maps/unnamed/<folder>/<manifest>", "pond/job/<job>", "pond/tokens",
}  # fmt: skip
"""Those that only a pond in a bucket has rows in: of its nodes, and when its garbage is collected."""
UNTOLD = {"maps/alerted/<position>/<number>"}
"""Those that have rows between a load and what it lets be told."""


def registry_of(*pairs: tuple[str, str]) -> Registry:
    registry = Registry()
    for part, name in pairs:
        registry.register(part, name, (), Scope.SHARED, "text", "rows of a test")
    return registry


def test_a_keyspace_is_registered_once() -> None:
    registry = registry_of(("a", "log"), ("b", "log"))
    with pytest.raises(Internal) as caught:
        registry.register("a", "log", (), Scope.LOCAL, "text", "another")
    assert caught.value.kind == "keyspace_twice"
    assert [str(keyspace) for keyspace in registry.of()] == ["a/log", "b/log"]
    assert registry.of(Scope.LOCAL) == ()


@given(
    pairs=st.sets(st.tuples(st.sampled_from("ab"), st.sampled_from(["a", "ab", "log"])), max_size=4),
    rows=st.lists(st.one_of(st.tuples(WORDS, WORDS, REST), st.binary(min_size=1, max_size=4)), max_size=20),
)
def test_rows_outside_every_keyspace_are_found(
    pairs: set[tuple[str, str]], rows: list[bytes | tuple[str, str, tuple[int | str, ...]]]
) -> None:
    registry, space = registry_of(*pairs), MemorySpace()
    known = {encode((part, name)) for part, name in pairs}
    keys = {row if isinstance(row, bytes) else encode((row[0], row[1], *row[2])) for row in rows}

    def put(tx: object) -> None:
        for key in keys:
            tx.put(key, b"")  # type: ignore[attr-defined]

    space.write(put)
    with space.read() as tx:
        found = list(registry.unregistered(tx))
    assert found == sorted(key for key in keys if not any(key.startswith(prefix) for prefix in known))


# -- a pond's space -----------------------------------------------------------------------------------


def bring(pond: Pond, value: int, *, wait: bool = True, stream: tuple[str, int] | None = None) -> None:
    writer = pond.part_writer("m")
    writer.write(canonical_of(pond.map("m").definition, [(("a", value), value)]))
    pond.commit_load(writer.finish(), wait=wait, stream=stream)


def rows_of(pond: Pond) -> dict[str, int]:
    """The number of rows of every keyspace; a row of none fails."""
    counts: dict[str, int] = {}
    with pond.space.read() as tx:
        assert list(REGISTRY.unregistered(tx)) == []
        for key, _ in tx.scan(EVERYTHING):
            keyspace = REGISTRY.find(key)
            assert keyspace is not None and key in keyspace
            counts[str(keyspace)] = counts.get(str(keyspace), 0) + 1
    return counts


OTHERS = ("versions/", "events/", "workflows/")


def of_maps(pond: Pond) -> set[str]:
    """The keyspaces of maps that have rows."""
    return {name for name in rows_of(pond) if not name.startswith(OTHERS)}


def names_of(*scopes: Scope) -> set[str]:
    """The keyspaces of maps; the tests of the other parts fill theirs, which another test may have imported."""
    return {name for keyspace in REGISTRY.of(*scopes) if not (name := str(keyspace)).startswith(OTHERS)}


@pytest.fixture
def busy(tmp_path: Path) -> Path:
    """A pond with a row in every keyspace of maps but those of clones and of nodes."""
    with open_pond(tmp_path / "busy", clock=ManualClock(now=DAY), maps_part_retention="7d", maps_history="20d") as pond:
        pond.create_map("m", kind="temporal_state", value="long")
        pond.create_map("dropped", kind="state")
        bring(pond, 1, stream=("query", 1))
        pond.map("m").lookup(pa.array(["a"]), pa.array([5], pa.timestamp("ms", "UTC")))
        pond.drop_map("dropped")
        bring(pond, 2, wait=False)
        [damaged] = pond.parts.list(state="queued")
        file = pond.parts.file(damaged.part)
        assert file is not None
        flip_byte(file, 5000)
        bring(pond, 3)
        pond.map("m").retain(before="1970-01-01T00:00Z")
        bring(pond, 4, wait=False)
        pond.log.order_maintenance("m", "condense", 0)
        pond.create_map("layered", kind="state", value="long", store="layers").load([{"key": "a", "value": 1}])
        pond.branch("fix", source="main").map("layered").load([{"key": "a", "value": 2}])
        people = pond.create_map("people", kind="state", value="long", store="layers")
        people.load([{"key": "ann", "value": 1}, {"key": "bo", "value": 2}])
        pond.branch("try", source="main").map("people").load([{"key": "cy", "value": 3}])
        people.delete("key = 'ann'", now=True, branches=True)
        pond.create_map("sales", kind="aggregate", value="n long count", resolution="none").alerts.add(
            "n > 9", name="many"
        )
        assert of_maps(pond) == names_of() - {"maps/cloned"} - OF_NODES - OF_BUCKETS - UNTOLD
        assert [problem.subject for problem in pond.verify().problems] == ["quarantine"]
    return tmp_path / "busy"


@pytest.mark.usefixtures("process")
def test_a_busy_pond_has_no_row_outside_the_keyspaces(busy: Path) -> None:
    with open_pond(busy, clock=ManualClock(now=DAY, ids=900)) as pond:
        assert of_maps(pond) <= names_of()


@pytest.mark.usefixtures("process")
def test_a_pond_with_repositories_has_no_row_outside_the_keyspaces(tmp_path: Path) -> None:
    with open_pond(tmp_path / "pond", clock=ManualClock(now=DAY)) as pond:
        repository = pond.repositories.create("flights")
        main = repository.branch("main")
        main.put("a/1", b"one")
        main.commit("first")
        main.put("a/2", b"two")
        main.staging.delete_prefix("a/")
        main.put("b/1", b"three")
        repository.create_tag("v1", "main")
        assert "versions/staged/<token>/<path>" in rows_of(pond)
        assert pond.verify().ok


@pytest.mark.usefixtures("process")
def test_a_pond_with_streams_has_no_row_outside_the_keyspaces(tmp_path: Path) -> None:
    with open_pond(tmp_path / "pond", clock=ManualClock(now=DAY)) as pond:
        pond.events.append("etl", "nightly", [b"one"], source="kafka:jobs/0", positions=[7])
        pond.events.store.close_day(StreamName("etl", "nightly"), 1)
        assert pond.events.doubt() is None
        pond.events.settings.set("etl", retention="30d")
        Queues(SpaceQueues(pond.space)).create(Queue("etl"))
        store = open_streams(pond.space, pond.clock)
        assert isinstance(store, HoldsJobs)
        job = NewJob(lambda job_id: [NewEvent(DAY, b"", "queued", {"job_id": job_id})], client_id="mine", uri="u")
        Submissions(store.job_rows, store, pond.clock).submit(StreamName("etl", "jobs"), [job])
        names = {str(keyspace) for keyspace in REGISTRY.of() if str(keyspace).startswith("events/")}
        assert {name for name in rows_of(pond) if name.startswith("events/")} == names - {
            "events/place",
            "events/collecting",
            "events/unnamed",
        }  # the last two are of buckets
        assert [event.payload for event in pond.events.read("etl", "nightly")] == [b"one"]
        assert pond.verify().ok


def gather(source: Path, target: Path) -> Clone:
    """Copy of a pond into the folder in which another one gathers its clone."""
    gathered = clone_folder(target)
    gathered.mkdir()
    with open_pond(source, clock=ManualClock(now=DAY, ids=900)) as pond:
        with pond.space.read() as tx:
            write_state(tx, gathered / "state.arrow")
            write_quarantine(tx, gathered / "quarantine.arrow")
        about = Clone(
            "clone-1", pond.log.pond_id, pond.log.position()[0], (f"m.{pond.map('m').definition.incarnation}",)
        )
        shard = pond.map("m").shard.folder
        shutil.copy(shard / (shard / "current").read_text().strip() / "data.mdb", gathered / f"{about.maps[0]}.mdb")
    return about


@pytest.mark.usefixtures("process")
def test_a_clone_has_what_is_shared_and_leaves_its_folders_settings(busy: Path, tmp_path: Path) -> None:
    with open_pond(
        tmp_path / "copy", clock=ManualClock(now=DAY, ids=500), maps_part_retention="3d", maps_history="9d"
    ) as copy:
        copy.create_map("mine", kind="state")
        about = gather(busy, copy.folder)
        adopt_clone(copy.folder, copy.space, about)
        found = of_maps(copy)
        local = names_of(Scope.LOCAL) - {"maps/cloned", "maps/quarantine/<map>/<number>"}
        assert found == names_of() - local - OF_NODES - OF_BUCKETS - {"maps/stand in/<folder>/<manifest>"}
        assert copy.log.pond_id == about.pond
        with copy.space.read() as tx:
            assert tx.get(POND_ID.pack()) == about.pond.encode()
            assert tx.get(PART_RETENTION.pack()) == str(3 * DAY).encode()
            assert tx.get(HISTORY_AGE.pack()) == str(9 * DAY).encode()


@pytest.mark.usefixtures("process")
def test_rows_of_nobody_are_found_and_never_copied_as_if_all_were_there(busy: Path, tmp_path: Path) -> None:
    with open_pond(busy, clock=ManualClock(now=DAY, ids=900)) as pond:
        pond.space.write(lambda tx: tx.put(encode(("nobody", "branch", "main")), b"{}"))
        [problem] = [problem for problem in pond.verify().problems if problem.subject == "row of the space"]
        assert problem.found == "it belongs to no known keyspace"
        with pytest.raises(Corrupt) as caught, pond.space.read() as tx:
            write_state(tx, tmp_path / "state.arrow")
        assert caught.value.kind == "keyspace_unknown"


@pytest.mark.parametrize("keyspace", [*REGISTRY.of(Scope.LOCAL, Scope.FOLDER), None], ids=str)
def test_a_state_with_rows_that_are_not_shared_is_refused(tmp_path: Path, keyspace: Keyspace | None) -> None:
    with open_pond(tmp_path / "pond", clock=ManualClock(now=DAY)) as pond:
        clone_folder(pond.folder).mkdir()
        file = clone_folder(pond.folder) / "state.arrow"
        key = encode(("log", 1)) if keyspace is None else keyspace.pack("m", 1)
        with pa.OSFile(str(file), "wb") as sink:
            table = pa.table({"key": [key], "value": [b"{}"]}).replace_schema_metadata({"format": str(CLONE_FORMAT)})
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
        with pytest.raises(Corrupt) as caught:
            adopt_clone(pond.folder, pond.space, Clone("c", pond.log.pond_id, 1, ()))
        assert caught.value.kind == "clone_state"
        assert caught.value.values["file"] == file
