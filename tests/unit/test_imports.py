"""Imports: of folders, objects and tables; what they replace, and how they end."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.clock import ManualClock
from millpond.errors import Conflict, Denied, Invalid, MillpondError, NotFound
from millpond.kernel.steps import listening
from millpond.ranges import Boundaries
from millpond.stores.memory import MemorySpace
from millpond.stores.objects import MemoryObjects, ObjectStore
from millpond.stores.objects.sources import FolderSource, SourceFile, open_source, split_address
from millpond.versions.collect import collect
from millpond.versions.commits import Message
from millpond.versions.imports.jobs import ALIVE_SECONDS, ImportRecord, ImportState
from millpond.versions.imports.locations import Location, ObjectLocation, PrefixLocation, TableLocation
from millpond.versions.objects.entries import Entry
from millpond.versions.repositories import Repositories
from millpond.versions.repository import Repository
from millpond.versions.repository_context import ProtectedBranches
from millpond.versions.staging import bulk
from tests.harness.scratch import scratch_folder
from tests.rings.sampling import examples
from tests.s3_server import running

NOW = 1_600_000_000_000


def new_repositories(clock: ManualClock | None = None) -> Repositories:
    places: dict[str, ObjectStore] = {}
    return Repositories(
        MemorySpace(), clock or ManualClock(NOW), lambda where: places.setdefault(where, MemoryObjects()),
        boundaries=Boundaries(rows_min=2, rows_max=6, bits=1),
    )  # fmt: skip


@pytest.fixture
def repositories() -> Iterator[Repositories]:
    made = new_repositories()
    yield made
    made.close()


@pytest.fixture
def repository(repositories: Repositories) -> Repository:
    return repositories.create("imports")


def make_files(folder: Path, *names: str) -> str:
    """Files whose bytes are their names; the address of their folder."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
        os.utime(folder / name, (1_500_000_000.75, 1_500_000_000.75))
    return f"local://{folder}"


def paths(repository: Repository, ref: str = "main") -> list[str]:
    found = repository.ref(ref).list(amount=1000).results
    return [entry.path for entry in found if isinstance(entry, Entry)]


def kind_of(act: Callable[[], object]) -> str:
    with pytest.raises(MillpondError) as error:
        act()
    return error.value.kind


# -- sources ------------------------------------------------------------------------------------------


def test_a_folder_is_walked_in_the_order_of_whole_names(tmp_path: Path) -> None:
    names = ["a", "a b/x", "a-b", "a.b", "a/b", "a/c/d", "a0", ".hidden", "ü/ö %20"]
    where = make_files(tmp_path, *names[1:4], *names[6:], "a1/b")
    (tmp_path / "link").symlink_to(tmp_path / "a-b")
    os.mkfifo(tmp_path / "pipe")
    root, folder = split_address(where + "/")
    source = open_source(root)
    found = [one for block in source.walk(folder) for one in block]
    expected = sorted([*names[1:4], *names[6:], "a1/b"], key=str.encode)
    assert [one.name.removeprefix(folder) for one in found] == expected
    for one in found:
        text = one.name.removeprefix(folder).encode()
        assert (one.size, one.mtime, one.checksum) == (len(text), 1_500_000_000, hashlib.md5(text).hexdigest())
        assert source.get_range(one.name, 1, 3) == text[1:3]
        assert source.look(one.name) == one
    for wrong in ("link", "pipe", "nothing", "a1"):
        assert kind_of(lambda wrong=wrong: source.size(folder + wrong)) in ("object_not_found", "objects_unavailable")
    file = SourceFile(source, f"{folder}a-b")
    assert (file.read(2), file.tell(), file.seek(-1, os.SEEK_END), file.read()) == (b"a-", 2, 2, b"b")


def test_an_address_stays_in_its_place(tmp_path: Path) -> None:
    for wrong in ("", "a/b", "http://x/y", "s3://", "local:///a/../b", "local://./x", "s3://b/a/./c", "local:///a\0",
                  "local:////a", "local:///a//b", "local://a//b", "file:///a/b//"):  # fmt: skip
        assert kind_of(lambda wrong=wrong: split_address(wrong)) == "address_invalid"
    assert kind_of(lambda: open_source("local://")) == "address_invalid", "no folder stands for it here"
    assert FolderSource("local://", tmp_path).where == open_source("local://", tmp_path).where


@pytest.mark.usefixtures("process")
def test_objects_of_a_bucket_are_read_under_their_names_or_not_at_all(tmp_path: Path) -> None:
    with running(tmp_path, authorization="none") as server:
        server.make_bucket("bucket")
        for name in ("a-b", "a/", "a/b", "c/", "c/d/", "empty"):
            urlopen(Request(f"{server.url}/bucket/{name}", data=b"", method="PUT")).close()
        source = open_source("s3://bucket", None, server.config())
        for prefix, names in (("", ["a-b", "a/b", "empty"]), ("a/", ["a/b"]), ("c", []), ("a//", [])):
            assert [one.name for block in source.walk(prefix) for one in block] == names, prefix
        for wrong in ("/a", "a/", "a//b", "a/\x01", "/"):
            for act in (source.look, source.size, lambda name: source.get_range(name, 0, 1)):
                assert kind_of(lambda act=act, wrong=wrong: act(wrong)) == "source_name", wrong


def test_links_are_left_out_wherever_they_lead(repository: Repository, tmp_path: Path) -> None:
    where = make_files(tmp_path / "in", "a", "b/c")
    make_files(tmp_path / "elsewhere", "secret")
    (tmp_path / "in/file").symlink_to(tmp_path / "elsewhere/secret")
    (tmp_path / "in/folder").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in/b/circle").symlink_to(tmp_path / "in")
    (tmp_path / "in/nowhere").symlink_to(tmp_path / "nothing")
    main = repository.branch("main")
    assert main.imports.commit([PrefixLocation(f"{where}/")]).entries == 2
    assert paths(repository) == ["a", "b/c"]
    for name in ("file", "nowhere"):
        one = ObjectLocation(f"{where}/{name}", "x")
        assert kind_of(lambda one=one: main.imports.commit([one])) in ("object_not_found", "objects_unavailable")
    (tmp_path / "door").symlink_to(tmp_path / "in")
    main.imports.commit([PrefixLocation(f"local://{tmp_path}/door/", "by/")])
    assert paths(repository) == ["a", "b/c", "by/a", "by/b/c"]
    assert main.get("by/a") == b"a"


folders = st.sampled_from(["", "a/", "a-b/", "a/b/"])
trees = st.sets(st.builds(str.__add__, folders, st.sampled_from(["x", "y", "-", "zz.csv"])), max_size=9)


@settings(max_examples=examples(8, 25))
@given(trees, st.sampled_from(["", "a", "a/", "a/b", "a-", "x", "n/"]))
def test_a_walk_is_what_sorting_all_names_gives(names: set[str], prefix: str) -> None:
    with scratch_folder() as folder:
        root, base = split_address(make_files(folder, *names) + "/")
        source = open_source(root)
        expected = sorted((name for name in names if name.startswith(prefix)), key=str.encode)
        try:
            found = [one.name.removeprefix(base) for block in source.walk(base + prefix) for one in block]
        except NotFound:
            found = []
            assert not (folder / prefix.rpartition("/")[0]).is_dir()
        assert found == expected


# -- imports ------------------------------------------------------------------------------------------


def test_a_prefix_takes_the_place_of_what_was_there(repository: Repository, tmp_path: Path) -> None:
    where = make_files(tmp_path, "2013/a.csv", "2013/b c.csv", "2014/x")
    main = repository.branch("main")
    for path in ("in/old", "in", "in.csv", "other"):
        main.put(path, b"there")
    main.commit("before")
    imported = main.imports.commit(
        [PrefixLocation(f"{where}/2013/", "in"), PrefixLocation(f"{where}/20", "all/")], "take in", metadata={"k": "v"}
    )
    assert paths(repository) == [
        "all/2013/a.csv", "all/2013/b c.csv", "all/2014/x", "in", "in.csv", "in/a.csv", "in/b c.csv", "other",
    ]  # fmt: skip
    assert (imported.entries, imported.commit, main.diff().results) == (5, main.head(), ())
    entry = main.stat("in/b c.csv")
    assert entry.address == f"{where}/2013/b c.csv"
    assert main.get("in/b c.csv") == b"2013/b c.csv"
    assert b"".join(main.read("in/b c.csv", 5, 8)) == b"b c"
    again = main.imports.commit([PrefixLocation(f"{where}/2013/", "in")], "again")
    assert again.commit is not None
    assert imported.commit is not None
    assert again.commit.tree == imported.commit.tree
    (tmp_path / "2013/a.csv").unlink()
    main.imports.commit([PrefixLocation(f"{where}/2013/", "in")])
    assert "in/a.csv" not in paths(repository)
    assert kind_of(lambda: repository.ref("main~1").get("in/a.csv")) == "data_missing"


def test_objects_and_prefixes_together(repository: Repository, tmp_path: Path) -> None:
    where = make_files(tmp_path, "d/a", "d/b", "e/b", "one")
    main = repository.branch("main")
    main.put("d/a.bak", b"stays not")
    main.put("single.bak", b"stays")
    main.commit()
    main.imports.commit([
        ObjectLocation(f"{where}/one", "single"), ObjectLocation(f"{where}/e/b", "d/a"),
        PrefixLocation(f"{where}/d/", "d"), PrefixLocation(f"{where}/e/", "d"),
    ])  # fmt: skip
    assert paths(repository) == ["d/a", "d/b", "single", "single.bak"]
    assert [main.get(path) for path in ("d/a", "d/b", "single")] == [b"e/b", b"e/b", b"one"]


def test_an_import_that_cannot_read_fails_before_anything(repository: Repository, tmp_path: Path) -> None:
    where = make_files(tmp_path, "d/a", "text.parquet")
    with pa.ipc.new_file(tmp_path / "nulls", pa.schema([("path", pa.null())])) as sink:
        sink.write_batch(pa.record_batch([pa.nulls(1 << 23)], names=["path"]))
    main = repository.branch("main")
    head = main.head()
    wrong: list[tuple[Location, str]] = [
        (PrefixLocation(f"{where}/none/", "x"), "object_not_found"),
        (ObjectLocation(f"{where}/d", "x"), "object_not_found"),
        (ObjectLocation(f"{where}/d/a", ""), "path_invalid"), (PrefixLocation("nope://x", "x"), "address_invalid"),
        (TableLocation(f"{where}/text.parquet"), "import_table"), (TableLocation(f"{where}/none"), "object_not_found"),
        (TableLocation(f"{where}/nulls"), "arrow_batch_large"),
    ]  # fmt: skip
    for location, kind in wrong:
        for act in (main.imports.commit, main.imports.stage):
            assert kind_of(lambda act=act, location=location: act([location])) == kind
    main.put("staged", b"")
    assert kind_of(lambda: main.imports.commit([PrefixLocation(f"{where}/d/", "x")])) == "branch_dirty"
    repository.set(ProtectedBranches(("main",)))
    with pytest.raises(Denied):
        main.imports.stage([PrefixLocation(f"{where}/d/", "x")])
    with pytest.raises(NotFound):
        repository.branch("none").imports.commit([])
    assert main.head() == head


def test_an_import_of_nothing_is_a_commit(repository: Repository, tmp_path: Path) -> None:
    main = repository.branch("main")
    assert main.imports.commit([], "nothing").entries == 0
    assert main.head().message == "nothing"
    assert main.imports.stage([]).entries == 0
    assert main.staging.record().sealed == ()


def table(names: list[str], deleted: list[bool] | None = None) -> pa.Table:
    columns: dict[str, object] = {
        "path": names, "address": [f"s3://elsewhere/{name}" for name in names], "size": list(range(len(names))),
        "checksum": names,
    }  # fmt: skip
    return pa.table(columns if deleted is None else columns | {"deleted": deleted})


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("written", ["parquet", "file", "stream"])
def test_a_sorted_table_becomes_ranges(repository: Repository, tmp_path: Path, written: str) -> None:
    names = [f"{number:04d}" for number in range(300)]
    file = tmp_path / "entries"
    if written == "parquet":
        pq.write_table(table(names), file, row_group_size=100)
    else:
        begin = pa.ipc.new_stream if written == "stream" else pa.ipc.new_file
        with begin(file, table(names).schema) as sink:
            sink.write_table(table(names), max_chunksize=70)
    main = repository.branch("main")
    main.put("t/0007", b"staged")
    main.put("t/x", b"staged")
    imported = main.imports.stage([TableLocation(f"local://{file}", "t/")])
    assert (imported.entries, imported.commit) == (300, None)
    assert paths(repository) == [*(f"t/{name}" for name in names), "t/x"]
    assert main.stat("t/0007").address == "s3://elsewhere/0007"
    assert [layer.index is None for layer in main.staging.record().sealed] == [False, True]
    main.reset()
    assert main.imports.commit([TableLocation(f"local://{file}")]).entries == 300
    assert (paths(repository, "main@"), main.staging.record().sealed) == (names, ())


def test_a_table_may_delete(repository: Repository, tmp_path: Path) -> None:
    main = repository.branch("main")
    main.put("a", b"")
    main.put("b", b"")
    main.commit()
    pq.write_table(table(["a", "c"], [True, False]), tmp_path / "sorted")
    main.imports.commit([TableLocation(f"local://{tmp_path}/sorted")])
    assert paths(repository) == ["b", "c"]
    pq.write_table(table(["b", "a"]).append_column("colour", pa.array([1, 2])), tmp_path / "other")
    assert kind_of(lambda: main.imports.commit([TableLocation(f"local://{tmp_path}/other")])) == "stage_columns"
    assert paths(repository) == ["b", "c"]


@pytest.mark.usefixtures("processor")
@settings(max_examples=examples(10, 40), deadline=None)
@given(
    st.lists(st.lists(st.sampled_from("abcd"), max_size=5), min_size=1, max_size=3), st.integers(1, 3), st.booleans()
)
def test_tables_are_in_order_or_refused_by_their_row(tables: list[list[str]], group: int, staged: bool) -> None:
    repository = new_repositories().create("order")
    main = repository.branch("main")
    with TemporaryDirectory() as folder:
        locations = [TableLocation(f"local://{folder}/{number}") for number in range(len(tables))]
        for number, found in enumerate(tables):
            rows = {"path": pa.array(found, pa.string()), "address": pa.array(["data/x"] * len(found), pa.string())}
            pq.write_table(pa.table(rows), f"{folder}/{number}", row_group_size=group)
        wrong = {
            (location.address, row + 2)
            for location, found in zip(locations, tables, strict=True)
            for row, (before, path) in enumerate(pairwise(found))
            if path <= before
        }
        act = main.imports.stage if staged else main.imports.commit
        if not wrong:
            act(locations)
            assert paths(repository) == sorted({path for found in tables for path in found})
            return
        with pytest.raises(Invalid, match="rows do not ascend") as error:
            act(locations)
        assert (error.value.values["address"], error.value.values["row"]) in wrong
        assert paths(repository) == []


names = st.text("ab/", min_size=1, max_size=3)
placed = st.lists(st.tuples(st.sampled_from(["prefix", "object"]), trees, names), max_size=4)


@pytest.mark.usefixtures("processor")
@settings(max_examples=examples(10, 40), deadline=None)
@given(placed, st.sets(names, max_size=5))
def test_imports_are_what_a_dict_becomes(placed: list[tuple[str, set[str], str]], before: set[str]) -> None:
    repository = new_repositories().create("model")
    main = repository.branch("main")
    for path in before:
        main.put(path, b"before")
    main.commit(allow_empty=True)
    state = dict.fromkeys(before, b"before")
    locations: list[Location] = []
    prefixed: dict[str, bytes] = {}
    single: dict[str, bytes] = {}
    with scratch_folder() as folder:
        for number, (shape, files, destination) in enumerate(placed):
            where = make_files(folder / str(number), *files, "z")
            if shape == "object":
                locations.append(ObjectLocation(f"{where}/z", destination))
                single[destination] = b"z"
            else:
                locations.append(PrefixLocation(f"{where}/", destination))
                start = destination if destination.endswith("/") else f"{destination}/"
                state = {path: body for path, body in state.items() if not path.startswith(start)}
                prefixed |= {start + name: name.encode() for name in {*files, "z"}}
        main.imports.commit(locations)
        state |= prefixed | single
        assert {path: main.get(path) for path in paths(repository)} == state


# -- imports in the background ------------------------------------------------------------------------


class _Gate:
    """Holds the import at a step until it is opened."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reached, self.opened, self.ended = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, name: str) -> None:
        if name == "versions.import_ended":
            self.ended.set()
        if name == self.name:
            self.reached.set()
            assert self.opened.wait(30)


def ended(repositories: Repositories, repository: Repository, id_: str, gate: _Gate) -> ImportRecord:
    assert gate.ended.wait(30)
    return repositories.imports.get(repository.context, "main", id_)


def test_an_import_runs_behind_its_id(repositories: Repositories, repository: Repository, tmp_path: Path) -> None:
    where = make_files(tmp_path, "d/a", "d/b")
    jobs, gate = repositories.imports, _Gate("versions.import_written")
    with listening(gate):
        id_ = jobs.start(repository.context, "main", [PrefixLocation(f"{where}/d/", "x")], Message("imported"))
        assert gate.reached.wait(30)
        running = jobs.get(repository.context, "main", id_)
        assert (running.state, running.entries) == (ImportState.RUNNING, 2)
        gate.opened.set()
        record = ended(repositories, repository, id_, gate)
    head = repository.branch("main").head()
    assert (record.state, record.entries, record.commit, record.error) == (ImportState.COMPLETED, 2, head.id, "")
    with pytest.raises(Conflict) as error:
        jobs.cancel(repository.context, "main", id_)
    assert error.value.kind == "import_over"
    for branch, other in (("main", "none"), ("dev", id_)):
        kind = kind_of(lambda branch=branch, other=other: jobs.get(repository.context, branch, other))
        assert kind == "import_not_found"


@pytest.mark.parametrize("at", ["versions.import_written", "versions.import_folded", "versions.built"])
def test_a_canceled_import_changes_no_branch(
    repositories: Repositories, repository: Repository, tmp_path: Path, at: str
) -> None:
    where = make_files(tmp_path, "d/a")
    jobs, gate, head = repositories.imports, _Gate(at), repository.branch("main").head()
    with listening(gate):
        id_ = jobs.start(repository.context, "main", [PrefixLocation(f"{where}/d/", "x")], Message("imported"))
        assert gate.reached.wait(30)
        for _ in range(2):
            jobs.cancel(repository.context, "main", id_)
        gate.opened.set()
        record = ended(repositories, repository, id_, gate)
    assert (record.state, record.error, repository.branch("main").head()) == (ImportState.CANCELED, "Canceled", head)


def test_an_import_fails_where_all_can_see_it(
    repositories: Repositories, repository: Repository, tmp_path: Path
) -> None:
    main = repository.branch("main")
    pq.write_table(table(["b", "a"]), tmp_path / "unsorted")
    gate = _Gate("")
    with listening(gate):
        where = f"local://{tmp_path}/unsorted"
        id_ = repositories.imports.start(repository.context, "main", [TableLocation(where)], None)
        record = ended(repositories, repository, id_, gate)
    repositories.close()
    assert record.state is ImportState.FAILED
    assert "rows do not ascend" in record.error and "row=2 path=a before=b" in record.error
    assert main.staging.record().sealed == ()
    start = repositories.imports.start
    absent = [PrefixLocation("local:///none/")]
    assert kind_of(lambda: start(repository.context, "main", absent, None)) == "object_not_found"
    assert kind_of(lambda: start(repository.context, "main", [], None)) == "imports_full", "it was closed"


def test_an_import_whose_process_died_has_failed(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    repositories = new_repositories(clock)
    repository = repositories.create("imports")
    gate = _Gate("versions.import_written")
    with listening(gate):
        id_ = repositories.imports.start(
            repository.context, "main", [PrefixLocation(f"{make_files(tmp_path, 'a')}/", "x")], Message()
        )
        assert gate.reached.wait(30)
        written = len(list(repository.context.ranges.list("ranges")))
        assert collect(repository.context, grace_ms=0).ranges == 0, "what it writes stays"
        assert len(list(repository.context.ranges.list("ranges"))) == written
        clock.now += 2 * 86_400_000
        assert repositories.imports.get(repository.context, "main", id_).state is ImportState.RUNNING, (
            "a clock that jumped"
        )
        clock.advance(round(1000 * ALIVE_SECONDS))
        record = repositories.imports.get(repository.context, "main", id_)
        assert (record.state, record.error) == (
            ImportState.FAILED, "the process that imported has ended: import again",
        )  # fmt: skip
        assert collect(repository.context, grace_ms=0).ranges > 0
        gate.opened.set()
        repositories.close()
    assert repositories.imports.get(repository.context, "main", id_).state is not ImportState.RUNNING


# -- rows in bulk -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("processor")
@settings(max_examples=examples(10, 40), deadline=None)
@given(st.lists(st.lists(st.tuples(names, st.booleans()), max_size=6), max_size=6))
def test_rows_in_any_order_are_what_a_dict_becomes(batches: list[list[tuple[str, bool]]]) -> None:
    repository = new_repositories().create("bulk")
    main = repository.branch("main")
    main.put("a", b"")
    state, number = {"a": "d41d8cd98f00b204e9800998ecf8427e"}, 0
    tables = []
    for rows in batches:
        checksums = [str(number + at) for at in range(len(rows))]
        number += len(rows)
        for (path, deleted), checksum in zip(rows, checksums, strict=True):
            state.pop(path, None)
            if not deleted:
                state[path] = checksum
        columns = [[path for path, _ in rows], checksums, [deleted for _, deleted in rows]]
        schema = pa.schema([("path", pa.string()), ("checksum", pa.string()), ("deleted", pa.bool_())])
        tables.append(
            pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
        )
    staged = bulk.stage_rows(main.context, "main", iter(tables), chunk_rows=4, segment_rows_min=3)
    assert staged[0] == number
    listed = main.list(amount=1000).results
    assert {found.path: found.checksum for found in listed if isinstance(found, Entry)} == state


def test_rows_that_end_in_an_error_stage_nothing(repository: Repository) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"path": ["a"]})
        raise Invalid("the stream is damaged", kind="stage_columns")

    main = repository.branch("main")
    assert kind_of(lambda: main.staging.stage(batches())) == "stage_columns"
    assert paths(repository) == []
    assert main.staging.stage([]) == 0
