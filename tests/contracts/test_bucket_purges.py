"""Purges of maps in a bucket of a real server: no object, and no copy on a machine, has the bytes of what went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from millpond.errors import NotFound, Unavailable
from millpond.kernel import steps
from millpond.kernel.lease import LEASE, Lease
from millpond.maps.layered import secured
from millpond.maps.model.definition import folder_name
from millpond.maps.model.keyspaces import REWRITING
from tests.contracts.test_bucket_ponds import opened, url  # noqa: F401
from tests.unit.test_purges import KEY, VALUE, WHERE, fill, keys, put

if TYPE_CHECKING:
    from pathlib import Path

    from tests.s3_server import S3Server

pytestmark = pytest.mark.usefixtures("process")


def with_bytes(folder: Path, *texts: str) -> set[str]:
    """The files below a folder, but for those of rows in the log, that have one of these texts."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(folder)) for path in files if any(text.encode() in path.read_bytes() for text in texts)
    }


def bucket_of(server: S3Server, url: str) -> Path:  # noqa: F811
    return server.folder / url.removeprefix("s3://")


def without_log(names: set[str]) -> set[str]:
    """The names but those of the space, whose log has the condition of the delete, and of repositories, whose commit
    tells it.
    """
    return {name for name in names if not name.startswith(("space/", "repositories/"))}


def test_no_object_and_no_copy_has_the_row_after_it(url: str, tmp_path: Path, s3_server: S3Server) -> None:  # noqa: F811
    bucket, here, there = bucket_of(s3_server, url), tmp_path / "one", tmp_path / "other"
    with opened(url, here) as pond, opened(url, there) as other:
        pond.create_map("people", kind="state", value="string")
        first, people = fill(pond), pond.map("people")
        assert other.map("people").get(KEY) == VALUE
        assert with_bytes(bucket / "snapshots", KEY) and with_bytes(bucket / "snapshots", VALUE)
        assert with_bytes(here, VALUE) and with_bytes(there, VALUE)
        left = people.delete(WHERE, now=True)
        assert not left.purged and any("delete the branch" in line for line in left.left), left
        report = people.delete(WHERE, now=True, branches=True)
        assert (report.purged, report.left, report.rows_removed) == (True, (), 0)
        assert [line.partition(",")[0] for line in report.changed] == [
            "branch fix: 1 row", "branch staged: 1 row", f"a tag of commit {first[:12]}: 1 row",
        ]  # fmt: skip
        assert with_bytes(bucket, VALUE, "hides it") == set()
        assert without_log(with_bytes(bucket, KEY)) == set()
        assert with_bytes(here, KEY, VALUE, "hides it") == set()
        refs = {"v1": ["bob"], "main": ["bob", "carl"], "fix": ["bob", "dora"], "staged": ["bob"]}
        assert {ref: keys(other.at(ref).map("people")) for ref in refs} == refs
        assert with_bytes(there, KEY, VALUE, "hides it") == set()
        with pytest.raises(NotFound):
            keys(other.at("fix~1").map("people"))
        for branch in ("fix", "staged"):
            other.branch(branch).merge()
        assert keys(people) == ["bob", "carl", "dora"]
        assert pond.verify(full=True).ok
    with opened(url, tmp_path / "new") as pond:
        assert pond.verify(full=True).ok
        assert with_bytes(tmp_path / "new", KEY, VALUE) == set()


@pytest.mark.parametrize("kind", ["ranged_state", "session", "aggregate"])
def test_of_all_kinds(url: str, tmp_path: Path, s3_server: S3Server, kind: str) -> None:  # noqa: F811
    number = 7_308_332_182_823_972_210  # eight letters
    rows = {
        "ranged_state": {"key_start": 1, "key_end": 5, "value": number},
        "session": {"key": KEY, "start": 1, "end": 2},
        "aggregate": {"key": KEY, "time": 5, "total": number},
    }
    value = {"ranged_state": "long", "session": None, "aggregate": "n long count, total long sum"}[kind]
    settings = {"resolution": "none"} if kind == "aggregate" else {}
    with opened(url, tmp_path) as pond:
        made = pond.create_map("m", kind=kind, value=value, **settings)
        made.load([rows[kind]])
        other = {name: v + 10 if name in ("key_start", "key_end") else "other" if name == "key" else 3
                 for name, v in rows[kind].items()}  # fmt: skip
        made.load([other])
        where = "value > 5" if kind == "ranged_state" else f"key = '{KEY}'"
        report = made.delete(where, now=True)
        assert (report.purged, report.rows_removed) == (True, 1), report
        files = bucket_of(s3_server, url) / "snapshots"
        assert with_bytes(files, KEY, number.to_bytes(8, "little").decode("latin-1")) == set()
        assert len(made.scan().read_all()) == 1
        assert pond.verify(full=True).ok


def test_a_purge_of_a_branch_and_a_bucket_where_tasks_of_spark_left_rows(url: str, tmp_path: Path) -> None:  # noqa: F811
    with opened(url, tmp_path) as pond:
        pond.create_map("people", kind="state", value="string")
        fix = pond.branch("fix", source="main")
        put(fix.map("people"), KEY, "bob", value=VALUE)
        pond.location.objects.put("writer/1700000000000-abc/000000-1/0", b"rows")  # type: ignore[union-attr]
        report = fix.map("people").delete(WHERE, now=True)
        assert (report.rows_removed, report.purged) == (1, False)
        assert [line.partition(":")[0] for line in report.left if "writer/" in line] == ["writer/1700000000000-abc/"]


def test_who_makes_files_of_the_rows_is_waited_for_and_one_that_died_is_not(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    monkeypatch.setattr(secured, "LEASE_SECONDS", 0.3)
    with opened(url, tmp_path / "one") as pond, opened(url, tmp_path / "other") as other:
        pond.create_map("people", kind="state", value="string")
        put(pond.map("people"), KEY, value=VALUE)
        put(other.map("people"), "bob")
        busy = list[str]()

        def between(name: str) -> None:
            if name == "fold.written" and not busy:
                with pytest.raises(Unavailable) as caught:
                    pond.map("people").delete(WHERE, now=True)
                busy.append(caught.value.kind)

        with steps.listening(between):
            other.map("people").compact()
        assert busy == ["map_busy"]
        assert keys(other.map("people")) == ["bob"]
        put(other.map("people"), KEY)
        mark = REWRITING.pack(folder_name(other.map("people").definition), "of one who died")
        other.space.write(lambda tx: tx.put(mark, LEASE.encode(Lease("of one who died", 1))))
        assert pond.map("people").delete(WHERE, now=True).purged
        with other.space.read() as tx:
            assert list(tx.keys(REWRITING.range())) == []


def test_a_load_that_a_purge_overtakes_puts_nothing_of_before_again(
    url: str, tmp_path: Path, s3_server: S3Server  # noqa: F811
) -> None:  # fmt: skip
    with opened(url, tmp_path / "one") as pond, opened(url, tmp_path / "other") as other:
        people = pond.create_map("people", kind="state", value="string")
        put(people, KEY, value=VALUE)
        late, purged = other.map("people"), list[bool]()
        assert late.get(KEY) == VALUE

        def between(name: str) -> None:
            if name == "layers.layer_written" and not purged:
                purged.append(True)
                purged[0] = people.delete(WHERE, now=True).purged

        with steps.listening(between):
            put(late, "bob", "carl")
        assert purged == [True]
        assert keys(people) == ["bob", "carl"]
        assert with_bytes(bucket_of(s3_server, url), VALUE) == set()
        assert without_log(with_bytes(bucket_of(s3_server, url), KEY)) == set()
        assert pond.verify(full=True).ok


def test_who_reads_meanwhile_answers_on_or_says_so(url: str, tmp_path: Path) -> None:  # noqa: F811
    with opened(url, tmp_path / "one") as pond, opened(url, tmp_path / "other", max_staleness=600) as other:
        people = pond.create_map("people", kind="state", value="string")
        random = np.random.default_rng(7).bytes(20 * 100_000).hex()
        values = [random[number : number + 40] for number in range(0, len(random), 40)]
        people.load(pa.table({"key": [KEY, *(f"b{number:05}" for number in range(99_999))], "value": values}))
        other.space.follow()
        behind, held = other.map("people"), people.snapshot()
        assert behind.get("b00007") == values[8]
        assert people.delete(WHERE, now=True).purged
        assert held.lookup([KEY]).to_pylist() == [values[0]]  # who has it open has all files
        assert people.snapshot().lookup([KEY, "b00007"]).to_pylist() == [None, values[8]]
        with pytest.raises(NotFound) as caught:
            behind.lookup([KEY, "b00009"])
        assert "again" in str(caught.value.hint)
        other.space.follow()
        assert behind.lookup([KEY, "b00009"]).to_pylist() == [None, values[10]]
