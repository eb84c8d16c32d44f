"""The contract of repositories, as tests: subclass `RepositoriesContract` in a module that pytest collects.

    class TestMine(RepositoriesContract):
        @pytest.fixture(scope="class")
        def pond(self, tmp_path_factory): ...        # open; it may be shared by all tests

The suite is a sum: of repositories with their refs, settings and differences; and of what is done on branches.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from millpond.errors import AlreadyExists, Conflict, Denied, Invalid, MillpondError, NotFound
from millpond.versions.diffs import DIFFERENCES, Change
from millpond.versions.graph.history import Window
from millpond.versions.repository_context import CompactionRules, ProtectedBranches, Retention
from tests.harness.contracts.branches import BranchesContract, raised

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.maps.protocols import PondLike
    from millpond.versions.protocols import RepositoryLike

__all__ = ("RepositoriesContract",)


class RepositoriesContract(BranchesContract):
    """Every promise of `versions.protocols`."""

    def test_repositories_are_made_listed_altered_and_deleted(self, pond: PondLike) -> None:
        stem = f"made-{pond.clock.random_id()}"
        names = [f"{stem}-{number}" for number in range(3)]
        for name in names:
            made = pond.repositories.create(name, default_branch="trunk", metadata={"of": name})
            assert (made.name, made.record.default_branch, made.record.metadata) == (name, "trunk", {"of": name})
        page = pond.repositories.list(stem, amount=2)
        assert [record.name for record in page.results] == names[:2]  # type: ignore[union-attr]
        rest = pond.repositories.list(stem, after=page.next_offset)
        assert (page.has_more, rest.has_more, len(rest.results)) == (True, False, 1)
        found = pond.repository(names[0])
        assert found.record == page.results[0]
        assert found.alter(metadata={"ü": "ö"}, read_only=True).metadata == {"ü": "ö"}
        assert pond.repository(names[0]).record == found.record
        assert found.record.read_only
        assert raised(Denied, lambda: found.branch("trunk").put("a", b"")).kind == "repository_read_only"
        assert found.branch("trunk").put("a", b"", force=True).size == 0
        taken = raised(AlreadyExists, lambda: pond.repositories.create(names[0]))
        assert (taken.kind, taken.values["repository"]) == ("repository_exists", names[0])
        for name in names:
            pond.repositories.delete(name)
        assert raised(NotFound, lambda: pond.repository(names[0])).kind == "repository_not_found"
        assert raised(NotFound, found.branches).kind == "repository_not_found"

    def test_branches_and_tags_are_made_listed_and_deleted(self, flights: RepositoryLike) -> None:
        main = flights.branch("main")
        main.put("a", b"1")
        first = main.commit("one")
        for name in ("fix-1", "fix-2", "other"):
            assert flights.create_branch(name, "main").head() == first
        flights.create_branch("secret", "main~1", hidden=True)
        assert [named.name for named in flights.branches("fix").results] == ["fix-1", "fix-2"]  # type: ignore[union-attr]
        assert len(flights.branches().results) == 4
        assert len(flights.branches(hidden=True).results) == 5
        assert flights.create_tag("v1", "main") == first
        assert flights.tag("v1") == first.id
        assert flights.tags().results[0].commit_id == first.id  # type: ignore[union-attr]
        assert flights.ref("v1").head() == flights.ref(first.id[:9]).head() == flights.ref("other@").head() == first
        flights.delete_tag("v1")
        flights.delete_branch("other")
        kinds = [
            (lambda: flights.tag("v1"), NotFound, "tag_not_found"),
            (lambda: flights.branch("other").head(), NotFound, "ref_not_found"),
            (lambda: flights.branch("other").staging.state(), NotFound, "branch_not_found"),
            (lambda: flights.create_branch("fix-1", "main"), AlreadyExists, "branch_exists"),
            (lambda: flights.create_branch("a/b", "main"), Invalid, "branch_name"),
            (lambda: flights.delete_branch("main"), Denied, "branch_default"),
            (lambda: flights.create_tag("v2", "main$"), Invalid, "ref_staged"),
            (lambda: flights.ref("main^a").head(), Invalid, "ref_invalid"),
            (lambda: flights.ref("main~99").head(), NotFound, "ref_not_found"),
            (lambda: flights.ref("\udce4").head(), MillpondError, None),
        ]
        for act, expected, kind in kinds:
            error = raised(expected, act)
            assert kind is None or error.kind == kind

    def test_logs_are_those_of_paths_and_windows(self, flights: RepositoryLike) -> None:
        main = flights.branch("main")
        made = []
        for number in range(5):
            main.put(f"{number % 2}/a", bytes([number]))
            made.append(main.commit(f"of {number}", metadata={"n": str(number)}, created=1_000 + number))
        log = list(main.log())
        assert log[:5] == made[::-1]
        assert len(log) == 6
        assert list(main.log(limit=2)) == made[:2:-1]
        assert list(main.log(paths=["0/a"])) == made[::-2]
        assert list(main.log(prefixes=["1/"])) == made[3:0:-2]
        assert list(flights.ref("main~1").log(limit=1)) == [made[3]]
        assert list(main.log(Window(since=1_003)))[:2] == made[:2:-1]
        assert list(main.log(Window(stop_at=made[3].id))) == made[:2:-1]
        with pytest.raises(NotFound):
            list(flights.ref("nope").log())

    def test_differences_show_both_sides(self, flights: RepositoryLike) -> None:
        main = flights.branch("main")
        for path in ("same", "changed", "removed"):
            main.put(path, path.encode())
        base = main.commit("base")
        fix = flights.create_branch("fix", "main")
        fix.put("changed", b"of fix", content_type="text/plain", metadata={"ü": "1"})
        fix.delete("removed")
        fix.put("d/added", b"")
        fix.commit("fix")
        page = flights.diff("main", "fix")
        changes = [change for change in page.results if isinstance(change, Change)]
        assert [(change.type, change.path) for change in changes] == [
            ("changed", "changed"), ("added", "d/added"), ("removed", "removed"),
        ]  # fmt: skip
        assert changes[0].left == main.stat("changed")
        assert changes[0].right == fix.stat("changed")
        assert (changes[1].left, changes[2].right) == (None, None)
        assert [change.path for change in flights.diff("main", "fix", delimiter="/").results][1] == "d/"
        first = flights.diff("main", "fix", amount=1)
        assert flights.diff("main", "fix", after=first.next_offset).results == page.results[1:]
        table = pa.Table.from_batches(list(flights.diff_rows("main", "fix", three_dots=False)))
        assert table.schema == DIFFERENCES
        assert table.column("path").to_pylist() == ["changed", "d/added", "removed"]
        assert table.column("right_address").to_pylist()[0] == fix.stat("changed").address
        assert not flights.diff("fix", "main").results
        assert flights.merge_base("main", "fix") == base
        main.put("staged", b"")
        staged = flights.diff("main", "main$", three_dots=False)
        assert [change.path for change in staged.results] == ["staged"]
        assert raised(Invalid, lambda: flights.diff("main", "fix", amount=0)).kind == "amount"

    @pytest.mark.parametrize(
        "value",
        [
            ProtectedBranches(("rel-*", "v?")), Retention(7, {"main": 30, "a": 0}), Retention(3),
            CompactionRules(10, 20, 30_000),
        ],
    )  # fmt: skip
    def test_settings_have_tags(self, flights: RepositoryLike, value: object) -> None:
        kind = type(value)
        assert flights.setting(kind) == (None, "")
        tag = flights.set(value, expected="")
        assert flights.setting(kind) == (value, tag)
        assert raised(Conflict, lambda: flights.set(value, expected="")).kind == "setting_changed"
        assert flights.set(value, expected=tag)
        flights.clear(kind)
        assert flights.setting(kind) == (None, "")

    def test_a_protected_branch_takes_no_writes(self, flights: RepositoryLike) -> None:
        main = flights.branch("main")
        main.put("staged", b"0")
        clean = flights.create_branch("clean", "main@")
        flights.set(ProtectedBranches(("main", "clean")))
        acts: list[Callable[[], object]] = [
            lambda: main.put("a", b"1"), lambda: main.put("a", [b"1", b"2"]), lambda: main.staging.delete_prefix(""),
            lambda: main.commit("x", allow_empty=True), main.reset, lambda: main.reset(path="staged"),
            lambda: main.reset(prefix="st"), lambda: clean.staging.reset_hard("main@"),
            lambda: main.staging.restore("", "main"),
        ]  # fmt: skip
        for act in acts:
            assert raised(Denied, act).kind == "branch_protected"
        assert main.get("staged") == b"0"

    def test_no_repository_lies_in_another_or_around_it(self, pond: PondLike, flights: RepositoryLike) -> None:
        name, place = flights.record.name, f"local://nested/{flights.record.name}"
        pond.repositories.create(f"{name}-a", place)
        inside = (f"{place}/data", f"{place}/data/x/", "local://nested", f"{flights.record.namespace}/data")
        for number, used in enumerate(inside):
            create = partial(pond.repositories.create, f"{name}-b{number}", used)
            assert raised(Invalid, create).kind == "namespace_used", used
        pond.repositories.delete(f"{name}-a")  # its bytes are left
        again = partial(pond.repositories.create, f"{name}-c", f"{place}/data")
        assert raised(Invalid, again).kind == "namespace_used"
        pond.repositories.create(f"{name}-d", f"{place}-beside")

    def test_a_dump_brings_a_repository_back(self, pond: PondLike, flights: RepositoryLike) -> None:
        main = flights.branch("main")
        for number in range(3):
            main.put("a", bytes([number]), metadata={"n": "ü"})
            main.commit(f"of {number}", metadata={"n": str(number)})
        flights.create_branch("fix", "main~1").put("staged", b"")
        flights.create_branch("secret", "main~2", hidden=True)
        flights.branch("main").merge("fix", allow_empty=True)
        flights.create_tag("v1", "main~1")
        flights.set(Retention(7, {"main": 30}))
        flights.alter(metadata={"a": "ü"}, read_only=True)
        log, chunks = list(main.log()), list(flights.dump())
        assert (
            raised(Conflict, lambda: pond.repositories.restore(flights.name, chunks, force=True)).kind
            == "repository_used"
        )
        other = f"other-{pond.clock.random_id()}"
        assert raised(Conflict, lambda: pond.repositories.restore(other, chunks)).kind == "repository_lives"
        pond.repositories.delete(flights.name)
        restored = pond.repositories.restore(flights.name, chunks)
        assert (restored.commits, restored.branches, restored.tags) == (len(log), 3, 1)
        found = pond.repository(flights.name)
        assert found.record == flights.record
        assert list(found.branch("main").log()) == log
        assert found.branch("main").get("a") == b"\x02"
        assert found.tag("v1") == log[1].id
        assert not found.branch("fix").diff().results
        assert [named.name for named in found.branches().results] == ["fix", "main"]  # type: ignore[union-attr]
        assert len(found.branches(hidden=True).results) == 3
        assert found.setting(Retention)[0] == Retention(7, {"main": 30})
        assert list(found.dump()) == chunks

    def test_a_damaged_dump_restores_nothing(self, pond: PondLike, flights: RepositoryLike) -> None:
        flights.branch("main").commit("one", allow_empty=True)
        flights.create_tag("v1", "main")
        flights.set(CompactionRules(1, 2, 3))
        dump = b"".join(flights.dump())
        pond.repositories.delete(flights.name)
        lines = dump.splitlines(keepends=True)
        wrong = [
            b"",
            b"{}",
            b"no dump",
            b"\xff\n",
            dump[:-20],
            dump + b"x",
            *(dump.replace(line, b"") for line in lines),
        ]
        wrong += [dump[:at] + bytes([dump[at] ^ 1]) + dump[at + 1 :] for at in range(0, len(dump), 37)]
        wrong.append(lines[0].replace(b'"format":1', b'"format":2') + b"".join(lines[1:]))
        for damaged in wrong:
            error = raised(MillpondError, partial(pond.repositories.restore, flights.name, [damaged]))
            assert error.kind in ("dump_damaged", "dump_format", "dump_incomplete"), damaged
            assert raised(NotFound, lambda: pond.repository(flights.name)).kind == "repository_not_found"
        pond.repositories.restore(flights.name, (dump[at : at + 5] for at in range(0, len(dump), 5)))
        assert b"".join(pond.repository(flights.name).dump()) == dump

    def test_garbage_is_counted(self, flights: RepositoryLike) -> None:
        main = flights.branch("main")
        main.put("a", b"1")
        main.put("a", b"2")
        found = flights.collect(dry_run=True)
        assert (found.dry_run, found.objects, found.active_commits) == (True, 0, 1)
