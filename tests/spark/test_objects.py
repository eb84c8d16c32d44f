"""Repositories in Spark: the entries of a ref as rows, compaction and garbage collection as jobs."""

from __future__ import annotations

import threading
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import millpond
from millpond import spark as mp
from millpond.clock import SystemClock
from millpond.errors import Invalid, NotFound
from millpond.kernel.steps import listening
from millpond.ranges import Boundaries
from millpond.spark.objects.compaction import compact_branch, folding
from millpond.spark.objects.source import OBJECTS, ObjectsSource
from millpond.stores.lmdb.space import LmdbSpace
from millpond.stores.objects import open_objects
from millpond.versions.compaction import compact
from millpond.versions.objects.entries import Entry
from millpond.versions.repositories import Repositories
from millpond.versions.repository import Repository
from millpond.versions.repository_context import Retention
from millpond.versions.staging.commit_ranges import SCRATCH

pytestmark = pytest.mark.sample(5, of="file")

ROWS = 3_000
SMALL = Boundaries(rows_min=32, rows_max=256, bits=5)


@pytest.fixture
def repository(pond: millpond.Pond) -> Repository:
    """A repository with small ranges, a commit, and all kinds of layers over it."""
    pond.repositories._boundaries = SMALL
    repository = pond.repositories.create("flights")
    fill(repository)
    return repository


def fill(repository: Repository) -> None:
    main = repository.branch("main")
    main.staging.push(rows(range(ROWS), "1").to_batches())
    main.commit("base")
    main.staging.delete_prefix("k000")
    main.staging.push(rows(range(500, 700), "2").to_batches())
    main.staging.delete_many([f"k{number:05}" for number in range(1_000, 1_100)])
    main.staging.push(rows(range(5_000, 5_500), "3").to_batches())
    main.put("odd/é", b"body", content_type="text/plain", metadata={"a": "1", "b": "é"})
    main.staging.link(Entry("elsewhere", "s3://bucket/elsewhere", 7, 1_600_000_000, "c"))


def rows(numbers: range, content: str) -> pa.Table:
    return pa.table({
        "path": [f"k{number:05}" for number in numbers], "checksum": [content] * len(numbers),
        "address": [f"data/{content}"] * len(numbers), "size": list(numbers),
    })  # fmt: skip


def read(repository: Repository, **options: object) -> list[tuple[str, str]]:
    """The rows that the tasks of a read bring, in this process."""
    given = {"pond": str(folder_of(repository)), "repository": "flights"}
    source = ObjectsSource(given | {name: str(value) for name, value in options.items()})
    reader = source.reader(source.schema())
    found = [row for one in reader.partitions() for batch in reader.read(one) for row in batch.to_pylist()]
    return [(row["path"], row["checksum"]) for row in found]


def folder_of(repository: Repository) -> Path:
    return Path(repository.context.ranges.where).parents[2]


def entries(repository: Repository, ref: str, prefix: str = "") -> list[tuple[str, str]]:
    batches = repository.ref(ref).entries(prefix)
    return [
        (key.decode(), checksum) for batch in batches
        for key, checksum in zip(batch.column("key").to_pylist(), batch.column("checksum").to_pylist(), strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize("ref", ["main", "main@", "main~1"])
@pytest.mark.parametrize("prefix", ["", "k000", "k005", "k01", "odd/", "none"])
def test_a_ref_is_read_as_it_is(repository: Repository, ref: str, prefix: str) -> None:
    assert read(repository, ref=ref, prefix=prefix, partitions=5) == entries(repository, ref, prefix)


def test_all_columns_are_those_of_the_entry(spark: SparkSession, repository: Repository) -> None:
    frame = spark.read.format("millpond.objects").load(str(folder_of(repository)), repository="flights", prefix="odd/")
    (row,) = frame.collect()
    entry = repository.branch("main").stat("odd/é")
    assert frame.columns == OBJECTS.names
    address = f"{repository.record.namespace}/{entry.address}"
    assert row.asDict() == {
        "path": "odd/é", "size": 4, "checksum": entry.checksum, "physical_address": address, "mtime": row["mtime"],
        "metadata": {"a": "1", "b": "é"}, "content_type": "text/plain",
    }  # fmt: skip
    assert row["mtime"].timestamp() == entry.mtime
    assert (
        len(read(repository))
        == spark.read.format("millpond.objects")
        .load(str(folder_of(repository)), repository="flights", partitions=3)
        .where("physical_address like 's3://bucket/elsewhere' or physical_address like '%/data/%'")
        .count()
    )


def test_a_read_is_of_one_moment_and_opens_what_the_prefix_needs(repository: Repository) -> None:
    options = {"pond": str(folder_of(repository)), "repository": "flights", "prefix": "k02", "partitions": "8"}
    source = ObjectsSource(options)
    reader = source.reader(source.schema())
    expected = entries(repository, "main", "k02")
    repository.branch("main").commit("later")
    repository.branch("main").staging.delete_prefix("")
    found = [row for stretch in reader.partitions() for batch in reader.read(stretch) for row in batch.to_pylist()]
    assert [(row["path"], row["checksum"]) for row in found] == expected
    assert len(reader.partitions()) > 1
    assert all(b"k02" <= stretch.keys.start < b"k03" for stretch in reader.partitions())
    sizes = source.reader(StructType([source.schema()["size"]]))
    assert {tuple(batch.schema.names) for one in sizes.partitions() for batch in sizes.read(one)} <= {("size",)}


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, "repository_unnamed"), ({"repository": "flights", "prefixes": "a"}, "option_unknown"),
        ({"repository": "none"}, "repository_not_found"), ({"repository": "flights", "ref": "none"}, "ref_not_found"),
        ({"repository": "flights", "ref": "a b"}, "ref_invalid"),
    ],
)  # fmt: skip
def test_options_that_mean_nothing_are_refused(repository: Repository, options: dict[str, str], kind: str) -> None:
    with pytest.raises((Invalid, NotFound)) as error:
        source = ObjectsSource({"pond": str(folder_of(repository)), **options})
        source.reader(source.schema())
    assert error.value.kind in (kind, "branch_not_found", "commit_not_found")


def test_repositories_are_opened_by_the_driver_itself() -> None:
    source = ObjectsSource({"pond": "http://localhost:1", "repository": "r"})
    with pytest.raises(Invalid) as error:
        source.reader(source.schema())
    assert error.value.kind == "repositories_remote"


def test_the_session_names_the_pond(spark: SparkSession, repository: Repository) -> None:
    session = spark.newSession()
    mp.register(session, pond=folder_of(repository))
    found = session.read.format("millpond.objects").option("repository", "flights").option("ref", "main@").load()
    assert found.count() == ROWS
    with pytest.raises(PySparkException, match="repository not found") as refused:
        session.read.format("millpond.objects").option("repository", "none").load().count()
    assert "Traceback" not in str(refused.value)
    with pytest.raises(PySparkException, match="did you mean 'queue'") as refused:
        session.read.format("millpond.events").option("que", "etl").load()
    assert "Traceback" not in str(refused.value)


# -- compaction ---------------------------------------------------------------------------------------


def test_a_job_writes_the_index_that_one_process_writes(
    spark: SparkSession, repository: Repository, pond: millpond.Pond
) -> None:
    expected = entries(repository, "main")
    twin = pond.repositories.create("twin")
    fill(twin)
    assert twin.branch("main").staging.compact().done
    done = mp.compact_branch(spark, "flights", "main", pond=pond, task_rows=300)
    assert (done.done, done.layers > 3) == (True, True)
    record = repository.branch("main").staging.record()
    assert record.sealed == ()
    assert index_but_for_times(repository) == index_but_for_times(twin)
    assert entries(repository, "main") == expected
    assert not list(repository.context.ranges.list(SCRATCH))
    assert mp.compact_branch(spark, "flights", "main", pond=pond).reason == "all that is staged was compacted before"


def test_a_job_and_one_process_fold_the_same_branch_to_the_same_id(spark: SparkSession, tmp_path: Path) -> None:
    """The same space twice: the job's index id is that of the local compactor, also for one task and for many."""
    ids = set()
    for number, task_rows in enumerate((None, 1 << 20, 150)):
        folder = tmp_path / str(number)
        repository = fixed(folder)
        branch = repository.branch("main")
        before = entries(repository, "main")
        if task_rows is None:
            assert branch.staging.compact().done
        else:
            assert _compact_on(spark, repository, task_rows)
        ids.add(branch.staging.record().compacted_index)
        assert entries(repository, "main") == before
        repository.context.space.close()
    assert len(ids) == 1


class Standing(SystemClock):
    """A clock that stands, so that entries of two ponds have one time."""

    def now_ms(self) -> int:
        return 1_600_000_000_000


def fixed(folder: Path) -> Repository:
    def place(where: str) -> object:
        return open_objects(folder / where.removeprefix("local://"))

    space = LmdbSpace(folder / "space", durable=False)
    repositories = Repositories(space, Standing(), place, boundaries=SMALL)  # type: ignore[arg-type]
    repository = repositories.create("flights")
    main = repository.branch("main")
    main.staging.push(rows(range(ROWS), "1").to_batches())
    main.commit("base")
    main.staging.delete_prefix("k000")
    main.staging.push(rows(range(500, 700), "2").to_batches())
    main.staging.delete_many([f"k{number:05}" for number in range(1_000, 1_100)])
    main.staging.push(rows(range(5_000, 5_500), "3").to_batches())
    return repository


def _compact_on(spark: SparkSession, repository: Repository, task_rows: int) -> bool:
    return compact(repository.context, "main", fold=folding(spark, task_rows)).done


def index_but_for_times(repository: Repository) -> list[tuple[object, ...]]:
    """The ranges of the compacted index, whose entries were put at another time: first and last keys, and counts."""
    index = repository.context.index(str(repository.branch("main").staging.record().compacted_index))
    return [(entry.first, entry.last, entry.count) for entry in index.entries]


def test_a_commit_during_the_job_wins_and_loses_nothing(spark: SparkSession, repository: Repository) -> None:
    expected = entries(repository, "main")
    other = threading.Thread(target=lambda: repository.branch("main").commit("wins"))
    pond = folder_of(repository)

    def commit(name: str) -> None:
        if name == "compaction.folded" and other.ident is None:
            other.start()
            other.join()

    with listening(commit):
        done = compact_branch(spark, "flights", "main", pond=str(pond), task_rows=400)
    assert (done.done, done.reason) == (False, "the sealed layers changed")
    assert entries(repository, "main") == entries(repository, "main@") == expected


# -- garbage ------------------------------------------------------------------------------------------


@pytest.fixture
def garbage(pond: millpond.Pond) -> Repository:
    """A repository with objects that commits, staged rows, segments or nothing name."""
    repository = pond.repositories.create("garbage")
    main = repository.branch("main")
    main.put("committed", b"1")
    main.put("expired", b"2")
    main.commit("one")
    main.delete("expired")
    main.put("compacted", b"3")
    main.commit("two")
    for number in range(3):
        main.put("overwritten", str(number).encode())
    main.staging.compact()
    main.put("overwritten", b"last")
    main.put("staged", b"5")
    repository.create_branch("side", "main").put("of side", b"6")
    return repository


@pytest.mark.parametrize("expiring", [False, True])
def test_a_job_collects_what_one_process_collects(
    spark: SparkSession, garbage: Repository, pond: millpond.Pond, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    *, expiring: bool,
) -> None:  # fmt: skip
    with pytest.raises(Invalid, match="grace_ms=0 grace_ms_min=60000"):
        mp.collect_garbage(spark, "garbage", pond=pond, grace=0)
    monkeypatch.setattr("millpond.versions.collect.GRACE_MS_MIN", 0)
    if expiring:
        garbage.set(Retention(default_days=0))
        monkeypatch.setattr("millpond.spark.objects.garbage.RANGES_HERE", 0)
    expected = garbage.collect(grace_ms=0, dry_run=True)
    report = tmp_path / "report"
    shown = mp.collect_garbage(spark, "garbage", pond=pond, grace=0, dry_run=True, report=f"file://{report}")
    assert asdict(shown) == asdict(expected)
    assert shown.objects == 2 + expiring
    assert pyarrow.parquet.read_table(report).column("name").to_pylist() == sorted(
        name for name in shown.names if name.startswith("data/")
    )
    assert mp.collect_garbage(spark, "garbage", pond=pond, dry_run=True).objects == 0, "all are younger than a day"
    before = {path: garbage.ref(ref).get(path) for ref in ("main", "side") for path, _ in entries(garbage, ref)}
    done = mp.collect_garbage(spark, "garbage", pond=pond, grace=0)
    assert asdict(done) == {**asdict(expected), "dry_run": False}
    assert before == {path: garbage.ref(ref).get(path) for ref in ("main", "side") for path, _ in entries(garbage, ref)}
    assert mp.collect_garbage(spark, "garbage", pond=pond, grace=0).objects == 0
    if expiring:
        with pytest.raises(NotFound):
            garbage.ref("main~1").get("expired")


def test_a_job_is_safe_beside_writers_committers_and_a_compactor(
    spark: SparkSession, garbage: Repository, pond: millpond.Pond
) -> None:
    main, over = garbage.branch("main"), threading.Event()
    written: dict[str, bytes] = {}
    failed: list[BaseException] = []

    def work() -> None:
        try:
            while not over.is_set():
                name = f"new/{len(written)}"
                main.put(name, name.encode())
                written[name] = name.encode()
                if len(written) % 5 == 0:
                    main.commit("more", allow_empty=True)
                if len(written) % 7 == 0:
                    main.staging.compact()
        except BaseException as error:
            failed.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(2):
            mp.collect_garbage(spark, "garbage", pond=pond, grace="1h")
    finally:
        over.set()
        worker.join()
    assert not failed, failed
    main.commit("the rest", allow_empty=True)
    mp.collect_garbage(spark, "garbage", pond=pond, grace="1h")
    assert {path: main.get(path) for path in written} == written
