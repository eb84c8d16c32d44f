"""Repositories, refs, commits and runs as tables of SQL: what is in them, and what a condition leaves to be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond
from millpond.clock import ManualClock
from millpond.errors import Invalid, Unavailable
from millpond.maps.sql import query
from millpond.stores.memory import MemorySpace
from millpond.tables import RowTable, run_table, runs_in, version_tables
from millpond.tables import runs as run_rows
from millpond.tables import versions as version_rows
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from millpond import Pond

BEGIN = 1_767_225_600_000
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def pond(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pond]:
    clock = ManualClock(now=BEGIN)
    with millpond.open(tmp_path_factory.mktemp("sql") / "pond", clock=clock) as opened:
        assert isinstance(opened, millpond.Pond)
        for name in ("flights", "trains"):
            repository = opened.repositories.create(name)
            main = repository.branch("main")
            for number in range(3):
                main.put(f"{number}.csv", b"a")
                main.commit(SCRIPT if number else "first", metadata={"number": str(number)})
                clock.advance(60_000)
            repository.create_branch("fix", "main~1")
            repository.create_tag("v1", "main~1")
        yield opened


def rows(pond: Pond, text: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in pond.sql(text).to_pylist()]


def test_repositories_refs_and_commits_are_tables(pond: Pond, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_rows, "PAGE", 2)
    assert rows(pond, "select name, default_branch from repositories order by name") == [
        ("flights", "main"), ("trains", "main"),
    ]  # fmt: skip
    heads = {(name, ref): pond.repository(name).ref(ref).head().id for name in ("flights", "trains")
             for ref in ("main", "fix", "v1")}  # fmt: skip
    assert rows(pond, "select repository, type, name, commit_id from refs order by 1, 3") == [
        (name, "tag" if ref == "v1" else "branch", ref, heads[name, ref]) for name in ("flights", "trains")
        for ref in ("fix", "main", "v1")
    ]  # fmt: skip
    assert rows(pond, "select name from refs where repository = 'flights' and type = 'tag'") == [("v1",)]
    assert rows(pond, "select repository from refs where name = 'fix' order by 1") == [("flights",), ("trains",)]
    assert rows(pond, "select name from refs where name in ('fix', 'fi', 'none', 'v') and repository = 'trains'") == [
        ("fix",)
    ]
    logged = [commit.id for commit in pond.repository("flights").ref("main").log()]
    assert rows(pond, "select id from commits where repository = 'flights'") == [(id_,) for id_ in logged]
    assert rows(pond, "select id from commits where ref = 'fix' and repository = 'flights'") == [
        (id_,) for id_ in logged[1:]
    ]
    shown = rows(pond, "select message, metadata['number'], parents[1], epoch_ms(created) from commits "
                       "where repository = 'flights' and metadata['number'] = '0'")  # fmt: skip
    assert shown == [("first", "0", logged[-1], BEGIN)]
    for none in (
        "repository = 'nothing'",
        "repository = ''",
        "ref = 'nothing'",
        "repository = 'a' and repository = 'b'",
    ):
        assert rows(pond, f"select 1 from commits where {none}") == []
    assert rows(pond, "select count(*) from commits c join refs r on c.id = r.commit_id where c.ref = 'main'") == [(6,)]


def test_a_map_has_its_name_and_the_table_is_in_the_schema(pond: Pond, tmp_path: Path) -> None:
    with millpond.open(tmp_path / "other") as other:
        other.create_map("refs", kind="state", value="string").load([{"key": "a", "value": "b"}])
        assert other.sql("select key from refs").to_pylist() == [{"key": "a"}]
        assert other.sql("from millpond.refs").num_rows == other.sql("from runs").num_rows == 0
        (tmp_path / "other" / "workflows").mkdir()
        with pytest.raises(Unavailable, match="store of their own"):
            other.sql("from runs")
    with pytest.raises(Invalid, match="only reads"):
        pond.sql("drop table refs")
    with pytest.raises(Invalid) as error:
        pond.sql("from nothing_here")
    assert error.value.hint == "there is: events, repositories, refs, commits, runs"


def test_only_what_may_be_read_is_there(pond: Pond) -> None:
    tables = version_tables(lambda: pond.repositories, lambda name: name == "trains")
    for table, count in (("repositories", 1), ("refs", 3), ("commits", 4)):
        assert query(pond, f"from {table}", tables).num_rows == count
        column = "name" if table == "repositories" else "repository"
        assert query(pond, f"from {table} where {column} = 'flights'", tables).num_rows == 0


# -- runs ---------------------------------------------------------------------------------------------

TENANTS, SPECS, STATUSES = ("default", "other"), ("asks", "fails", SCRIPT), ("RUNNING", "COMPLETED", "ERROR")
Row = tuple[str, str, str, int]
row_lists = st.lists(
    st.tuples(st.sampled_from(TENANTS), st.sampled_from(SPECS), st.sampled_from(STATUSES), st.integers(0, 9)),
    max_size=12,
)
conditions = st.lists(
    st.sampled_from([
        "tenant = 'default'", "workflow = 'asks'", f"workflow in ('fails', '{SCRIPT}')", "status = 'RUNNING'",
        "status in ('ERROR', 'COMPLETED')", "status = 'nothing'", "began >= '2026-01-01 00:05Z'", "workflow <> 'asks'",
        "began < '2026-01-01 00:03Z'", "id in ('r1', 'r5', '', 'no_such')", "began < '1969-01-01'", "error is null",
        "ended is null and status <> 'ERROR'",
    ]),
    max_size=3,
)  # fmt: skip


class _Pond:
    """A pond without maps."""

    clock = ManualClock(now=BEGIN)

    def maps(self) -> list[Any]:
        return []


def _space_of(runs: Sequence[Row]) -> MemorySpace:
    """A space with runs, each under the tags of its tenant."""
    from littlehorse.model import LHStatus, WfRun, WfRunId, WfSpecId

    from millpond.workflows.store import RunStore, initialize
    from millpond.workflows.store.addresses import address_of

    space = MemorySpace()
    born = space.write(lambda tx: initialize(tx, BEGIN))
    for number, (tenant, spec, status, minute) in enumerate(runs):
        run = WfRun(id=WfRunId(id=f"r{number}"), status=LHStatus.Value(status))
        run.wf_spec_id.CopyFrom(WfSpecId(name=spec, major_version=1, revision=number))
        run.start_time.FromMilliseconds(BEGIN + 60_000 * minute)
        store = RunStore(tenant, born, lambda _: ())
        space.write(lambda tx, run=run, store=store: store.replace(tx, address_of(run.id), run))  # type: ignore[misc]
    return space


@settings(max_examples=examples(20, 1_000), deadline=None)
@given(row_lists, conditions, st.integers(1, 5))
def test_runs_are_those_that_a_condition_takes(runs: list[Row], wanted: list[str], page: int) -> None:
    pytest.importorskip("littlehorse")
    expected = [
        (tenant, f"r{number}", spec, 1, number, status, BEGIN + 60_000 * minute, None, None)
        for number, (tenant, spec, status, minute) in enumerate(runs)
    ]
    space = _space_of(runs)
    tables = [run_table(lambda: runs_in(space, Path("nowhere")))]
    tables.append(RowTable("expected", tables[0].schema, lambda _: [expected]))
    where = " and ".join(["true", *wanted])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_rows, "PAGE", page)
        found, model = (
            query(_Pond(), f"from {name} where {where} order by revision", tables) for name in ("runs", "expected")
        )
    assert found.to_pylist() == model.to_pylist()


def test_no_more_runs_are_read_than_a_condition_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("littlehorse")
    from millpond.workflows.processor import ReadRows

    space = _space_of([("default", "asks", "COMPLETED", minute % 10) for minute in range(40)])
    read: list[object] = []
    get = ReadRows.get
    monkeypatch.setattr(ReadRows, "get", lambda self, kind, key: (read.append(key), get(self, kind, key))[1])
    monkeypatch.setattr(run_rows, "PAGE", 4)
    table = run_table(lambda: runs_in(space, Path("nowhere")))
    for where, count in (
        ("began >= '2026-01-01 00:08Z'", 8), ("status = 'RUNNING'", 0), ("id = 'r7'", 1), ("tenant = 'other'", 0),
        ("workflow = 'fails'", 0), ("workflow = 'asks' and status = 'COMPLETED' and began < '2026-01-01 00:01Z'", 4),
    ):  # fmt: skip
        read.clear()
        assert query(_Pond(), f"select count(*) as n from runs where {where}", [table]).to_pylist() == [{"n": count}]
        assert len(read) <= max(count, 4) + 4, where
    read.clear()
    assert query(_Pond(), "from runs limit 2", [table]).num_rows == 2
    assert len(read) <= 12
